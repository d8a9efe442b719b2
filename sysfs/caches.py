"""The last-level (uncore, L3) cache of each CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sysfs.siblings import CPU_DIRECTORY, optional_groups

if TYPE_CHECKING:
    from sysfs.files import Tree
    from sysfs.mask import Mask

UNCORE_LEVEL: Final = 3
#: Where x86 and most Arm machines have their L3 (L1d, L1i, L2, L3): asked first.
_USUAL_INDEX: Final = 3


def read_uncore(tree: Tree, online: Mask) -> dict[int, int]:
    """Return the lowest online CPU that shares the level 3 cache, by CPU id.

    A CPU whose `cache` directory is absent or has no level 3 is not a key: it has no uncore
    cache, and whoever groups by it takes the package instead. So do the CPUs of sets that
    contradict each other.
    """
    groups: dict[int, int] = {}
    without = "no level 3 cache is known by it"
    for group in optional_groups(tree, online, lambda cpu: _shared(tree, cpu), without):
        groups.update(dict.fromkeys(group, group.lowest))
    return groups


def _shared(tree: Tree, cpu: int) -> tuple[str, Mask] | None:
    directory = f"{CPU_DIRECTORY}/cpu{cpu}/cache"
    index = _uncore_index(tree, directory)
    if index is None:
        return None
    name = f"{directory}/index{index}/shared_cpu"
    return tree.find_named_set((f"{name}_list",), (f"{name}_map",))


def _uncore_index(tree: Tree, directory: str) -> int | None:
    if _is_uncore(tree, directory, _USUAL_INDEX):
        return _USUAL_INDEX
    for index in tree.numbered(directory, "index"):
        if index != _USUAL_INDEX and _is_uncore(tree, directory, index):
            return index
    return None


def _is_uncore(tree: Tree, directory: str, index: int) -> bool:
    return tree.find_integer(f"{directory}/index{index}/level") == UNCORE_LEVEL
