"""The narrowest choice of CPUs on hosts whose cores, sockets or caches differ in size.

In go the free CPUs (bits), the number of CPUs asked for (at most as many as are free), and the
strategy. Out comes a set of that many free CPUs. It is never worse by the rules of `narrowest` than
what the kubelet's steps pack (`accumulator`). Groups differ in size where CPUs are offline or the
processor is a hybrid one.

An example: node 0 has four cores of one CPU, node 1 four cores of two CPUs. Each is a socket.

    node        0                1
    cores       0  1  2  3       4-5  6-7  8-9  10-11

- All CPUs are free, and 6 are asked for. Packing takes node 0 whole, since it fits, and then CPUs 4
  and 5: two nodes. The narrowest choice is 4-9: one node.
- Free are 0-8, and 5 are asked for. CPUs 4-8 are on one node, but CPU 8 is *beside a busy one*, and
  *needless*: the whole core 0 could replace it. The best choice is 0,4-7, on two nodes.
- Free are 0 and 4-11, and 3 are asked for in whole cores. CPUs 4-6 are on one node, but CPU 6 is
  *torn* from its core. The best choice is 0,4-5, on two nodes.

The words for the CPUs of a choice:

- **torn**: another CPU of the core is not chosen, so there is no whole core.
- **broken**: torn, and that other CPU is free, so another container may get it.
- **beside busy**: another CPU of the core is not free.
- **needless**: beside busy, although a whole free core could serve instead. Such a core is not
  chosen, and has no more CPUs than are beside busy ones.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Final

from agent.managers.cpu.accumulator import pack
from agent.managers.cpu.sockets import with_room
from agent.managers.cpu.uneven_cores import fewest_cores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.managers.cpu.strategy import Strategy
    from agent.managers.cpu.topology import CpuTopology, Groups


def narrowest(topology: CpuTopology, strategy: Strategy, free: int, count: int) -> int:
    """Return the best choice of `count` of the `free` CPUs (bits) that is found.

    The first of these rules by which two choices differ says which one is better:

    1. no CPUs are needless;
    2. the fewest CPUs are torn, where whole cores are asked for;
    3. the fewest NUMA nodes, then sockets, then caches under `prefer-align-cpus-by-uncorecache`,
       then cores.
    """
    request = _Request(topology, strategy, free, count)
    if strategy.spread:
        return _narrowest_spread(request)
    # 1. What the kubelet's steps pack, if that is evidently the best.
    packed = request.packed
    if request.is_evidently_narrowest(packed):
        return packed
    # 2. The best choice within some regions. None takes more CPUs beside busy ones than `packed`:
    #    a narrower choice is not worth sharing more cores with other containers.
    most = beside_busy(topology, free, packed)
    choices = [cpus for cpus in _choices(request) if beside_busy(topology, free, cpus) <= most]
    best = min(choices, key=request.width)
    # 3. The fewest cores of the whole host, if CPUs are still torn or needless. This choice may
    #    take more CPUs beside busy ones: rule 1 allows it only where no core could replace them.
    needless, torn, *_ = request.width(best)
    if not topology.cores_alike and (torn or (needless and not strategy.by_cache)):
        best = min((best, request.fewest_cores(free)), key=request.width)
    # 4. Fewer nodes than those of the best choice.
    for region in _fewer_nodes(request, best):
        inside = (request.pack(region), request.fewest_cores(region))
        choices = [cpus for cpus in inside if beside_busy(topology, free, cpus) <= most]
        best = min((best, *choices), key=request.width)
    return best


def _narrowest_spread(request: _Request) -> int:
    """Return the choice on the fewest nodes, then sockets, where CPUs are spread over cores.

    Rules 1 and 2 do not apply, since spreading takes parts of cores. But choices on more cores than
    the packed CPUs come last.
    """
    cores, most = request.topology.cores, touched(request.topology.cores, request.packed)

    def width(cpus: int) -> tuple[int, ...]:
        return (touched(cores, cpus) > most, *request.touched(cpus))

    packed = (request.packed, *map(request.pack, _fewest_groups(request)))
    best = min(packed, key=width)
    fewer = map(request.pack, _fewer_nodes(request, best))
    return min((best, *fewer), key=width)


def unbroken(topology: CpuTopology, free: int, cpus: int) -> int:
    """Return as many of the `free` CPUs (bits) in whole cores, if `cpus` break a core.

    They are on the same nodes and sockets. If these have too few whole cores, `cpus` are returned.
    """
    if not any(core.cpus & cpus and core.cpus & ~cpus & free for core in topology.cores):
        return cpus
    near = free & _groups_around((topology.nodes, topology.sockets), cpus)
    instead = fewest_cores(topology, near, cpus.bit_count(), whole=True)
    return cpus if torn_cpus(topology, instead) else instead


def tears_cores(topology: CpuTopology, strategy: Strategy, cpus: int) -> bool:
    """Return whether `cpus` tear a core although whole cores are asked for.

    Never where cores are alike: the CPU manager then offers only whole cores for such a request.
    """
    return strategy.whole_cores and not topology.cores_alike and torn_cpus(topology, cpus) > 0


def torn_cpus(topology: CpuTopology, cpus: int) -> int:
    """Return how many of `cpus` are torn."""
    return sum((core.cpus & cpus).bit_count() for core in topology.cores if core.cpus & ~cpus)


def beside_busy(topology: CpuTopology, free: int, cpus: int) -> int:
    """Return how many of `cpus` are beside busy ones."""
    return sum((core.cpus & cpus).bit_count() for core in topology.cores if core.cpus & ~free)


def has_needless(topology: CpuTopology, free: int, cpus: int) -> bool:
    """Return whether some of `cpus` are needless."""
    most = beside_busy(topology, free, cpus)
    return any(core.size <= most and not core.cpus & ~(free & ~cpus) for core in topology.cores)


def touched(groups: Groups, cpus: int) -> int:
    """Return on how many of the groups `cpus` are."""
    return sum(1 for group in groups if group.cpus & cpus)


class _Request:
    """A request for CPUs of an uneven host."""

    def __init__(self, topology: CpuTopology, strategy: Strategy, free: int, count: int) -> None:
        self.topology = topology
        self.strategy = strategy
        self.free = free
        self.count = count
        #: The kinds of groups of which a choice should touch few.
        self.kinds = [topology.nodes, topology.sockets]
        if strategy.by_cache:
            self.kinds.append(topology.uncores)
        #: What the kubelet's steps pack.
        self.packed = self.pack(free)

    def pack(self, region: int) -> int:
        """Return the CPUs that the kubelet's steps pack within a region."""
        return pack(self.topology, self.strategy, region, self.count)

    def fewest_cores(self, region: int) -> int:
        """Return the CPUs on the fewest cores within a region."""
        whole = self.strategy.whole_cores
        return fewest_cores(self.topology, region, self.count, whole=whole)

    def has_room(self, region: int) -> bool:
        """Return whether a region has as many CPUs as are asked for."""
        return region.bit_count() >= self.count

    def touched(self, cpus: int) -> list[int]:
        """Return how many groups of each kind a choice touches."""
        return [touched(groups, cpus) for groups in self.kinds]

    def width(self, cpus: int) -> tuple[int, ...]:
        """Return the key of a choice by the three rules; the smallest is the best."""
        near = self.free
        if self.strategy.by_cache:  # a core elsewhere replaces no CPU: caches matter more
            near &= _groups_around(self.kinds, cpus)
        needless = has_needless(self.topology, near, cpus)
        torn = torn_cpus(self.topology, cpus) if self.strategy.whole_cores else 0
        return needless, torn, *self.touched(cpus), touched(self.topology.cores, cpus)

    def is_evidently_narrowest(self, cpus: int) -> bool:
        """Return whether a choice meets rules 1 and 2 in one group of each kind and few cores.

        Few are as many as are needed if all cores were of the largest size.
        """
        largest = max(core.size for core in self.topology.cores)
        return (
            all(any(not cpus & ~group.cpus for group in groups) for groups in self.kinds)
            and (touched(self.topology.cores, cpus) - 1) * largest < cpus.bit_count()
            and not has_needless(self.topology, self.free, cpus)
            and not tears_cores(self.topology, self.strategy, cpus)
        )


#: Hosts of up to this many nodes have all their sets of nodes tried: 255 sets. On larger ones that
#: would take too long.
_MOST_NODES: Final = 8


def _choices(request: _Request) -> Iterator[int]:
    """Yield what the kubelet's steps pack within several regions, and the fewest cores there."""
    topology, free = request.topology, request.free
    # 1. All CPUs, and the fewest nodes and sockets that have room.
    regions = [free, *_fewest_groups(request)]
    # 2. The nodes of the packed CPUs without one of them, since that may not be needed.
    nodes = [node.cpus & free for node in topology.nodes if node.cpus & request.packed]
    regions += filter(request.has_room, [sum(nodes) & ~node for node in nodes[:_MOST_NODES]])
    # 3. Each node and cache, where whole cores are asked for: the fullest may have none.
    if request.strategy.whole_cores and len(topology.nodes) <= _MOST_NODES:
        caches = topology.uncores if request.strategy.by_cache else ()
        groups = (*topology.nodes, *caches)
        regions += filter(request.has_room, [group.cpus & free for group in groups])
    for region in dict.fromkeys(regions):
        packed = request.packed if region == free else request.pack(region)
        yield packed
        if not topology.cores_alike:
            yield request.fewest_cores(region & _groups_around(request.kinds, packed))


def _fewest_groups(request: _Request) -> Iterator[int]:
    """Yield the free CPUs (bits) of the fewest nodes and sockets that have room.

    Where a socket has several nodes, first those on the fewest sockets, as the kubelet; then the
    fewest nodes on any sockets, unless these are more sockets than those of the packed CPUs.
    """
    topology, free, count = request.topology, request.free, request.count
    nodes, sockets = topology.nodes, topology.sockets
    by_node = with_room(sockets, with_room(nodes, free, count), count)
    if not topology.numa_first:
        yield with_room(nodes, with_room(sockets, free, count), count)
    if topology.numa_first or touched(sockets, by_node) <= touched(sockets, request.packed):
        yield by_node


def _fewer_nodes(request: _Request, best: int) -> Iterator[int]:
    """Yield the free CPUs (bits) of each set of nodes with room that has fewer nodes than `best`.

    Where a socket has several nodes, the set is on no more sockets than the packed CPUs.
    """
    nodes, sockets = request.topology.nodes, request.topology.sockets
    if len(nodes) > _MOST_NODES:
        return
    most = len(sockets) if request.topology.numa_first else touched(sockets, request.packed)
    rooms = [node.cpus & request.free for node in nodes]
    for number in range(1, touched(nodes, best)):
        for region in map(sum, combinations(rooms, number)):
            if request.has_room(region) and touched(sockets, region) <= most:
                yield region


def _groups_around(kinds: Sequence[Groups], cpus: int) -> int:
    """Return the CPUs (bits) of the groups of every kind that `cpus` touch."""
    around = -1
    for groups in kinds:
        around &= sum(group.cpus for group in groups if group.cpus & cpus)
    return around
