"""The online CPUs of a host, grouped as in the kubelet's CPU manager.

A group (core, socket, NUMA node, uncore cache) is a bit mask of CPU ids, so that "which CPUs of
this group are free" is one `&` and "how many" one `bit_count`. All tables are built once per host.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from msgspec import Struct

from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sysfs.host import Cpu, Host


class CpuTopologyError(ValueError):
    """The rows do not describe a machine; the text says which row and why."""


class CpuRow(NamedTuple):
    """Location of one logical CPU: host-wide ids of its core, socket, NUMA node, uncore cache."""

    cpu: int
    core: int
    socket: int
    node: int
    uncore: int


class CpuGroup(NamedTuple):
    """The CPUs of one core, socket, NUMA node or uncore cache: `cpus` as bits, `size` of them."""

    id: int
    cpus: int
    size: int


Groups: TypeAlias = tuple[CpuGroup, ...]


class Levels(NamedTuple):
    """NUMA nodes and sockets, the larger kind outside, and the cores of each inner group.

    `smallest_outer` and `smallest_inner` are the fewest CPUs that a group of the kind has.
    """

    outer: Groups
    inner_of: Mapping[int, Groups]
    cores_of: Mapping[int, Groups]
    smallest_outer: int
    smallest_inner: int


class CpuCounts(NamedTuple):
    """The number of CPUs and of each kind of group (the kubelet's NumCPUs, NumCores, ...)."""

    cpus: int
    cores: int
    sockets: int
    nodes: int
    uncores: int


class CpuTopology(Struct, frozen=True, dict=True):
    """All online CPUs of a host in ascending order, and the groups they form.

    Two topologies are equal when their rows and given counts are. Every tuple of groups is
    ascending by id.
    A group "in" another is one that shares at least one CPU with it; it is listed whole, as the
    kubelet does (a socket that spans two NUMA nodes is in both). `given` are counts that came with
    the rows; on a real host they are counted, so only a recorded decision needs to give them.
    """

    rows: tuple[CpuRow, ...]
    given: CpuCounts | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[tuple[int, int, int, int, int | None]],
        *,
        counts: CpuCounts | None = None,
    ) -> Self:
        """Build from `(cpu, core, socket, node, uncore)` rows with host-wide ids.

        An uncore of None (or -1) is not reported: the socket stands for it, as in the kubelet's
        `topology.Discover`. `counts` stand beside the rows in a recorded decision and may
        contradict them. Raises `CpuTopologyError` when there is no CPU, a CPU appears twice, or a
        CPU or node id is negative.
        """
        found: dict[int, CpuRow] = {}
        for cpu, core, socket, node, uncore in rows:
            if cpu < 0 or node < 0:
                raise CpuTopologyError(f"cpu {cpu} in node {node}: ids must not be negative")
            if cpu in found:
                raise CpuTopologyError(f"cpu {cpu} is listed twice")
            shared_cache = socket if uncore is None or uncore == -1 else uncore
            found[cpu] = CpuRow(cpu, core, socket, node, shared_cache)
        if not found:
            raise CpuTopologyError("a machine needs at least one online CPU, none is listed")
        return cls(tuple(found[cpu] for cpu in sorted(found)), counts)

    @classmethod
    def from_host(cls, host: Host) -> Self:
        """Build from the facts of a host; offline and withheld CPUs are ignored.

        A core is named by its lowest online thread (the kubelet's rule). CPUs of an unknown
        package (the kernel shows -1) belong to package 0, CPUs of no node (a kernel without NUMA)
        to node 0. CPUs without an uncore cache share one per package.
        """
        online = [cpu for cpu in host.cpus if cpu.id in host.usable]
        core_of = _lowest_members(online, lambda cpu: cpu.id if cpu.core is None else cpu.core)
        uncore_of = _uncore_ids(online)
        return cls.from_rows(
            (cpu.id, core_of[cpu.id], _package(cpu), cpu.node or 0, uncore_of[cpu.id])
            for cpu in online
        )

    @cached_property
    def all(self) -> Mask:
        """All CPUs."""
        return Mask.from_ids(row.cpu for row in self.rows)

    @cached_property
    def cores(self) -> Groups:
        """All physical cores."""
        return _groups(self.rows, lambda row: row.core)

    @cached_property
    def sockets(self) -> Groups:
        """All sockets (packages)."""
        return _groups(self.rows, lambda row: row.socket)

    @cached_property
    def nodes(self) -> Groups:
        """All NUMA nodes that have CPUs; the CPU manager ignores memory-only nodes."""
        return _groups(self.rows, lambda row: row.node)

    @cached_property
    def node_sizes(self) -> tuple[int, ...]:
        """How many CPUs each NUMA node has, the largest first."""
        return tuple(sorted([node.size for node in self.nodes], reverse=True))

    def fewest_nodes(self, request: int) -> int:
        """Return how many NUMA nodes some CPUs need on an empty host; all when they never fit."""
        total = 0
        for number, size in enumerate(self.node_sizes, start=1):
            total += size
            if total >= request:
                return number
        return self.counted.nodes

    @cached_property
    def uncores(self) -> Groups:
        """All uncore (last level) caches."""
        return _groups(self.rows, lambda row: row.uncore)

    @cached_property
    def cores_in_socket(self) -> Mapping[int, Groups]:
        """The cores of each socket."""
        return _within(self.rows, lambda row: row.socket, lambda row: row.core, self.cores)

    @cached_property
    def cores_in_node(self) -> Mapping[int, Groups]:
        """The cores of each NUMA node."""
        return _within(self.rows, lambda row: row.node, lambda row: row.core, self.cores)

    @cached_property
    def cores_in_uncore(self) -> Mapping[int, Groups]:
        """The cores of each uncore cache."""
        return _within(self.rows, lambda row: row.uncore, lambda row: row.core, self.cores)

    @cached_property
    def sockets_in_node(self) -> Mapping[int, Groups]:
        """The sockets of each NUMA node."""
        return _within(self.rows, lambda row: row.node, lambda row: row.socket, self.sockets)

    @cached_property
    def nodes_in_socket(self) -> Mapping[int, Groups]:
        """The NUMA nodes of each socket."""
        return _within(self.rows, lambda row: row.socket, lambda row: row.node, self.nodes)

    @cached_property
    def uncores_in_node(self) -> Mapping[int, Groups]:
        """The uncore caches of each NUMA node."""
        return _within(self.rows, lambda row: row.node, lambda row: row.uncore, self.uncores)

    @cached_property
    def node_of(self) -> Mapping[int, int]:
        """The NUMA node id of each CPU id."""
        return MappingProxyType({row.cpu: row.node for row in self.rows})

    @cached_property
    def cpus_of_node(self) -> Mapping[int, int]:
        """The CPU bits of each NUMA node id that has CPUs."""
        return MappingProxyType({node.id: node.cpus for node in self.nodes})

    @cached_property
    def node_bits(self) -> int:
        """The NUMA nodes that have CPUs, as bits."""
        return sum(1 << node.id for node in self.nodes)

    @cached_property
    def counted(self) -> CpuCounts:
        """The counts of the rows."""
        groups = (self.cores, self.sockets, self.nodes, self.uncores)
        return CpuCounts(len(self.rows), *map(len, groups))

    @property
    def counts(self) -> CpuCounts:
        """The counts that decisions use: the given counts, else those of the rows."""
        return self.given or self.counted

    @cached_property
    def numa_first(self) -> bool:
        """Whether NUMA nodes are the outer level: there are at least as many sockets as nodes."""
        return self.counts.sockets >= self.counts.nodes

    @cached_property
    def levels(self) -> Levels:
        """The order in which CPUs are taken by groups."""
        node, socket = (min(group.size for group in kind) for kind in (self.nodes, self.sockets))
        if self.numa_first:
            return Levels(self.nodes, self.sockets_in_node, self.cores_in_socket, node, socket)
        return Levels(self.sockets, self.nodes_in_socket, self.cores_in_node, socket, node)

    @cached_property
    def cores_alike(self) -> bool:
        """Whether all cores have the same number of CPUs (no hybrid cores, no offline threads)."""
        return _alike(self.cores)

    @cached_property
    def sockets_alike(self) -> bool:
        """Whether all sockets have the same number of CPUs."""
        return _alike(self.sockets)

    @cached_property
    def uncores_alike(self) -> bool:
        """Whether all uncore caches have the same number of CPUs."""
        return _alike(self.uncores)

    @cached_property
    def is_even(self) -> bool:
        """Whether cores, sockets and uncore caches have the same number of CPUs each."""
        return self.cores_alike and self.sockets_alike and self.uncores_alike

    @cached_property
    def cpus_per_core(self) -> int:
        """The kubelet's CPUsPerCore: the average, rounded down, so at least 1.

        Where the cores differ in size it says nothing about any one of them.
        """
        cpus, cores = self.counts.cpus, self.counts.cores
        return max(1, cpus // cores) if cores else 1

    @cached_property
    def first_threads(self) -> CpuTopology:
        """The same host with the lowest CPU of each core alone, whose siblings stay idle."""
        lowest = {core.cpus & -core.cpus for core in self.cores}
        return CpuTopology(tuple(row for row in self.rows if 1 << row.cpu in lowest))

    def cores_of(self, cpus: Mask) -> Mask:
        """Return all hardware threads of the cores that `cpus` touch."""
        bits = 0
        for core in self.cores:
            if core.cpus & cpus.bits:
                bits |= core.cpus
        return Mask(bits)

    def whole_cores_in(self, cpus: Mask) -> Mask:
        """Return the CPUs of the cores that lie in `cpus` with all of their threads."""
        outside = ~cpus.bits
        return Mask(sum([core.cpus for core in self.cores if not core.cpus & outside]))

    def nodes_of(self, cpus: Mask) -> Mask:
        """Return the ids of the NUMA nodes that `cpus` touch."""
        return Mask(sum(1 << node.id for node in self.nodes if node.cpus & cpus.bits))

    def cpus_in_nodes(self, nodes: Mask) -> Mask:
        """Return the CPUs of the given NUMA nodes; ids without CPUs add nothing."""
        bits = 0
        for node in self.nodes:
            if nodes.bits >> node.id & 1:
                bits |= node.cpus
        return Mask(bits)

    def cpus_in_sockets_of(self, nodes: Mask) -> Mask:
        """Return the CPUs of all sockets that the given NUMA nodes touch (`align-by-socket`)."""
        inside = self.cpus_in_nodes(nodes).bits
        bits = 0
        for socket in self.sockets:
            if socket.cpus & inside:
                bits |= socket.cpus
        return Mask(bits)


def _groups(rows: Iterable[CpuRow], key: Callable[[CpuRow], int]) -> Groups:
    members: defaultdict[int, int] = defaultdict(int)
    for row in rows:
        members[key(row)] |= 1 << row.cpu
    return tuple(CpuGroup(ident, cpus, cpus.bit_count()) for ident, cpus in sorted(members.items()))


def _alike(groups: Groups) -> bool:
    return len({group.size for group in groups}) == 1


def _within(
    rows: Iterable[CpuRow],
    outer: Callable[[CpuRow], int],
    inner: Callable[[CpuRow], int],
    groups: Groups,
) -> Mapping[int, Groups]:
    ids: defaultdict[int, set[int]] = defaultdict(set)
    for row in rows:
        ids[outer(row)].add(inner(row))
    by_id = {group.id: group for group in groups}
    return MappingProxyType(
        {ident: tuple(by_id[member] for member in sorted(ids[ident])) for ident in sorted(ids)}
    )


def _package(cpu: Cpu) -> int:
    return cpu.package if cpu.package is not None and cpu.package >= 0 else 0


def _lowest_members(cpus: Iterable[Cpu], key: Callable[[Cpu], int]) -> dict[int, int]:
    lowest: dict[int, int] = {}
    name: dict[int, int] = {}
    for cpu in sorted(cpus, key=lambda cpu: cpu.id):
        name[cpu.id] = lowest.setdefault(key(cpu), cpu.id)
    return name


def _uncore_ids(cpus: list[Cpu]) -> dict[int, int | None]:
    """Where only some CPUs report a cache, a package's other CPUs get an id no cache can have."""
    if all(cpu.uncore is None for cpu in cpus):
        return {cpu.id: None for cpu in cpus}
    uncached = _lowest_members((cpu for cpu in cpus if cpu.uncore is None), _package)
    return {cpu.id: uncached[cpu.id] if cpu.uncore is None else cpu.uncore for cpu in cpus}


def rank(groups: Groups, free: int) -> list[CpuGroup]:
    """Return the groups that have free CPUs: those with the fewest first, then by id."""
    counted = [((group.cpus & free).bit_count(), group) for group in groups]
    return [group for count, group in sorted(counted) if count]


def rank_nodes(topology: CpuTopology, free: int) -> list[CpuGroup]:
    """Return the NUMA nodes that have free CPUs in the order of taking.

    Where sockets are the outer level the nodes of one socket stand together.
    """
    if topology.numa_first:
        return rank(topology.nodes, free)
    order = _nested(topology.sockets, topology.nodes_in_socket, free)
    return list(dict.fromkeys(order))


def inner_order(topology: CpuTopology, free: int) -> Iterator[CpuGroup]:
    """Yield the groups of the inner level (sockets or nodes) that have free CPUs."""
    return _nested(topology.levels.outer, topology.levels.inner_of, free)


def core_order(topology: CpuTopology, free: int) -> Iterator[CpuGroup]:
    """Yield the cores that have free CPUs; one that lies in two inner groups comes twice."""
    for inner in inner_order(topology, free):
        yield from rank(topology.levels.cores_of[inner.id], free)


def _nested(outer: Groups, inner_of: Mapping[int, Groups], free: int) -> Iterator[CpuGroup]:
    for group in rank(outer, free):
        yield from rank(inner_of[group.id], free)


def lowest(cpus: int, count: int) -> int:
    """Return the `count` lowest members of `cpus`, or all when there are no more."""
    if cpus.bit_count() <= count:
        return cpus
    low, high = 0, cpus.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (cpus & ((1 << middle) - 1)).bit_count() < count:
            low = middle + 1
        else:
            high = middle
    return cpus & ((1 << low) - 1)
