"""The last-level (uncore, L3) cache of each CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sysfs.siblings import CPU_DIRECTORY, sibling_groups

if TYPE_CHECKING:
    from sysfs.files import Tree
    from sysfs.mask import Mask

UNCORE_LEVEL: Final = 3
#: Where x86 and most Arm machines have their L3 (L1d, L1i, L2, L3): asked first.
_USUAL_INDEX: Final = 3


def read_uncore(tree: Tree, online: Mask) -> dict[int, int]:
    """Return the lowest online CPU that shares the level 3 cache, by CPU id.

    A CPU whose `cache` directory is absent or has no level 3 is not a key: it has no uncore
    cache, and whoever groups by it takes the package instead. Raises `InconsistentTree` if the
    sets of two caches overlap.
    """
    groups: dict[int, int] = {}
    for group in sibling_groups(online, lambda cpu: _shared(tree, cpu)):
        groups.update(dict.fromkeys(group, group.lowest))
    return groups


def _shared(tree: Tree, cpu: int) -> tuple[str, Mask] | None:
    directory = f"{CPU_DIRECTORY}/cpu{cpu}/cache"
    index = _uncore_index(tree, directory)
    if index is None:
        return None
    name = f"{directory}/index{index}/shared_cpu"
    shared = tree.find_set((f"{name}_list",), (f"{name}_map",))
    return None if shared is None else (tree.path(f"{name}_list"), shared)


def _uncore_index(tree: Tree, directory: str) -> int | None:
    if _is_uncore(tree, directory, _USUAL_INDEX):
        return _USUAL_INDEX
    for index in tree.numbered(directory, "index"):
        if index != _USUAL_INDEX and _is_uncore(tree, directory, index):
            return index
    return None


def _is_uncore(tree: Tree, directory: str, index: int) -> bool:
    return tree.find_integer(f"{directory}/index{index}/level") == UNCORE_LEVEL
