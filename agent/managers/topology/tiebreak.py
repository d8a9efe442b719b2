"""What orders sets of NUMA nodes of the same size: their distances, then their integer value."""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from agent.managers.topology.nested_distances import DistanceBound
from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
    """How near some nodes are to one another: bounds and good guesses for a search among them.

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

    def total(self, chosen: int, first: int) -> int:
        """Return the distances of `chosen` and all of the first nodes to one another, added up."""
        total, sums = self._chosen(chosen)
        return total + sum(sums[:first]) + self._first[first]

    def at_least(self, chosen: int, first: int, more: int) -> int:
        """Return a lower bound on the total of `chosen` and `more` of the first nodes."""
        total, sums = self._chosen(chosen)
        return total + self._nested.at_least(sums, first, more)

    def guess(self, size: int, is_allowed: Callable[[int], bool]) -> int | None:
        """Return the least total of the allowed sets made of one node and those closest to it."""
        allowed = filter(is_allowed, {around[size - 1] for around in self._around})
        return min([self._chosen(nodes)[0] for nodes in allowed], default=None)

    @cached_property
    def _around(self) -> list[list[int]]:
        """For each node the sets of it and its closest others, one, two, three, ... nodes."""
        sets = []
        for at, row in enumerate(self._rows):
            order = sorted(range(len(row)), key=lambda other: (other != at, row[other]))
            sets.append(list(accumulate([self._nodes[other] for other in order])))
        return sets

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
