"""Taking CPUs out of a free set, in the order of the kubelet's CPU accumulator.

The rules are those of `cpu_assignment.go` in kubelet v1.36. It compares the free CPUs of a core or
socket with the average core or socket of the host, and then takes all CPUs of the group. Where
cores or sockets differ in size, that allocates CPUs that are not free, and skips groups that are
free. So here a group is taken if all CPUs that it has are free and no more than needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from agent.managers.cpu.topology import core_order, inner_order, lowest, rank, rank_nodes
from agent.managers.cpu.uneven_cores import fewest_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.managers.cpu.topology import CpuGroup, CpuTopology


@final
class CpuAccumulator:
    """One request being served: `free` CPUs (bits), `need` more of them, `taken` so far.

    `whole_cores` says that whole cores are asked for (`full-pcpus-only`).
    """

    __slots__ = ("free", "levels", "need", "taken", "topology", "whole_cores")

    def __init__(
        self, topology: CpuTopology, free: int, need: int, *, whole_cores: bool = False
    ) -> None:
        self.topology = topology
        self.levels = topology.levels
        self.free = free
        self.need = need
        self.taken = 0
        self.whole_cores = whole_cores

    def take_full_outer(self) -> None:
        """Take free NUMA nodes (or sockets, where these are the outer level) that fit."""
        if self.need >= self.levels.smallest_outer:
            self._take_whole(rank(self.levels.outer, self.free))

    def take_full_inner(self) -> None:
        """Take free sockets (or NUMA nodes) that fit."""
        if self.need >= self.levels.smallest_inner:
            self._take_whole(inner_order(self.topology, self.free))

    def take_uncore(self) -> None:
        """Take free uncore caches that fit, the rest from the first cache that has enough.

        This is `prefer-align-cpus-by-uncorecache` (KEP-4800). Caches stand in the order of their
        NUMA nodes, then by free CPUs, then by id. Where they differ in size, one cache that can
        give all is preferred to several, and large ones are taken before small ones.
        """
        order = self._uncore_order(self.free)
        while self.need:
            fitting = [
                cache for cache in order if cache.size <= self.need and not cache.cpus & ~self.free
            ]
            if not (fitting and self.topology.uncores_alike):
                self._take_all_from_one(order)
                if not (fitting and self.need):
                    return
            self._claim(max(fitting, key=lambda cache: cache.size).cpus)

    def take_full_cores(self) -> None:
        """Take free physical cores that fit; all cores are of one size."""
        self._take_whole(self._whole_core_order(self.free))

    def take_remaining_packed(self) -> None:
        """Take single CPUs, filling up the cores with the fewest free CPUs first."""
        for core in core_order(self.topology, self.free):
            if not self.need:
                return
            self._take_lowest(core.cpus)

    def take_fewest_cores(self) -> None:
        """Take all needed CPUs on as few cores as possible, where cores differ in size."""
        self._claim(fewest_cores(self.topology, self.free, self.need, whole=self.whole_cores))

    def take_remaining_spread(self) -> None:
        """Take single CPUs by socket in ascending order (`distribute-cpus-across-cores`).

        It spreads over cores because Linux commonly numbers the first threads of all cores before
        the second ones.
        """
        inner = self.topology.numa_first
        free = self.free
        sockets = inner_order(self.topology, free) if inner else rank(self.levels.outer, free)
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

    def _take_whole(self, groups: Iterable[CpuGroup]) -> None:
        for group in groups:
            if not self.need:
                return
            if group.size <= self.need and not group.cpus & ~self.free:
                self._claim(group.cpus)

    def _take_all_from_one(self, caches: Iterable[CpuGroup]) -> None:
        """Take all needed CPUs from the first cache that has enough, or nothing."""
        for cache in caches:
            inside = cache.cpus & self.free
            if inside.bit_count() == self.need and inside == cache.cpus:
                cpus = inside
            elif self.topology.cores_alike:
                cpus = self._free_in_first_cores(cache)
            elif inside.bit_count() >= self.need:
                cpus = fewest_cores(self.topology, inside, self.need, whole=self.whole_cores)
            else:
                continue
            if cpus.bit_count() == self.need:
                self._claim(cpus)
                return

    def _free_in_first_cores(self, cache: CpuGroup) -> int:
        """Return the free CPUs (bits) of the cache's first cores that have some.

        The kubelet counts cores, not free CPUs: as many cores as the need would fill if they were
        free. When that gives more than is needed of an odd number, one CPU is dropped. A cache
        whose first cores are partly busy is skipped even if it has room (the kubelet's rule).
        """
        threads = self.topology.cpus_per_core
        cores = -(-self.need // threads)
        inside = cache.cpus & self.free
        found = 0
        for core in self.topology.cores_in_uncore[cache.id]:
            if not cores:
                break
            if core.cpus & inside:
                found |= core.cpus & self.free
                cores -= 1
        if self.need % 2 and threads > 1 and found.bit_count() > self.need:
            found ^= 1 << found.bit_length() - 1
        return found

    def _whole_core_order(self, free: int) -> Iterator[CpuGroup]:
        """Yield only the cores that are free: the same order without counting all the others."""
        for inner in inner_order(self.topology, free):
            cores = self.levels.cores_of[inner.id]
            yield from (core for core in cores if not core.cpus & ~free)

    def _uncore_order(self, free: int) -> list[CpuGroup]:
        inside = self.topology.uncores_in_node
        nodes = rank_nodes(self.topology, free)
        return [cache for node in nodes for cache in rank(inside[node.id], free)]
