from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.runtimes.files import RuntimeFileError
from agent.runtimes.records import read_state
from cgroupfs.state import UNLIMITED, CpuMax, WriterRecord
from sysfs.mask import Mask
from tests.agent.runtimes.bundles import runc_state, write

if TYPE_CHECKING:
    from pathlib import Path


def test_runcs_settings_are_read(tmp_path: Path) -> None:
    file = runc_state(
        tmp_path,
        {"cpuset_cpus": "4-5", "cpuset_mems": "1", "cpu_quota": 50_000, "cpu_period": 100_000},
    )
    assert read_state(file) == WriterRecord(Mask.parse("4-5"), Mask.of(1), CpuMax(50_000))


@pytest.mark.parametrize(
    ("quota", "period", "cpu_max"),
    [
        (0, 0, None),
        (-1, 100_000, UNLIMITED),
        (-1, 0, UNLIMITED),
        (0, 50_000, CpuMax(None, 50_000)),
        (20_000, 0, CpuMax(20_000)),
    ],
)
def test_a_quota_is_what_the_runtime_writes_for_it(
    tmp_path: Path, quota: int, period: int, cpu_max: CpuMax | None
) -> None:
    file = runc_state(tmp_path, {"cpu_quota": quota, "cpu_period": period})
    assert read_state(file) == WriterRecord(cpu_max=cpu_max)


def test_settings_that_are_left_out_are_none(tmp_path: Path) -> None:
    assert read_state(write(tmp_path / "state.json", {"config": {"cgroups": {}}})) == WriterRecord()


@pytest.mark.parametrize("state", [{}, {"config": {}}, {"config": {"cgroups": None}}])
def test_a_state_of_another_shape_is_damaged(tmp_path: Path, state: object) -> None:
    with pytest.raises(RuntimeFileError, match="it is damaged"):
        read_state(write(tmp_path / "state.json", state))
