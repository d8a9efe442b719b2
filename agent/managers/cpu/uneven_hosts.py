"""Packing CPUs on hosts whose cores, sockets or caches differ in size.

The kubelet fills group after group: NUMA nodes, sockets, caches, cores. Where groups differ in
size, a small group that fits can push the rest onto another node, or fill small cores although
large cores are free. So the choice is compared with others, and the narrowest is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from agent.managers.cpu.sockets import with_room
from agent.managers.cpu.uneven_cores import fewest_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.managers.cpu.strategy import Strategy
    from agent.managers.cpu.topology import CpuTopology, Groups

    #: Takes the CPUs that are asked for out of free ones (both are bits).
    Fill: TypeAlias = Callable[[int], int]


#: Up to so many nodes each is tried by itself.
_MOST_NODES: Final = 8


def narrowest(topology: CpuTopology, strategy: Strategy, free: int, count: int, fill: Fill) -> int:
    """Return `count` of the `free` CPUs (bits): what `fill` takes, or a narrower choice.

    First come choices without a CPU beside a busy one of its core that a whole core could replace,
    then (with whole cores) those with the most CPUs in whole cores. Of these the narrowest is the
    one on the fewest NUMA nodes, then sockets, then caches where the strategy asks for them, then
    cores. Where CPUs are spread over cores, only nodes and sockets count, and no choice touches
    more cores than `fill`. No choice has more CPUs beside busy ones than `fill`, unless that
    avoids needless ones.
    """
    kinds = [topology.nodes, topology.sockets]
    if strategy.by_cache:
        kinds.append(topology.uncores)
    first = fill(free)
    if strategy.spread:
        inside = fill(_fewest_groups(topology, free, count))
        if _touched(topology.cores, inside) > _touched(topology.cores, first):
            return first
        return min((first, inside), key=lambda cpus: [_touched(groups, cpus) for groups in kinds])
    if _is_evidently_narrowest(topology, strategy, free, first, kinds):
        return first

    def width(cpus: int) -> tuple[int, ...]:
        near = free & _around(kinds, cpus) if strategy.by_cache else free
        torn = _torn(topology, cpus) if strategy.whole_cores else 0
        touched = (_touched(groups, cpus) for groups in (*kinds, topology.cores))
        return (_needless(topology, near, cpus), torn, *touched)

    most = _beside_busy(topology, free, first)
    choices = _choices(topology, strategy, free, count, fill, first, kinds)
    best = min((c for c in choices if _beside_busy(topology, free, c) <= most), key=width)
    if topology.cores_alike or strategy.by_cache or width(best)[:2] == (False, 0):
        return best
    anywhere = fewest_cores(topology, free, count, whole=strategy.whole_cores)
    return min((best, anywhere), key=width)


def unbroken(topology: CpuTopology, free: int, cpus: int) -> int:
    """Return as many of the `free` CPUs (bits) in whole cores, or `cpus` where that does not help.

    It is where `cpus` break a core that is free, of which another container would get the rest, and
    whole cores of the same nodes and sockets serve instead.
    """
    if not any(core.cpus & cpus and core.cpus & ~cpus & free for core in topology.cores):
        return cpus
    near = free & _around((topology.nodes, topology.sockets), cpus)
    instead = fewest_cores(topology, near, cpus.bit_count(), whole=True)
    return cpus if _torn(topology, instead) else instead


def _is_evidently_narrowest(
    topology: CpuTopology, strategy: Strategy, free: int, cpus: int, kinds: Sequence[Groups]
) -> bool:
    """Return whether `cpus` are in one group of each kind, on as few cores as the largest."""
    largest = max(core.size for core in topology.cores)
    return (
        all(any(not cpus & ~group.cpus for group in groups) for groups in kinds)
        and (_touched(topology.cores, cpus) - 1) * largest < cpus.bit_count()
        and not _needless(topology, free, cpus)
        and not (strategy.whole_cores and _torn(topology, cpus))
    )


def _choices(
    topology: CpuTopology,
    strategy: Strategy,
    free: int,
    count: int,
    fill: Fill,
    first: int,
    kinds: Sequence[Groups],
) -> Iterator[int]:
    """Yield what `fill` takes of all and of the fewest groups, and on these groups by core.

    Where whole cores are asked for each node that has room counts: the fullest may have none.
    """
    regions = [free, _fewest_groups(topology, free, count)]
    if strategy.whole_cores and len(topology.nodes) <= _MOST_NODES:
        inside = [node.cpus & free for node in topology.nodes]
        regions += [cpus for cpus in inside if cpus.bit_count() >= count]
    for region in dict.fromkeys(regions):
        filled = first if region == free else fill(region)
        yield filled
        if not topology.cores_alike:
            around = region & _around(kinds, filled)
            yield fewest_cores(topology, around, count, whole=strategy.whole_cores)


def _fewest_groups(topology: CpuTopology, free: int, count: int) -> int:
    """Return the free CPUs (bits) of the fewest nodes and sockets that have room for `count`."""
    levels = (topology.nodes, topology.sockets)
    for groups in levels if topology.numa_first else reversed(levels):
        free = with_room(groups, free, count)
    return free


def _around(kinds: Sequence[Groups], cpus: int) -> int:
    """Return the CPUs (bits) of the groups of every kind that `cpus` (bits) touch."""
    inside = -1
    for groups in kinds:
        inside &= sum(group.cpus for group in groups if group.cpus & cpus)
    return inside


def _touched(groups: Groups, cpus: int) -> int:
    return sum(1 for group in groups if group.cpus & cpus)


def _torn(topology: CpuTopology, cpus: int) -> int:
    """Return how many CPUs are on cores of which others are not chosen."""
    return sum((core.cpus & cpus).bit_count() for core in topology.cores if core.cpus & ~cpus)


def _needless(topology: CpuTopology, free: int, cpus: int) -> bool:
    """Return whether CPUs are beside busy ones of a core though a whole core could replace them.

    That core is free, not chosen, and has no more CPUs than they are: none would be left over.
    """
    beside_busy = _beside_busy(topology, free, cpus)
    return any(
        core.size <= beside_busy and not core.cpus & ~(free & ~cpus) for core in topology.cores
    )


def _beside_busy(topology: CpuTopology, free: int, cpus: int) -> int:
    """Return how many CPUs are on cores of which others are not free."""
    return sum((core.cpus & cpus).bit_count() for core in topology.cores if core.cpus & ~free)
