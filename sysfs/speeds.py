"""How fast CPUs may run now: the limits of cpufreq, and how often heat slowed them.

In go the root of a host's tree and CPUs, out comes a `CpuSpeed` for each. What a host does not show
(no cpufreq driver, a virtual machine, another architecture than x86 for heat) is None.

Source: Documentation/admin-guide/pm/cpufreq.rst, and arch/x86 `therm_throt.c` for the counters.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sysfs.files import SysfsTree

if TYPE_CHECKING:
    from pathlib import Path

    from sysfs.mask import Mask

_CPU: Final = "sys/devices/system/cpu/cpu{cpu}/{file}"


class CpuSpeed(Struct, frozen=True):
    """One CPU; frequencies are in kHz."""

    cpu: int
    #: What the CPU may reach now (`scaling_max_freq`), and what it can reach at all.
    limit: int | None = None
    highest: int | None = None
    #: How often its core was slowed for heat since the host was started.
    slowed: int | None = None


def read_speeds(root: Path, cpus: Mask) -> tuple[CpuSpeed, ...]:
    """Return the speeds of CPUs of the host at `root`; an odd file is as an absent one."""
    tree = SysfsTree(root)

    def number(cpu: int, file: str) -> int | None:
        find = partial(tree.find_integer, _CPU.format(cpu=cpu, file=file))
        return tree.optional(find, None, "it is not known")

    return tuple(
        CpuSpeed(
            cpu,
            number(cpu, "cpufreq/scaling_max_freq"),
            number(cpu, "cpufreq/cpuinfo_max_freq"),
            number(cpu, "thermal_throttle/core_throttle_count"),
        )
        for cpu in cpus
    )
