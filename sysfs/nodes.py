"""NUMA nodes: their CPUs, memory, huge pages, distances, and what the memory is made of."""

from __future__ import annotations

import re
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sysfs.cpus import CPU_DIRECTORY
from sysfs.files import MalformedFile, MissingFile
from sysfs.host import HugePages, MemoryClass, Node
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sysfs.files import SysfsTree

NODE_DIRECTORY: Final = "sys/devices/system/node"
TIER_DIRECTORY: Final = "sys/devices/virtual/memory_tiering"
TIER: Final = "memory_tier"
DAX_DIRECTORY: Final = "sys/bus/dax/devices"
#: The driver that gives memory of a DAX device to the kernel as that of a node.
KMEM: Final = "kmem"
#: Nodes of devices that access memory themselves (ACPI generic initiators).
INITIATORS: Final = f"{NODE_DIRECTORY}/has_generic_initiator"
NVIDIA_DIRECTORY: Final = "proc/driver/nvidia/gpus"
NVIDIA_NODE: Final = re.compile(r"^Node:\s+([0-9]{1,4})$", re.ASCII | re.MULTILINE)
#: Of the nearest CPUs before that of the nearest initiators, which may be devices
#: (Documentation/admin-guide/mm/numaperf.rst).
BANDWIDTHS: Final = (
    "access1/initiators/read_bandwidth",
    "access0/initiators/read_bandwidth",
)
#: What the path of a DAX device has where its memory is persistent, and where CXL decodes it.
_PERSISTENT: Final = "/ndbus"
_DECODED: Final = "/decoder"
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
    tiers, backing = _tiers(tree), _backing(tree)
    return tuple(
        replace(_node(tree, node, ids, online), tier=tiers.get(node), backing=backing.get(node))
        for node in ids
    )


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


def dax_devices(tree: SysfsTree) -> dict[str, int]:
    """Return the nodes that DAX devices gave their memory to, by the device's path in the tree."""
    without = "no DAX device is known by it"
    found = {}
    for name in tree.optional(partial(tree.names, DAX_DIRECTORY), [], without):
        place = tree.resolved(f"{DAX_DIRECTORY}/{name}")
        if place is None:
            continue
        driver = tree.optional(partial(tree.link_name, f"{place}/driver"), None, without)
        node = tree.optional(partial(tree.find_integer, f"{place}/target_node"), None, without)
        if driver == KMEM and node is not None and node >= 0:
            found[place] = node
    return found


def nvidia_nodes(tree: SysfsTree) -> dict[str, int]:
    """Return the nodes of the memory of GPUs, by the file that names the node."""
    without = "no memory of a GPU is known by it"
    found = {}
    for name in tree.optional(partial(tree.names, NVIDIA_DIRECTORY), [], without):
        file = f"{NVIDIA_DIRECTORY}/{name}/numa_status"
        match = NVIDIA_NODE.search(tree.optional(partial(tree.find, file), None, without) or "")
        if match is not None:
            found[file] = int(match[1])
    return found


def _backing(tree: SysfsTree) -> dict[int, MemoryClass]:
    """Return by node the kind of device that its memory is from; CPUs do not count here."""
    without = "no memory of a device is known by it"
    found = dict.fromkeys(
        tree.optional(partial(tree.find_list, INITIATORS), None, without) or (), MemoryClass.GPU
    )
    found |= dict.fromkeys(nvidia_nodes(tree).values(), MemoryClass.GPU)
    for place, node in dax_devices(tree).items():
        if _PERSISTENT in place:
            found[node] = MemoryClass.PMEM
        elif _DECODED in place:
            found[node] = MemoryClass.CXL
    return found


def _bandwidth(tree: SysfsTree, directory: str) -> int | None:
    """Return MB/s; none where the firmware says nothing or 0 (ACPI HMAT)."""
    without = "the bandwidth is not known by it"
    for file in BANDWIDTHS:
        found = tree.optional(partial(tree.find_integer, f"{directory}/{file}"), None, without)
        if found is not None and found > 0:
            return found
    return None


def _node(tree: SysfsTree, node: int, ids: Sequence[int], online: Mask) -> Node:
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
        bandwidth=_bandwidth(tree, directory),
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
