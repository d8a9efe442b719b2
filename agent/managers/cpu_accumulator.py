"""Taking CPUs out of a free set, in the order in which the kubelet's CPU accumulator does.

The rules are those of `cpu_assignment.go` in kubelet v1.36. It compares the free CPUs of a core or
socket with the average core or socket of the host, and then takes all CPUs of the group. Where
cores or sockets differ in size that gives away CPUs that are not free, so here a group must also be
free as a whole. That is the only difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.cpu_topology import CpuGroup, CpuTopology, Groups


@final
class CpuAccumulator:
    """One request being served: `free` CPUs (bits), `need` more of them, `taken` so far."""

    __slots__ = ("free", "levels", "need", "taken", "topology")

    def __init__(self, topology: CpuTopology, free: int, need: int) -> None:
        self.topology = topology
        self.levels = topology.levels
        self.free = free
        self.need = need
        self.taken = 0

    def take_full_outer(self) -> None:
        """Take free NUMA nodes (or sockets, where these are the outer level) that fit."""
        if self.need < self.levels.smallest_outer:
            return
        size = None if self.topology.numa_first else self.topology.cpus_per_socket
        self._take_whole(rank(self.levels.outer, self.free), size)

    def take_full_inner(self) -> None:
        """Take free sockets (or NUMA nodes) that fit."""
        if self.need < self.levels.smallest_inner:
            return
        size = self.topology.cpus_per_socket if self.topology.numa_first else None
        self._take_whole(self._inner_order(self.free), size)

    def take_uncore(self) -> None:
        """Take free uncore caches that fit, then the rest from the first cache that can give it.

        This is `prefer-align-cpus-by-uncorecache` (KEP-4800). Caches stand in the order of their
        NUMA nodes, then by free CPUs, then by id.
        """
        order = self._uncore_order(self.free)
        if self.need >= self.topology.cpus_per_uncore:
            self._take_whole(order, None)
        for cache in order:
            if not self.need:
                return
            self._take_part_of(cache)

    def take_full_cores(self) -> None:
        """Take free physical cores that fit."""
        self._take_whole(self._whole_core_order(self.free), self.topology.cpus_per_core)

    def take_remaining_packed(self) -> None:
        """Take single CPUs, filling up the cores with the fewest free CPUs first."""
        for core in self._core_order(self.free):
            if not self.need:
                return
            self._take_lowest(core.cpus)

    def take_remaining_spread(self) -> None:
        """Take single CPUs by socket in ascending order (`distribute-cpus-across-cores`).

        It spreads over cores because Linux commonly numbers the first threads of all cores before
        the second ones.
        """
        inner = self.topology.numa_first
        sockets = self._inner_order(self.free) if inner else rank(self.levels.outer, self.free)
        for socket in sockets:
            if not self.need:
                return
            self._take_lowest(socket.cpus)

    def _claim(self, cpus: int) -> None:
        self.taken |= cpus
        self.free &= ~cpus
        self.need -= cpus.bit_count()

    def _take_lowest(self, cpus: int) -> None:
        self._claim(lowest(cpus & self.free, self.need))

    def _take_whole(self, groups: Iterable[CpuGroup], size: int | None) -> None:
        """Take those that are free and fit; with `size`, only groups of exactly this size."""
        for group in groups:
            if not self.need:
                return
            fits = group.size <= self.need and (size is None or group.size == size)
            if fits and not group.cpus & ~self.free:
                self._claim(group.cpus)

    def _take_part_of(self, cache: CpuGroup) -> None:
        """Take all that is needed from the cache's lowest cores, or nothing.

        The kubelet counts cores, not free CPUs: as many cores as the need would fill if they were
        free. When that gives more than is needed of an odd number, one CPU is dropped. A cache
        whose first cores are partly busy is passed over even if it has room (the kubelet's rule).
        """
        threads = self.topology.cpus_per_core
        cpus = self._free_in_first_cores(cache, -(-self.need // threads))
        if self.need % 2 and threads > 1 and cpus.bit_count() > self.need:
            cpus ^= 1 << cpus.bit_length() - 1
        if cpus.bit_count() == self.need:
            self._claim(cpus)

    def _free_in_first_cores(self, cache: CpuGroup, cores: int) -> int:
        inside = cache.cpus & self.free
        found = 0
        for core in self.topology.cores_in_uncore[cache.id]:
            if not cores:
                break
            if core.cpus & inside:
                found |= core.cpus & self.free
                cores -= 1
        return found

    def _inner_order(self, free: int) -> Iterator[CpuGroup]:
        return _nested(self.levels.outer, self.levels.inner_of, free)

    def _core_order(self, free: int) -> Iterator[CpuGroup]:
        for inner in self._inner_order(free):
            yield from rank(self.levels.cores_of[inner.id], free)

    def _whole_core_order(self, free: int) -> Iterator[CpuGroup]:
        """Yield only the cores that are free: the same order without counting all the others."""
        for inner in self._inner_order(free):
            cores = self.levels.cores_of[inner.id]
            order = cores if self.topology.cores_alike else sorted(cores, key=_by_size_and_id)
            yield from (core for core in order if not core.cpus & ~free)

    def _uncore_order(self, free: int) -> list[CpuGroup]:
        inside = self.topology.uncores_in_node
        nodes = rank_nodes(self.topology, free)
        return [cache for node in nodes for cache in rank(inside[node.id], free)]


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


def _by_size_and_id(group: CpuGroup) -> tuple[int, int]:
    return group.size, group.id
