"""Topology hints: which sets of NUMA nodes can serve a request, and what orders these sets.

Every set of the nodes of a machine is listed in the order in which the kubelet tries them. Sets of
the same size are ordered by their distances, for which there is a lower bound whichever nodes are
chosen (`DistanceBound`), then by their integer value. The work for one choice among sets is bounded
(`SearchBudget`): counted in steps, never in time.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import combinations
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct

from agent.values import Size  # noqa: TC001  # msgspec reads it at run time
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Hint(NamedTuple):
    """One set of NUMA nodes that could serve a request (KEP-693, TopologyHint).

    `nodes` holds the node ids as bits; None means any node. It is a bare `int`, not a `Mask`,
    because a merge on eight nodes handles hundreds of them within a fraction of a millisecond.
    """

    nodes: Size | None
    preferred: bool


NO_AFFINITY = Hint(None, preferred=False)


class DistanceBound:
    """Distances as if nodes lay in a row of nested groups: never more than they really are.

    Of two neighbours in the row, the gap is the least distance between any node up to the one and
    any from the other on; two nodes are as far apart as the widest gap between them. On a machine
    whose nodes are numbered package by package that is the distance itself.

    An example: six nodes in two packages; 10 is a node's distance to itself, 24 there and back
    within a package, 42 between packages.

        gaps between neighbours:           0 -24- 1 -24- 2 -42- 3 -24- 4 -24- 5
        0, 1, 2, 3 nodes of a package:     at least 0, 10, 44, 102 in all
        four nodes of both, 3 + 1:         102 + 10 + 3 * 1 * 42 = 238
                            2 + 2:         44 + 44 + 2 * 2 * 42 = 256; so at least 238
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        size = len(rows)
        self._own = [rows[at][at] for at in range(size)]
        gaps = [min([min(row[at + 1 :]) for row in rows[: at + 1]]) for at in range(size - 1)]
        self._gaps = [*gaps, max(gaps, default=0)]
        self._least: dict[tuple[int, int], list[int]] = {}
        self._groups: dict[int, list[tuple[int, int, int]]] = {}

    def at_least(self, near: Sequence[int], first: int, more: int) -> int:
        """Return a lower bound on what `more` of the first nodes add to a total.

        `near` is by node its distance to and from those that are chosen already, all of them
        behind the first nodes.
        """
        totals = [0]
        for start, end, gap in self._seen_from(first):
            nearest = min(near[start:end])
            group = [t + n * nearest for n, t in enumerate(self._within(start, end))]
            totals = _combined(totals, group, gap, more)
        return totals[more]

    def _seen_from(self, first: int) -> list[tuple[int, int, int]]:
        """Return the first nodes in groups as they are seen from behind them, outwards.

        A group is its start, its end, and the distance of its nodes from all nearer nodes.
        """
        if first not in self._groups:
            groups, end = [], first
            while end:
                start, gap = end - 1, self._gaps[end - 1]
                while start and self._gaps[start - 1] <= gap:
                    start -= 1
                groups.append((start, end, gap))
                end = start
            self._groups[first] = groups
        return self._groups[first]

    def _within(self, start: int, end: int) -> list[int]:
        """Return the least total of 0, 1, 2, ... of the nodes from `start` to before `end`."""
        if end - start == 1:
            return [0, self._own[start]]
        if (start, end) not in self._least:
            gap = max(self._gaps[start : end - 1])
            middle = max([at for at in range(start, end - 1) if self._gaps[at] == gap]) + 1
            groups = self._within(start, middle), self._within(middle, end)
            self._least[start, end] = _combined(*groups, gap, end - start)
        return self._least[start, end]


def _combined(one: Sequence[int], other: Sequence[int], gap: int, most: int) -> list[int]:
    """Return the least total of 0, 1, 2, ... nodes of two groups that are `gap` apart."""
    size = min(most, len(one) + len(other) - 2)
    return [
        min(
            [
                one[n - k] + other[k] + (n - k) * k * gap
                for k in range(max(0, n - len(one) + 1), min(n, len(other) - 1) + 1)
            ]
        )
        for n in range(size + 1)
    ]


class Choice(NamedTuple):
    """One non-empty mask of nodes, its number in the `SubsetIndex`, and its hint either way."""

    mask: int
    number: int
    plain: Hint
    preferred: Hint


@lru_cache(maxsize=16)
def choices(nodes: int) -> tuple[Choice, ...]:
    """Return every non-empty subset of `nodes` (bits) in the order of `masks_by_size`."""
    number = SubsetIndex.of(nodes).number
    return tuple(
        Choice(mask, number[mask], Hint(mask, preferred=False), Hint(mask, preferred=True))
        for mask in masks_by_size(nodes)
    )


@lru_cache(maxsize=16)
def masks_by_size(nodes: int) -> tuple[int, ...]:
    """Return all non-empty subsets of `nodes` (bits), smaller ones first.

    Among equally large ones the order is lexicographic in the ascending node ids. There are
    2^n - 1 of them, so this is for the few nodes that matter to one request.
    """
    bits = [1 << node for node in iter_bits(nodes)]
    return tuple(
        sum(chosen) for size in range(1, len(bits) + 1) for chosen in combinations(bits, size)
    )


class SubsetIndex(Struct, frozen=True):
    """The subsets of `ones` (masks of a node), the empty one included, in ascending order.

    Bit *i* of a subset's number stands for the *i*-th lowest node, so numbers are dense even
    where node ids are not (POWER numbers its nodes 0, 8, 16, ...).
    """

    ones: tuple[int, ...]
    subsets: tuple[int, ...]
    number: dict[int, int]

    @staticmethod
    def of(nodes: int) -> SubsetIndex:
        """Return the index of all subsets of `nodes` (bits)."""
        return _subset_index(nodes)


@lru_cache(maxsize=16)
def _subset_index(nodes: int) -> SubsetIndex:
    ones = tuple(1 << node for node in iter_bits(nodes))
    subsets = tuple(subset_sums(ones))
    return SubsetIndex(ones, subsets, {subset: number for number, subset in enumerate(subsets)})


def subset_sums(values: Iterable[int]) -> list[int]:
    """Return the sum of `values` over every subset of positions, by the subset's number.

    Entry *s* of the 2^n entries sums the values at the set bits of *s*.
    """
    sums = [0]
    for value in values:
        sums += [total + value for total in sums]
    return sums


#: Steps of one choice. A step takes some ten microseconds; hardly any choice needs a fifth.
BUDGET: Final = 1_000


class SearchBudget(Struct):
    """The remaining steps; `exceeded` is set when a search stopped before its end.

    The same input always takes the same steps, so a decision stays a pure function.
    """

    left: int = BUDGET
    exceeded: bool = False

    def take(self, steps: int = 1) -> bool:
        """Spend steps; False when the budget does not allow it, which is noted."""
        if self.left < steps:
            self.exceeded = True
            return False
        self.left -= steps
        return True


#: ACPI SLIT distances: from node id, to node id, the way back and the node itself included.
Distances: TypeAlias = "Mapping[int, Mapping[int, int]]"
#: What orders masks with the same number of nodes; the smallest key wins.
Tiebreak: TypeAlias = "Callable[[int], tuple[int, ...]]"


def by_value(nodes: int) -> tuple[int, ...]:
    """Order by the mask as an integer: the set without the highest node first."""
    return (nodes,)


class Order(Struct, frozen=True):
    """The order of sets of NUMA nodes that can all serve a request.

    `tiebreak` orders sets of the same size; `sockets`, where `align-by-socket` asks for it, comes
    before the size: a set on one socket is better than a narrower one across two.
    """

    tiebreak: Tiebreak
    sockets: Tiebreak | None = None

    def of_preferred(self, nodes: int) -> tuple[int, ...]:
        """Return the key of a preferred set: its sockets, its size, then the tiebreak."""
        if self.sockets is None:
            return nodes.bit_count(), *self.tiebreak(nodes)
        return *self.sockets(nodes), nodes.bit_count(), *self.tiebreak(nodes)

    def of_equally_wide(self, nodes: int) -> tuple[int, ...]:
        """Return the key of a set among those of the same size."""
        if self.sockets is None:
            return self.tiebreak(nodes)
        return *self.sockets(nodes), *self.tiebreak(nodes)


class Closest(Struct, frozen=True, dict=True):
    """Order by the sum of distances (KEP-3545): of equally large sets that is the average."""

    distances: Distances

    def __call__(self, nodes: int) -> tuple[int, ...]:
        """Return the key of a set of nodes (bits)."""
        return self.total(nodes), nodes

    def total(self, nodes: int) -> int:
        """Return the distances from every node of a set (bits) to every one, added up."""
        members = tuple(iter_bits(nodes))
        return sum([self.distances[one][other] for one in members for other in members])

    @cached_property
    def there_and_back(self) -> Mapping[int, Mapping[int, int]]:
        """The distances of each pair of nodes both ways, of a node to itself once."""
        return {
            one: {
                other: row[other] if one == other else row[other] + self.distances[other][one]
                for other in row
                if other in self.distances
            }
            for one, row in self.distances.items()
        }

    @cached_property
    def alike(self) -> Mapping[int, int]:
        """For each node the lowest one that can take its place without changing any distance."""
        rows = self.there_and_back
        lowest: dict[int, int] = {}
        for node in sorted(rows):
            known = (one for one, first in lowest.items() if one == first)
            lowest[node] = next((one for one in known if _interchangeable(rows, one, node)), node)
        return lowest


def _interchangeable(rows: Mapping[int, Mapping[int, int]], one: int, other: int) -> bool:
    swapped = {one: other, other: one}
    here, there = rows[one], rows[other]
    return all(here.get(to) == there.get(swapped.get(to, to)) for to in rows)


class NodeDistances:
    """How near some nodes are to one another: bounds for a search among them.

    Nodes are identified by position, ascending; a set is a mask of node ids as everywhere.
    """

    def __init__(self, closest: Closest, nodes: Sequence[int]) -> None:
        ids = [bit.bit_length() - 1 for bit in nodes]
        self._nodes = nodes
        self._position = {bit: at for at, bit in enumerate(nodes)}
        self._rows = [[closest.there_and_back[one][other] for other in ids] for one in ids]
        self.alike = [closest.alike[one] for one in ids]
        self._nested = DistanceBound(self._rows)
        self._sums: dict[int, tuple[int, list[int]]] = {0: (0, [0] * len(ids))}
        self._first = [
            sum([sum(row[: at + 1]) for at, row in enumerate(self._rows[:first])])
            for first in range(len(ids) + 1)
        ]

    def at_least(self, chosen: int, first: int, more: int) -> int:
        """Return a lower bound on the total of `chosen` and `more` of the first nodes."""
        total, sums = self._chosen(chosen)
        if more == first:
            return total + sum(sums[:first]) + self._first[first]
        return total + self._nested.at_least(sums, first, more)

    def _chosen(self, chosen: int) -> tuple[int, list[int]]:
        """Return the total of a set, and how far each node is from and to all of it."""
        known = self._sums.get(chosen)
        if known is None:
            lowest = chosen & -chosen
            total, sums = self._chosen(chosen ^ lowest)
            at = self._position[lowest]
            row = self._rows[at]
            known = total + sums[at] + row[at], list(map(add, sums, row))
            self._sums[chosen] = known
        return known
