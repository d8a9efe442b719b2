"""NUMA nodes: their CPUs, memory, huge pages and distances."""

from __future__ import annotations

import re
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sysfs.cpus import CPU_DIRECTORY
from sysfs.files import MalformedFile, MissingFile
from sysfs.host import HugePages, Node
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sysfs.files import SysfsTree

NODE_DIRECTORY: Final = "sys/devices/system/node"
TIER_DIRECTORY: Final = "sys/devices/virtual/memory_tiering"
TIER: Final = "memory_tier"
#: What the kernel shows where the firmware has no SLIT (include/linux/topology.h).
LOCAL_DISTANCE: Final = 10

REMOTE_DISTANCE: Final = 20
#: A SLIT holds bytes.
_DISTANCE: Final = re.compile(r"[0-9]{1,3}", re.ASCII)


def read_nodes(tree: SysfsTree, online: Mask) -> tuple[Node, ...]:
    """Read every `nodeN` directory, ascending; ids may have gaps.

    Fallbacks: no node directory at all (a kernel without NUMA): one node 0 with every online
    CPU, `MemTotal` of `proc/meminfo` and the huge pages of `sys/kernel/mm/hugepages`; no
    `cpulist`: `cpumap`; no `meminfo` of an only node: `proc/meminfo`; without any, the memory is
    unknown; no `distance`, or one that is odd: 10 to itself, 20 to others.
    """
    ids = tree.numbered(NODE_DIRECTORY, "node")
    if not ids:
        return (_whole_host(tree, online),)
    tiers = _tiers(tree)
    return tuple(_node(tree, node, ids, online, tiers.get(node)) for node in ids)


def nodes_of_cpus(tree: SysfsTree, nodes: Sequence[Node], present: Mask) -> dict[int, int]:
    """Return the node of each CPU, by CPU id; a CPU of no known node is not a key.

    A CPU that exactly one node lists is that node's. For any other (offline, or firmware that
    gives every CPU to every node) the link `cpuN/nodeM` decides where there is exactly one to a
    node that exists, else the lowest node that lists the CPU.
    """
    owner: dict[int, int] = {}
    claimed = contested = Mask()
    for node in nodes:
        contested |= claimed & node.cpus
        claimed |= node.cpus
        for cpu in node.cpus:
            owner.setdefault(cpu, node.id)
    known = {node.id for node in nodes}
    for cpu in (present - claimed) | contested:
        links = partial(tree.numbered, f"{CPU_DIRECTORY}/cpu{cpu}", "node")
        linked = known.intersection(tree.optional(links, [], "no node is known by it"))
        if len(linked) == 1:
            owner[cpu] = linked.pop()
    return owner


def _whole_host(tree: SysfsTree, online: Mask) -> Node:
    return Node(
        id=0,
        cpus=online,
        memory_bytes=_total(tree, HOST_MEMINFO),
        hugepages=read_hugepages(tree, HOST_HUGEPAGES),
        distances=MappingProxyType({0: LOCAL_DISTANCE}),
    )


def _tiers(tree: SysfsTree) -> dict[int, int]:
    """Return the memory tier of each node, by node; of several the fastest.

    Kernels before 6.1 and those without migration have none
    (Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers).
    """
    without = "no memory tier is known by it"
    found: dict[int, int] = {}
    for tier in tree.numbered(TIER_DIRECTORY, TIER):
        name = f"{TIER_DIRECTORY}/{TIER}{tier}/nodelist"
        nodes = tree.optional(partial(tree.find_list, name), None, without)
        for node in nodes or ():
            found.setdefault(node, tier)
    return found


def _node(tree: SysfsTree, node: int, ids: Sequence[int], online: Mask, tier: int | None) -> Node:
    directory = f"{NODE_DIRECTORY}/node{node}"
    cpus = tree.find_set((f"{directory}/cpulist",), (f"{directory}/cpumap",))
    if cpus is None:
        raise MissingFile(
            tree.path(f"{directory}/cpulist"), "a node lists its CPUs here or in cpumap"
        )
    return Node(
        id=node,
        cpus=cpus & online,
        memory_bytes=_memory(tree, directory, ids),
        hugepages=read_hugepages(tree, f"{directory}/hugepages"),
        distances=_distances(tree, node, ids),
        tier=tier,
    )


def _memory(tree: SysfsTree, directory: str, ids: Sequence[int]) -> int | None:
    total = _total(tree, f"{directory}/meminfo")
    if total is None and len(ids) == 1:
        return _total(tree, HOST_MEMINFO)
    return total


def _total(tree: SysfsTree, name: str) -> int | None:
    without = "the memory is not known by it"
    return tree.optional(lambda: find_memory_total(tree, name), None, without)


def _distances(tree: SysfsTree, node: int, ids: Sequence[int]) -> Mapping[int, int]:
    without = f"{LOCAL_DISTANCE} to itself and {REMOTE_DISTANCE} to all others are taken"
    row = tree.optional(lambda: _find_distances(tree, node, ids), None, without)
    if row is None:
        row = {other: LOCAL_DISTANCE if other == node else REMOTE_DISTANCE for other in ids}
    return MappingProxyType(row)


def _find_distances(tree: SysfsTree, node: int, ids: Sequence[int]) -> dict[int, int] | None:
    name = f"{NODE_DIRECTORY}/node{node}/distance"
    text = tree.find(name)
    if text is None:
        return None
    fields = text.split()
    if not fields or not all(map(_DISTANCE.fullmatch, fields)):
        raise MalformedFile(tree.path(name), text, "one distance for each node")
    columns = _columns(tree, ids, len(fields))
    if columns is None:
        raise MalformedFile(tree.path(name), text, f"{len(ids)} distances, one for each node")
    row = {other: int(field) for other, field in zip(columns, fields, strict=True)}
    return {other: row[other] for other in ids}


def _columns(tree: SysfsTree, ids: Sequence[int], count: int) -> Sequence[int] | None:
    """Name the nodes of a row: those with a directory, else those online, else the possible."""
    if len(ids) == count:
        return ids
    for state in ("online", "possible"):
        name = f"{NODE_DIRECTORY}/{state}"
        members = tree.optional(partial(tree.find_list, name), None, "no column is named by it")
        if members is not None and len(members) == count and Mask.from_ids(ids) <= members:
            return tuple(members)
    return None


HOST_MEMINFO: Final = "proc/meminfo"

HOST_HUGEPAGES: Final = "sys/kernel/mm/hugepages"

_TOTAL: Final = re.compile(r"^(?:Node\s+[0-9]+\s+)?MemTotal:\s+([0-9]{1,15}) kB\s*$", re.MULTILINE)

_POOL: Final = re.compile(r"hugepages-([1-9][0-9]{0,11})kB", re.ASCII)


def find_memory_total(tree: SysfsTree, name: str) -> int | None:
    """Return `MemTotal` of a `meminfo` file in bytes; None if the file is absent.

    Raises `MalformedFile` if the file has no line `MemTotal: <number> kB`.
    """
    text = tree.find(name)
    if text is None:
        return None
    match = _TOTAL.search(text)
    if match is None:
        raise MalformedFile(tree.path(name), text, "a line 'MemTotal: <number> kB'")
    return int(match[1]) * 1024


def read_hugepages(tree: SysfsTree, directory: str) -> tuple[HugePages, ...]:
    """Return the pools below a `hugepages` directory by ascending page size, empty ones too.

    None if the directory is absent (a kernel without hugetlbfs). A pool without `nr_hugepages`
    has 0 pages, and so has one whose file is odd.
    """
    sizes = tree.optional(partial(pool_sizes, tree, directory), [], "no huge pages are known by it")
    return tuple(
        HugePages(size_kib * 1024, _pages(tree, directory, size_kib)) for size_kib in sizes
    )


def _pages(tree: SysfsTree, directory: str, size_kib: int) -> int:
    file = f"{directory}/hugepages-{size_kib}kB/nr_hugepages"

    def read() -> int:
        count = tree.find_integer(file) or 0
        if count < 0:
            raise MalformedFile(tree.path(file), str(count), "a number of pages")
        return count

    return tree.optional(read, 0, "no huge pages are known by it")


def pool_sizes(tree: SysfsTree, directory: str) -> list[int]:
    """Return the page sizes in KiB that have a pool below a `hugepages` directory, ascending."""
    matches = map(_POOL.fullmatch, tree.names(directory))
    return sorted(int(match[1]) for match in matches if match is not None)
