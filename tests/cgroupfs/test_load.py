from __future__ import annotations

import errno
import os

import pytest

from cgroupfs.emulated.kernel import EmulatedKernel
from cgroupfs.load import read_load
from sysfs.mask import Mask

CPU_STAT = "usage_usec 9\nnr_periods 340\nnr_throttled 12\nthrottled_usec 840000\n"
PRESSURE = (
    "some avg10=1.53 avg60=0.87 avg300=0.22 total=58761\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
)
EVENTS = "low 0\nhigh 7\nmax 3\noom_kill 1\n"


class Shown(EmulatedKernel):
    """A kernel whose cgroups all show these texts; an error is raised."""

    def __init__(self, **files: str | OSError) -> None:
        super().__init__(Mask.of(0), Mask.of(0))
        self.shown = {name.replace("_", "."): shown for name, shown in files.items()}

    def read(self, path: str, file: str) -> str:
        text = self.shown.get(file)
        if isinstance(text, OSError):
            raise text
        return super().read(path, file) if text is None else text


def test_files_are_read_as_every_kernel_shows_them() -> None:
    tree = Shown(cpu_stat=CPU_STAT, cpu_pressure=PRESSURE, memory_events=EVENTS)
    assert read_load(tree, "") == {
        "cpu.stat": {
            "usage_usec": 9, "nr_periods": 340, "nr_throttled": 12, "throttled_usec": 840000,
        },
        "cpu.pressure": {"avg10": 1.53, "avg60": 0.87, "avg300": 0.22, "total": 58761},
        "memory.events": {"low": 0, "high": 7, "max": 3, "oom_kill": 1},
    }  # fmt: skip


UNKNOWN = {
    "no controller is enabled": Shown(cpu_stat="usage_usec 9\nuser_usec 1\n"),
    "a kernel with psi=0": Shown(cpu_pressure=OSError(errno.EOPNOTSUPP, os.strerror(95))),
    "pressure of nobody": Shown(cpu_pressure="", memory_pressure="full avg10=1 avg60=1\n"),
    "what no kernel writes": Shown(
        cpu_stat="nr_periods x\nnr_throttled\n\n1 2 3\n",
        cpu_pressure="some avg10=x avg60=1\n",
        memory_pressure="some avg10 60\n\nsome\n",
        memory_events="max 3\nhigh\n",
    ),
}


@pytest.mark.parametrize("tree", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_absent_or_odd_is_not_known(tree: Shown) -> None:
    assert read_load(tree, "") == read_load(tree, "gone") == {}


def test_events_of_the_cgroups_below_are_left_out_of_the_own_ones() -> None:
    own = {"high": 0.0, "max": 0.0, "oom_kill": 0.0}
    text = "".join(f"{key} {count:.0f}\n" for key, count in own.items())
    tree = Shown(memory_events=EVENTS, memory_events_local=text)
    assert read_load(tree, "", own_events=True) == {"memory.events": own}
