"""Distances of NUMA nodes: which set of nodes is the closest, and bounds for a search for it.

`prefer-closest-numa-nodes` (KEP-3545) prefers, of sets with the same number of nodes, the one with
the smallest average distance: the one with the smallest sum (`Closest`).

A search among many nodes (`many_nodes.Search`) chooses a set node by node. It gives up a part of a
set if no choice of the other nodes can make the sum small enough. `NodeDistances` answers with a
lower bound: a number that is at most the smallest such sum.
"""

from __future__ import annotations

from functools import cached_property
from operator import add
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: ACPI SLIT distances by the node from which and the node to which they are. A node has a distance
#: to itself, and the way there may differ from the way back.
Distances: TypeAlias = "Mapping[int, Mapping[int, int]]"


class Closest(Struct, frozen=True, dict=True):
    """The order of sets with the same number of nodes: by the sum of distances, then the mask."""

    distances: Distances

    def __call__(self, nodes: int) -> tuple[int, ...]:
        """Return the key of a set of nodes (bits)."""
        return self.total(nodes), nodes

    def total(self, nodes: int) -> int:
        """Return the sum of the distances from each node of a set (bits) to each node of it."""
        members = tuple(iter_bits(nodes))
        return sum([self.distances[one][other] for one in members for other in members])

    @cached_property
    def there_and_back(self) -> Mapping[int, Mapping[int, int]]:
        """What each pair of nodes adds to a sum: both ways; a node by itself adds one distance."""
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
        """For each node the lowest node with which it can be exchanged: no sum changes."""
        rows = self.there_and_back
        lowest: dict[int, int] = {}
        for node in sorted(rows):
            firsts = (one for one, first in lowest.items() if one == first)
            lowest[node] = next((one for one in firsts if _interchangeable(rows, one, node)), node)
        return lowest


def _interchangeable(rows: Mapping[int, Mapping[int, int]], one: int, other: int) -> bool:
    swapped = {one: other, other: one}
    here, there = rows[one], rows[other]
    return all(here.get(to) == there.get(swapped.get(to, to)) for to in rows)


class NodeDistances:
    """The distances of the nodes among which a search chooses; `nodes` are masks of one node.

    Positions number these nodes in ascending order. A set is a mask of node ids, as everywhere.
    """

    def __init__(self, closest: Closest, nodes: Sequence[int]) -> None:
        ids = [bit.bit_length() - 1 for bit in nodes]
        self._nodes = nodes
        self._position = {bit: at for at, bit in enumerate(nodes)}
        self._rows = [[closest.there_and_back[one][other] for other in ids] for one in ids]
        self.alike = [closest.alike[one] for one in ids]
        self._bound = DistanceBound(self._rows)
        #: By set its total, and for each node the distances there and back to all of the set.
        self._sums: dict[int, tuple[int, list[int]]] = {0: (0, [0] * len(ids))}
        #: The totals of the first 0, 1, 2, ... nodes.
        self._totals_of_first = [
            sum([sum(row[: at + 1]) for at, row in enumerate(self._rows[:first])])
            for first in range(len(ids) + 1)
        ]

    def at_least(self, chosen: int, first: int, more: int) -> int:
        """Return a lower bound on the total of the set `chosen` with `more` of the `first` nodes.

        The bound is the total itself where all of the first nodes are added.
        """
        total, sums = self._sums_of(chosen)
        if more == first:
            return total + sum(sums[:first]) + self._totals_of_first[first]
        return total + self._bound.at_least(sums, first, more)

    def _sums_of(self, chosen: int) -> tuple[int, list[int]]:
        sums = self._sums.get(chosen)
        if sums is None:
            lowest = chosen & -chosen
            total, others = self._sums_of(chosen ^ lowest)
            at = self._position[lowest]
            row = self._rows[at]
            sums = total + others[at] + row[at], list(map(add, others, row))
            self._sums[chosen] = sums
        return sums


class DistanceBound:
    """Lower bounds on sums of distances, from a simpler host where no distance is larger.

    On the simpler host the nodes stand in a row, with a gap between neighbours. A gap is the
    smallest distance between a node on its left and a node on its right. Two nodes are as far apart
    as the widest gap between them. On a host whose nodes are numbered package by package these are
    the real distances.

    An example: six nodes in two packages. There and back it is 24 within a package and 42 between
    packages; a node by itself counts 10.

        gaps between neighbours:           0 -24- 1 -24- 2 -42- 3 -24- 4 -24- 5
        0, 1, 2, 3 nodes of a package:     at least 0, 10, 44, 102 in all
        four nodes of both, 3 + 1:         102 + 10 + 3 * 1 * 42 = 238
                            2 + 2:         44 + 44 + 2 * 2 * 42 = 256; so at least 238
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        size = len(rows)
        self._single = [rows[at][at] for at in range(size)]
        gaps = [min([min(row[at + 1 :]) for row in rows[: at + 1]]) for at in range(size - 1)]
        self._gaps = [*gaps, max(gaps, default=0)]
        self._sums: dict[tuple[int, int], list[int]] = {}
        self._groups: dict[int, list[tuple[int, int, int]]] = {}

    def at_least(self, near: Sequence[int], first: int, more: int) -> int:
        """Return a lower bound on what `more` of the `first` nodes add to a total.

        `near` has for each node the distances there and back to the nodes that are already chosen.
        All of those stand behind the first nodes.
        """
        sums = [0]
        for start, end, gap in self._groups_before(first):
            nearest = min(near[start:end])
            group = [total + n * nearest for n, total in enumerate(self._sums_of(start, end))]
            sums = _joined(sums, group, gap, more)
        return sums[more]

    def _groups_before(self, first: int) -> list[tuple[int, int, int]]:
        """Return groups of the `first` nodes, the last group first: start, end, and a gap.

        Each node of a group is that gap away from all first nodes behind the group.
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

    def _sums_of(self, start: int, end: int) -> list[int]:
        """Return the least totals of 0, 1, 2, ... of the nodes from `start` to before `end`."""
        if end - start == 1:
            return [0, self._single[start]]
        if (start, end) not in self._sums:
            gap = max(self._gaps[start : end - 1])
            middle = max([at for at in range(start, end - 1) if self._gaps[at] == gap]) + 1
            halves = self._sums_of(start, middle), self._sums_of(middle, end)
            self._sums[start, end] = _joined(*halves, gap, end - start)
        return self._sums[start, end]


def _joined(one: Sequence[int], other: Sequence[int], gap: int, most: int) -> list[int]:
    """Return the least totals of 0, 1, 2, ... up to `most` nodes of two groups, a gap apart."""
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
