from __future__ import annotations

from typing import TYPE_CHECKING

from sysfs.mask import Mask
from sysfs.speeds import CpuSpeed, read_speeds

if TYPE_CHECKING:
    from pathlib import Path


def test_what_a_host_does_not_show_or_shows_oddly_is_not_known(tmp_path: Path) -> None:
    for cpu, limit in ((2, "2400000\n"), (3, "fast\n")):
        frequencies = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        frequencies.mkdir(parents=True)
        (frequencies / "scaling_max_freq").write_text(limit)
        (frequencies / "cpuinfo_max_freq").write_text("3600000\n")
    heat = tmp_path / "sys/devices/system/cpu/cpu3/thermal_throttle"
    heat.mkdir()
    (heat / "core_throttle_count").write_text("12\n")
    assert read_speeds(tmp_path, Mask.of(2, 3, 4)) == (
        CpuSpeed(2, 2400000, 3600000),
        CpuSpeed(3, None, 3600000, 12),
        CpuSpeed(4),
    )
