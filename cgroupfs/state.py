"""What the kernel shows of a cgroup: the settings, and what became of them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from cgroupfs.values import CPU_WEIGHT, MEMORY_MAX, CpuMax, use_of
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgroupfs.tree import Tree

CPUS: Final = "cpuset.cpus"
CPUS_EFFECTIVE: Final = "cpuset.cpus.effective"
MEMS: Final = "cpuset.mems"
MEMS_EFFECTIVE: Final = "cpuset.mems.effective"
CPU_MAX: Final = "cpu.max"
EVENTS: Final = "cgroup.events"

_FILES: Final = (CPUS, CPUS_EFFECTIVE, MEMS, MEMS_EFFECTIVE, CPU_MAX, EVENTS)
#: The files of one value each that are always read.
VALUES: Final = (CPU_WEIGHT, MEMORY_MAX)


class State(Struct, frozen=True):
    """One cgroup as read: empty `cpus`/`mems` is unset, that is the parent's.

    None stands for a file that is not there because the controller is not enabled. `values` holds
    the texts of files of one value (`cpu.weight`, `memory.max`, `hugetlb.2MB.max`) as far as they
    are there, `in_use` the bytes in use of those limits of which that was asked (`with_use`).
    """

    cpus: Mask | None
    cpus_effective: Mask | None
    mems: Mask | None
    mems_effective: Mask | None
    cpu_max: CpuMax | None
    populated: bool
    values: Mapping[str, str] = MappingProxyType({})
    in_use: Mapping[str, int] = MappingProxyType({})


def read_state(tree: Tree, path: str, values: tuple[str, ...] = VALUES) -> State | None:
    """Read one cgroup, None when it is gone. Raises `OSError` for anything but its absence.

    `values` are the files of one value that are read as well.
    """
    try:
        texts = tree.read_many(path, (*_FILES, *values))
    except FileNotFoundError:
        return None
    cpus, cpus_now, mems, mems_now, cpu_max, events = texts[: len(_FILES)]
    shown = zip(values, texts[len(_FILES) :], strict=True)
    return State(
        cpus=_mask(cpus),
        cpus_effective=_mask(cpus_now),
        mems=_mask(mems),
        mems_effective=_mask(mems_now),
        cpu_max=None if cpu_max is None else CpuMax.parse(cpu_max),
        populated=events is not None and "populated 1" in events,
        values={file: text.strip() for file, text in shown if text is not None},
    )


def read_states(
    tree: Tree, paths: Iterable[str], values: tuple[str, ...] = VALUES
) -> dict[str, State]:
    """Read several cgroups by path; those that are gone are left out."""
    found = ((path, read_state(tree, path, values)) for path in paths)
    return {path: state for path, state in found if state is not None}


def with_use(tree: Tree, path: str, state: State, limits: Iterable[str]) -> State:
    """Return the state with how many bytes of these limits are in use; see `read_state`."""
    return replace(state, in_use=read_use(tree, path, limits))


def read_use(tree: Tree, path: str, limits: Iterable[str]) -> dict[str, int]:
    """Return how many bytes of these limits (files) are in use, 0 where the kernel does not say."""
    files = {limit: use for limit in limits if (use := use_of(limit)) is not None}
    try:
        texts = tree.read_many(path, tuple(files.values()))
    except FileNotFoundError:
        return {}
    return {
        limit: int(text) if text is not None and text.strip().isdecimal() else 0
        for limit, text in zip(files, texts, strict=True)
    }


def _mask(text: str | None) -> Mask | None:
    return None if text is None else Mask.parse(text)
