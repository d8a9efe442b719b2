"""What the kernel shows of a cgroup: the settings, and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cgroupfs.values import CpuMax
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgroupfs.tree import Tree

CPUS: Final = "cpuset.cpus"
CPUS_EFFECTIVE: Final = "cpuset.cpus.effective"
MEMS: Final = "cpuset.mems"
MEMS_EFFECTIVE: Final = "cpuset.mems.effective"
CPU_MAX: Final = "cpu.max"
EVENTS: Final = "cgroup.events"

_FILES: Final = (CPUS, CPUS_EFFECTIVE, MEMS, MEMS_EFFECTIVE, CPU_MAX, EVENTS)


class State(Struct, frozen=True):
    """One cgroup as read: empty `cpus`/`mems` is unset, that is the parent's.

    None stands for a file that is not there because the controller is not enabled.
    """

    cpus: Mask | None
    cpus_effective: Mask | None
    mems: Mask | None
    mems_effective: Mask | None
    cpu_max: CpuMax | None
    populated: bool


def read_state(tree: Tree, path: str) -> State | None:
    """Read one cgroup, None when it is gone. Raises `OSError` for anything but its absence."""
    try:
        cpus, cpus_now, mems, mems_now, cpu_max, events = tree.read_many(path, _FILES)
    except FileNotFoundError:
        return None
    return State(
        cpus=_mask(cpus),
        cpus_effective=_mask(cpus_now),
        mems=_mask(mems),
        mems_effective=_mask(mems_now),
        cpu_max=None if cpu_max is None else CpuMax.parse(cpu_max),
        populated=events is not None and "populated 1" in events,
    )


def read_states(tree: Tree, paths: Iterable[str]) -> dict[str, State]:
    """Read several cgroups by path; those that are gone are left out."""
    found = ((path, read_state(tree, path)) for path in paths)
    return {path: state for path, state in found if state is not None}


def _mask(text: str | None) -> Mask | None:
    return None if text is None else Mask.parse(text)
