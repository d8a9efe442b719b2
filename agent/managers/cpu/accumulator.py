"""Pack a request: take CPUs group by group until there are enough.

In go the free CPUs (bits), the number of CPUs asked for (at most as many as are free), and the
strategy. Out comes a set of that many free CPUs. Each step of `pack` only adds CPUs, and leaves
what is still needed to the next step. A group of CPUs is a NUMA node, socket, uncore cache or core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from agent.managers.cpu.topology import core_order, inner_order, lowest, rank, rank_nodes
from agent.managers.cpu.uneven_cores import fewest_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.managers.cpu.strategy import Strategy
    from agent.managers.cpu.topology import CpuGroup, CpuTopology


def pack(topology: CpuTopology, strategy: Strategy, free: int, count: int) -> int:
    """Return `count` of the `free` CPUs (bits), as the kubelet's `takeByTopologyNUMAPacked`.

    Every step takes from the fullest groups first, so that emptier groups stay whole.
    """
    request = CpuAccumulator(topology, free, count, whole_cores=strategy.whole_cores)
    # 1. and 2. Whole NUMA nodes and whole sockets; the kind that contains the other comes first.
    steps = [request.take_full_outer, request.take_full_inner]
    # 3. Whole uncore caches (KEP-4800).
    if strategy.by_cache:
        steps.append(request.take_uncore)
    # 4. Whole cores, unless CPUs are to be spread over cores. 5. Single CPUs.
    if strategy.spread and strategy.core_by_core:
        steps.append(request.take_core_by_core)
    elif strategy.spread:
        steps.append(request.take_by_number)
    elif topology.cores_alike:
        steps += [request.take_full_cores, request.take_single]
    else:  # whole cores of several sizes have to be weighed against each other
        steps.append(request.take_fewest_cores)
    for step in steps:
        if request.need:
            step()
    return request.taken


@final
class CpuAccumulator:
    """A request while it is packed (kubelet `cpuAccumulator`).

    A whole group is taken if all its CPUs are free, and if it has no more CPUs than are needed. The
    kubelet counts whether as many CPUs are free as an average group has. Where groups differ in
    size, it therefore takes CPUs that are not free, and skips groups that are.
    """

    __slots__ = ("free", "levels", "need", "taken", "topology", "whole_cores")

    def __init__(
        self, topology: CpuTopology, free: int, need: int, *, whole_cores: bool = False
    ) -> None:
        self.topology = topology
        self.levels = topology.levels
        #: Prefer whole cores, where cores differ in size.
        self.whole_cores = whole_cores
        #: The CPUs (bits) that can still be taken.
        self.free = free
        #: The number of CPUs that are still to be taken.
        self.need = need
        #: The CPUs (bits) taken so far.
        self.taken = 0

    def take_full_outer(self) -> None:
        """Take whole NUMA nodes, or sockets where these contain the nodes."""
        if self.need >= self.levels.smallest_outer:
            self._take_whole(rank(self.levels.outer, self.free))

    def take_full_inner(self) -> None:
        """Take whole sockets, or NUMA nodes where sockets contain these."""
        if self.need >= self.levels.smallest_inner:
            self._take_whole(inner_order(self.topology, self.free))

    def take_uncore(self) -> None:
        """Take whole uncore caches, then all that is still needed from one cache.

        Caches come in the order of their NUMA nodes, then by free CPUs, then by id. Where caches
        differ in size, large ones come before small ones. One cache that has all that is needed
        is then preferred to several whole ones.
        """
        order = self._uncore_order()
        while self.need:
            whole = [
                cache for cache in order if cache.size <= self.need and not cache.cpus & ~self.free
            ]
            if not whole or not self.topology.uncores_alike:
                self._take_all_from_one(order)
            if not whole or not self.need:
                return
            self._claim(max(whole, key=lambda cache: cache.size).cpus)  # of equal ones the first

    def take_full_cores(self) -> None:
        """Take whole physical cores."""
        self._take_whole(self._whole_cores())

    def take_single(self) -> None:
        """Take single CPUs, from the cores with the fewest free CPUs first."""
        for core in core_order(self.topology, self.free):
            if not self.need:
                return
            self._take_lowest(core.cpus)

    def take_fewest_cores(self) -> None:
        """Take all that is needed on as few cores as possible, where cores differ in size."""
        self._claim(fewest_cores(self.topology, self.free, self.need, whole=self.whole_cores))

    def take_by_number(self) -> None:
        """Take single CPUs socket by socket, in ascending order (`distribute-cpus-across-cores`).

        These are on different cores, because Linux commonly numbers the first threads of all cores
        before the second ones. The kubelet relies on it up to the version that has
        `VersionRules.spreading_goes_core_by_core`.
        """
        for socket in self._socket_order():
            if not self.need:
                return
            self._take_lowest(socket.cpus)

    def take_core_by_core(self) -> None:
        """Take single CPUs socket by socket, one of each core in turn.

        The cores with the fewest free CPUs come first. The kubelet does so from the version on
        that has `VersionRules.spreading_goes_core_by_core`.
        """
        for socket in self._socket_order():
            cores = rank(self.topology.cores_in_socket[socket.id], self.free)
            while self.need and self.free & socket.cpus:
                for core in cores:
                    if not self.need:
                        return
                    inside = core.cpus & self.free
                    self._claim(inside & -inside)

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
        """Take all that is needed from the first cache that has it, or nothing."""
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

        Follows the kubelet, which counts cores, not free CPUs: for 5 CPUs it takes all free CPUs of
        3 cores of 2 threads. So a cache whose first cores are partly busy is skipped, even if it
        has room. If the number needed is odd and the cores have more CPUs, the highest CPU is left
        out.
        """
        threads = self.topology.cpus_per_core
        cores = -(-self.need // threads)
        inside = cache.cpus & self.free
        cpus = 0
        for core in self.topology.cores_in_uncore[cache.id]:
            if not cores:
                break
            if core.cpus & inside:
                cpus |= core.cpus & self.free
                cores -= 1
        if self.need % 2 and threads > 1 and cpus.bit_count() > self.need:
            cpus ^= 1 << cpus.bit_length() - 1
        return cpus

    def _socket_order(self) -> Iterable[CpuGroup]:
        if self.topology.numa_first:
            return inner_order(self.topology, self.free)
        return rank(self.levels.outer, self.free)

    def _uncore_order(self) -> list[CpuGroup]:
        caches = self.topology.uncores_in_node
        nodes = rank_nodes(self.topology, self.free)
        return [cache for node in nodes for cache in rank(caches[node.id], self.free)]

    def _whole_cores(self) -> Iterator[CpuGroup]:
        """Yield the cores that are free as a whole, as `core_order` but without the other cores."""
        free = self.free
        for inner in inner_order(self.topology, free):
            cores = self.levels.cores_of[inner.id]
            yield from (core for core in cores if not core.cpus & ~free)
