"""How many CPUs each NUMA node gives when a request is distributed evenly over nodes.

The rule is `takeByTopologyNUMADistributed` of kubelet v1.36 (`distribute-cpus-across-numa`). The
fewest nodes are chosen that can give equal shares in whole groups; among sets of that many nodes
the one that leaves the free CPUs of **all** nodes with the smallest standard deviation. Groups that
do not divide evenly go round-robin to some of the chosen nodes, chosen by the same measure. Of
equal answers the first wins: sets in lexicographic order of the nodes' order, larger sets first.

What is left over in total is the same for every choice. So the deviation is smallest where

    gain = sum over the nodes of (2 * free - given) * given

is largest: an exact integer, where the kubelet rounds a float to three decimals (which can only
matter when nodes differ by more than a hundred CPUs).
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.managers.cpu.topology import rank_nodes
from agent.managers.topology.search_budget import SearchBudget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.managers.cpu.topology import CpuTopology

#: Up to so many nodes every set is compared where the best one is not evident, whatever that takes.
#: Above, that has to fit into a budget of work, a step for each deal; where it does not, the sets
#: with the most room are compared: a valid choice, and nearly always the same.
MAX_NODES_COMPARED: Final = 8


class NodeShare(NamedTuple):
    """One NUMA node (its free CPUs as bits) gives `base` CPUs, then `extra_groups` groups."""

    cpus: int
    base: int
    extra_groups: int


class Distribution(NamedTuple):
    """Which nodes (positions) give a group each how often, and how much that gains."""

    gain: int
    given: tuple[tuple[int, int], ...]


def distribution(
    topology: CpuTopology, free: int, count: int, group_size: int, work: SearchBudget | None = None
) -> list[NodeShare] | None:
    """Return what each node gives, or None when no set of nodes can give equal shares.

    `count` is a multiple of `group_size` (CPUs). Equal shares are whole groups, and the groups that
    remain are fewer than the nodes. `work` says afterwards whether a better choice may have been
    missed.
    """
    nodes = rank_nodes(topology, free)
    room = [(node.cpus & free).bit_count() for node in nodes]
    fewest, most = _node_range(topology, count, group_size, len(nodes))
    for number in range(fewest, most + 1):
        shares = _Shares(room, number, count // group_size, group_size)
        if shares.possible:
            chosen, deal = shares.best(work or SearchBudget())
            extra = dict(deal.given)
            return [
                NodeShare(nodes[index].cpus & free, shares.base, extra.get(index, 0))
                for index in chosen
            ]
    return None


def _node_range(
    topology: CpuTopology, count: int, group_size: int, nodes_with_room: int
) -> tuple[int, int]:
    """Return the fewest and the most nodes that could serve so many CPUs."""
    groups = count // group_size
    all_groups = _ceil_div(topology.counted.cpus, group_size)
    groups_per_node = _ceil_div(all_groups, topology.counted.nodes)
    return _ceil_div(groups, groups_per_node), min(groups, nodes_with_room)


class _Shares:
    """Serving `groups` groups from `number` of the nodes with the given room, equally."""

    def __init__(self, room: Sequence[int], number: int, groups: int, group_size: int) -> None:
        self.room = room
        self.number = number
        self.size = group_size
        self.base = groups // number * group_size
        self.remaining = groups % number
        self.roomiest = _largest(room, range(len(room)), number)

    @property
    def possible(self) -> bool:
        """If the nodes with the most room cannot, no others can."""
        left = [self.room[index] - self.base for index in self.roomiest]
        return min(left) >= 0 and sum(room // self.size for room in left) >= self.remaining

    def best(self, work: SearchBudget) -> tuple[Sequence[int], Distribution]:
        """Return the chosen nodes (positions in order) and how the remaining groups are dealt.

        More room never gains less from an equal share, so without a remainder the roomiest nodes
        are best. With one they still are if all the nodes that give an extra group have almost
        the same room: then one group from each is the best that any choice could do.
        """
        if not self.remaining:
            return self.roomiest, Distribution(0, ())
        singles = self._single_groups(self.roomiest)
        if singles is not None:
            left = [self.room[index] for index, _ in singles.given]
            if max(left) - min(left) <= self.size:
                return self.roomiest, singles
        if len(self.room) > MAX_NODES_COMPARED and not work.take(self._all_deals()):
            return self.roomiest, _most_gain(self._roomiest_deals())
        return self._best_of_all(_most_gain(self._deals(self.roomiest)))

    def _all_deals(self) -> int:
        """Return how many deals there are to compare, at most."""
        smaller = sum(comb(self.number, size) for size in range(1, self.remaining))
        return comb(len(self.room), self.number) * (1 + smaller)

    def _best_of_all(self, known: Distribution) -> tuple[Sequence[int], Distribution]:
        """Compare all sets of nodes that could gain at least as much as the roomiest one."""
        equal_gain = 2 * self.base
        bound = equal_gain * sum(self.room[index] for index in self.roomiest) + known.gain
        spare = self._most_that_extra_can_gain()
        best: tuple[int, Sequence[int], Distribution] | None = None
        for chosen in combinations(range(len(self.room)), self.number):
            equal = equal_gain * sum(self.room[index] for index in chosen)
            if equal + spare < bound or min(self.room[index] for index in chosen) < self.base:
                continue
            if sum((self.room[i] - self.base) // self.size for i in chosen) < self.remaining:
                continue
            deal = _most_gain(self._deals(chosen))
            if best is None or equal + deal.gain > best[0]:
                best = equal + deal.gain, chosen, deal
        return (self.roomiest, known) if best is None else best[1:]

    def _most_that_extra_can_gain(self) -> int:
        """Give the remaining groups one by one from where it gains most: nothing can gain more."""
        left = [self.room[index] - self.base for index in self.roomiest]
        gain = 0
        for _ in range(self.remaining):
            fullest = max(range(len(left)), key=left.__getitem__)
            gain += self.size * (2 * left[fullest] - self.size)
            left[fullest] -= self.size
        return gain

    def _deals(self, chosen: Sequence[int]) -> Iterator[Distribution | None]:
        """Yield the deals in order: from larger sets of nodes to smaller, then lexicographic."""
        able = [index for index in chosen if self.room[index] - self.base >= self.size]
        yield self._single_groups(chosen)
        for size in range(min(self.remaining - 1, len(able)), 0, -1):
            for members in combinations(able, size):
                yield self._round_robin(members)

    def _roomiest_deals(self) -> Iterator[Distribution | None]:
        """Yield the deals of the roomiest set, of each size that to the members with most room."""
        able = [index for index in self.roomiest if self.room[index] - self.base >= self.size]
        yield self._single_groups(self.roomiest)
        for size in range(min(self.remaining - 1, len(able)), 0, -1):
            yield self._round_robin(_largest(self.room, able, size))

    def _single_groups(self, chosen: Sequence[int]) -> Distribution | None:
        """Take one group from as many nodes as groups remain, from those with the most room."""
        able = [index for index in chosen if self.room[index] - self.base >= self.size]
        if len(able) < self.remaining:
            return None
        return self._deal((index, 1) for index in _largest(self.room, able, self.remaining))

    def _round_robin(self, members: Sequence[int]) -> Distribution | None:
        """Deal the groups one by one in order; a node without a whole group is passed over."""
        most = {index: (self.room[index] - self.base) // self.size for index in members}
        if sum(most.values()) < self.remaining:
            return None
        given = dict.fromkeys(members, 0)
        remaining = self.remaining
        while remaining:
            for index in members:
                if remaining and given[index] < most[index]:
                    given[index] += 1
                    remaining -= 1
        return self._deal(given.items())

    def _deal(self, given: Iterable[tuple[int, int]]) -> Distribution:
        dealt = tuple(given)
        gain = 0
        for index, groups in dealt:
            cpus = groups * self.size
            gain += cpus * (2 * (self.room[index] - self.base) - cpus)
        return Distribution(gain, dealt)


def _most_gain(deals: Iterable[Distribution | None]) -> Distribution:
    possible = [deal for deal in deals if deal is not None]
    return max(possible, key=lambda deal: deal.gain)  # the first of equal ones


def _largest(values: Sequence[int], positions: Iterable[int], number: int) -> list[int]:
    """Return the positions of the `number` largest values in order; of equal ones the first."""
    return sorted(sorted(positions, key=lambda index: (-values[index], index))[:number])


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)
