"""What each NUMA node could give now: its memory, and its huge pages by size.

In go the root of a host's tree and node ids; out comes what each node has. What a host does not
show is left out, and an odd file is as an absent one.

Memory is available if it is free, or if the kernel can reclaim it at once: pages of files and
reclaimable slab. So the kernel estimates MemAvailable of a host, less a reserve of its own
(Documentation/filesystems/proc.rst); of a node it shows no estimate. Huge pages are available
if no process has them (`free_hugepages`, Documentation/admin-guide/mm/hugetlbpage.rst). Those that
a process has reserved and not touched are among them: reservations are not counted by node.
"""

from __future__ import annotations

import re
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sysfs.files import SysfsTree
from sysfs.nodes import HOST_HUGEPAGES, HOST_MEMINFO, NODE_DIRECTORY, pool_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_WITHOUT: Final = "it is not known"
#: The lines of a `meminfo` that add up to what is available.
_KEYS: Final = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
_LINE: Final = re.compile(
    r"^(?:Node\s+[0-9]+\s+)?([A-Za-z()]+):\s+([0-9]{1,15}) kB\s*$", re.ASCII | re.MULTILINE
)


class Available(Struct, frozen=True):
    """What one node could give, in bytes."""

    #: None: not known.
    memory: int | None = None
    #: By page size in bytes.
    hugepages: Mapping[int, int] = MappingProxyType({})


def read_available(root: Path, nodes: Iterable[int]) -> Mapping[int, Available]:
    """Return what the nodes of the host at `root` could give, by node.

    The only node of a kernel without NUMA has what the host has.
    """
    tree = SysfsTree(root)
    numa = tree.optional(partial(tree.names, NODE_DIRECTORY), [], _WITHOUT)
    found = {}
    for node in nodes:
        directory = f"{NODE_DIRECTORY}/node{node}"
        meminfo = f"{directory}/meminfo" if numa else HOST_MEMINFO
        pools = f"{directory}/hugepages" if numa else HOST_HUGEPAGES
        found[node] = Available(_memory(tree, meminfo), MappingProxyType(_pages(tree, pools)))
    return MappingProxyType(found)


def _memory(tree: SysfsTree, name: str) -> int | None:
    text = tree.optional(partial(tree.find, name), None, _WITHOUT) or ""
    amounts = dict(_LINE.findall(text))
    if not amounts.keys() >= {*_KEYS}:
        return None
    return sum(int(amounts[key]) for key in _KEYS) * 1024


def _pages(tree: SysfsTree, directory: str) -> dict[int, int]:
    found = {}
    for size in tree.optional(partial(pool_sizes, tree, directory), [], _WITHOUT):
        file = f"{directory}/hugepages-{size}kB/free_hugepages"
        count = tree.optional(partial(tree.find_integer, file), None, _WITHOUT)
        if count is not None and count >= 0:
            found[size * 1024] = count * size * 1024
    return found
