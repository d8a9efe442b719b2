"""Distribute a request over NUMA nodes in equal shares: `distribute-cpus-across-numa` (KEP-2902).

In go the free CPUs (bits), the number of CPUs asked for, and the size of a group: a core under
`full-pcpus-only`, else one CPU. Out comes how many CPUs each node gives, always in whole groups; no
CPUs are chosen here. Every node of the result gives the same number of groups, its base share. The
groups that do not divide evenly are the *extra* groups; they are fewer than the nodes.

An example: of three nodes with 8 CPUs each, 8, 6 and 3 are free. A pod asks for 10 CPUs in cores of
2, so 5 groups are to be distributed.

1. How many nodes? One has 4 groups, so at least 2 nodes are needed, and 2 can give equal shares:
   2 groups (4 CPUs) each, and 1 extra group.
2. Which nodes? Only nodes 0 and 1 have 4 free CPUs. Which gives the extra group? The kubelet
   balances the host: the free CPUs of *all* nodes shall differ as little as possible.

    extra group from   node 0   leaves 2, 2, 3
                       node 1   leaves 4, 0, 3

   So node 0 gives 6 CPUs, and node 1 gives 4.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.managers.cpu.topology import rank_nodes
from agent.managers.topology.hint import SearchBudget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.managers.cpu.topology import CpuTopology


class NodeShare(NamedTuple):
    """What one NUMA node gives: `base` CPUs and `extra_groups` groups of its `free` CPUs (bits)."""

    free: int
    base: int
    extra_groups: int


def equal_shares(
    topology: CpuTopology,
    free: int,
    count: int,
    group_size: int,
    work: SearchBudget | None = None,
    node_count: int = 0,
) -> list[NodeShare] | None:
    """Return what each node gives, or None when no set of nodes can give equal shares.

    `count` is a multiple of `group_size`. The fewest nodes that can give equal shares are chosen.
    With `node_count` that number of nodes is tried first, then larger numbers, then smaller ones;
    it is ignored if it exceeds the number of groups or of nodes with free CPUs. `work` says
    afterwards whether a better choice may have been missed.
    """
    nodes = rank_nodes(topology, free)
    room = [(node.cpus & free).bit_count() for node in nodes]
    fewest, most = _node_range(topology, count, group_size, len(nodes))
    first = max(fewest, node_count) if node_count <= most else fewest
    for number in (*range(first, most + 1), *range(first - 1, fewest - 1, -1)):
        shares = EqualShares(room, number, count // group_size, group_size)
        if shares.possible:
            chosen, deal = shares.best(work or SearchBudget())
            extra = dict(deal.extra_groups)
            return [
                NodeShare(nodes[index].cpus & free, shares.base, extra.get(index, 0))
                for index in chosen
            ]
    return None


def _node_range(
    topology: CpuTopology, count: int, group_size: int, nodes_with_room: int
) -> tuple[int, int]:
    """Return the fewest and the most nodes that could serve a request, as the kubelet counts.

    The fewest are as many as an empty host would need if all its nodes were of average size.
    """
    groups = count // group_size
    all_groups = _ceil_div(topology.counted.cpus, group_size)
    groups_per_node = _ceil_div(all_groups, topology.counted.nodes)
    return _ceil_div(groups, groups_per_node), min(groups, nodes_with_room)


#: The most nodes of a host on which all sets of nodes are compared in any case. On larger hosts the
#: budget must have a step for each deal. If it has not, only the nodes with the most room are
#: considered: a valid choice, and nearly always the same.
MAX_NODES_COMPARED: Final = 8


class Deal(NamedTuple):
    """Which nodes give the extra groups, and what these groups gain (`EqualShares`)."""

    gain: int
    #: Positions of nodes, and the number of extra groups that each gives.
    extra_groups: tuple[tuple[int, int], ...]


class EqualShares:
    """All ways in which `node_count` of the nodes give `groups` groups in equal shares.

    A node is its position in `room`. The best way leaves the free CPUs of all nodes with the
    smallest standard deviation. All ways leave the same number of CPUs, so the best is where

        gain = sum over the nodes of (2 * free - given) * given

    is largest: an exact integer. The kubelet rounds a float to three decimals. That differs only
    when nodes differ by more than a hundred CPUs.

    Of equal gains the first wins: sets of nodes in lexicographic order; of one set the deals in the
    order of `_deals`.
    """

    def __init__(self, room: Sequence[int], node_count: int, groups: int, group_size: int) -> None:
        #: The number of free CPUs of each node.
        self.room = room
        self.node_count = node_count
        self.group_size = group_size
        #: The CPUs that every chosen node gives.
        self.base = groups // node_count * group_size
        #: The number of extra groups.
        self.extra = groups % node_count
        #: The nodes with the most room, `node_count` of them.
        self.roomiest = _largest(room, range(len(room)), node_count)

    @property
    def possible(self) -> bool:
        """Whether any nodes can: if the nodes with the most room cannot, no others can."""
        left = [self.room[index] - self.base for index in self.roomiest]
        return min(left) >= 0 and sum(room // self.group_size for room in left) >= self.extra

    def best(self, work: SearchBudget) -> tuple[Sequence[int], Deal]:
        """Return the chosen nodes (ascending) and the deal of the extra groups."""
        # 1. Without extra groups the roomiest nodes are best: with more room an equal share never
        #    gains less.
        if not self.extra:
            return self.roomiest, Deal(0, ())
        # 2. With extra groups the roomiest nodes are still best if all of them that give an extra
        #    group have almost the same room: no choice gains more than one group from each.
        singles = self._single_groups(self.roomiest)
        if singles is not None:
            giving = [self.room[index] for index, _ in singles.extra_groups]
            if max(giving) - min(giving) <= self.group_size:
                return self.roomiest, singles
        # 3. Otherwise all sets of nodes and all deals are compared, unless there are too many.
        if len(self.room) > MAX_NODES_COMPARED and not work.take(self._all_deals()):
            return self.roomiest, _most_gain(self._roomiest_deals())
        return self._best_of_all(_most_gain(self._deals(self.roomiest)))

    def _all_deals(self) -> int:
        """Return an upper bound on how many deals there are to compare."""
        smaller = sum(comb(self.node_count, size) for size in range(1, self.extra))
        return comb(len(self.room), self.node_count) * (1 + smaller)

    def _best_of_all(self, known: Deal) -> tuple[Sequence[int], Deal]:
        """Compare the sets of nodes that could gain as much as the roomiest nodes do (`known`)."""
        # A base share gains 2 * base * room - base ** 2; the second part is equal for all nodes.
        base_gain = 2 * self.base
        bound = base_gain * sum(self.room[index] for index in self.roomiest) + known.gain
        most_extra = self._most_extra_gain()
        best: tuple[int, Sequence[int], Deal] | None = None
        for chosen in combinations(range(len(self.room)), self.node_count):
            gain = base_gain * sum(self.room[index] for index in chosen)
            if gain + most_extra < bound or min(self.room[index] for index in chosen) < self.base:
                continue
            groups = sum((self.room[index] - self.base) // self.group_size for index in chosen)
            if groups < self.extra:
                continue
            deal = _most_gain(self._deals(chosen))
            if best is None or gain + deal.gain > best[0]:
                best = gain + deal.gain, chosen, deal
        return (self.roomiest, known) if best is None else best[1:]

    def _most_extra_gain(self) -> int:
        """Return an upper bound: each extra group comes from the node where it gains most."""
        left = [self.room[index] - self.base for index in self.roomiest]
        gain = 0
        for _ in range(self.extra):
            fullest = max(range(len(left)), key=left.__getitem__)
            gain += self.group_size * (2 * left[fullest] - self.group_size)
            left[fullest] -= self.group_size
        return gain

    def _deals(self, chosen: Sequence[int]) -> Iterator[Deal | None]:
        """Yield the deals, None for an impossible one, in the kubelet's order.

        First one group each from the nodes with the most room, then round robin among each set of
        nodes: larger sets first, sets of one size in lexicographic order.
        """
        able = self._able(chosen)
        yield self._single_groups(chosen)
        for size in range(min(self.extra - 1, len(able)), 0, -1):
            for members in combinations(able, size):
                yield self._round_robin(members)

    def _roomiest_deals(self) -> Iterator[Deal | None]:
        """Yield deals of the roomiest nodes: of each size only the set with the most room."""
        able = self._able(self.roomiest)
        yield self._single_groups(self.roomiest)
        for size in range(min(self.extra - 1, len(able)), 0, -1):
            yield self._round_robin(_largest(self.room, able, size))

    def _able(self, chosen: Iterable[int]) -> list[int]:
        """Return the nodes that have a group left beside their base share."""
        least = self.base + self.group_size
        return [index for index in chosen if self.room[index] >= least]

    def _single_groups(self, chosen: Sequence[int]) -> Deal | None:
        """Take one extra group each from the nodes with the most room."""
        able = self._able(chosen)
        if len(able) < self.extra:
            return None
        return self._deal((index, 1) for index in _largest(self.room, able, self.extra))

    def _round_robin(self, members: Sequence[int]) -> Deal | None:
        """Take the extra groups one by one, in turn from the nodes that have one left."""
        most = {index: (self.room[index] - self.base) // self.group_size for index in members}
        if sum(most.values()) < self.extra:
            return None
        taken = dict.fromkeys(members, 0)
        remaining = self.extra
        while remaining:
            for index in members:
                if remaining and taken[index] < most[index]:
                    taken[index] += 1
                    remaining -= 1
        return self._deal(taken.items())

    def _deal(self, extra_groups: Iterable[tuple[int, int]]) -> Deal:
        dealt = tuple(extra_groups)
        gain = 0
        for index, groups in dealt:
            cpus = groups * self.group_size
            gain += cpus * (2 * (self.room[index] - self.base) - cpus)
        return Deal(gain, dealt)


def _most_gain(deals: Iterable[Deal | None]) -> Deal:
    possible = [deal for deal in deals if deal is not None]
    return max(possible, key=lambda deal: deal.gain)  # the first of equal ones


def _largest(values: Sequence[int], positions: Iterable[int], number: int) -> list[int]:
    """Return the positions of the `number` largest values, ascending; of equal values the first."""
    return sorted(sorted(positions, key=lambda index: (-values[index], index))[:number])


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)
