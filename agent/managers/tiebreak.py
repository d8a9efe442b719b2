"""What orders sets of NUMA nodes of the same size: their distances, then their integer value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

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


@dataclass(frozen=True)
class Closest:
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


class Nearness:
    """How near some nodes are to one another: bounds and good guesses for a search among them.

    Nodes are told by their position, ascending; a set is a mask of node ids as everywhere.
    """

    def __init__(self, closest: Closest, nodes: Sequence[int]) -> None:
        ids = [bit.bit_length() - 1 for bit in nodes]
        self._nodes = nodes
        self._position = {bit: at for at, bit in enumerate(nodes)}
        self._rows = [[closest.there_and_back[one][other] for other in ids] for one in ids]
        self._alone: dict[tuple[int, int], list[int]] = {}
        self._sums: dict[int, tuple[int, list[int]]] = {0: (0, [0] * len(ids))}

    def at_least(self, chosen: int, first: int, more: int) -> int:
        """Return a lower bound, doubled, on the total of `chosen` and `more` of the first nodes.

        A node adds its distance to itself, to and from all that are chosen, and at least half of
        those to and from its closest partners among the first nodes.
        """
        total, sums = self._chosen(chosen)
        alone = self._alone_among(first, more)
        added = sorted([2 * near + own for near, own in zip(sums, alone, strict=False)])
        return 2 * total + sum(added[:more])

    def guess(self, size: int, is_allowed: Callable[[int], bool]) -> int | None:
        """Return the least total of the allowed sets made of one node and those closest to it."""
        guesses = []
        for at in range(len(self._nodes)):
            row = self._rows[at]
            nearest = sorted(range(len(row)), key=lambda other: (other != at, row[other]))
            nodes = sum([self._nodes[other] for other in nearest[:size]])
            if is_allowed(nodes):
                guesses.append(self._chosen(nodes)[0])
        return min(guesses, default=None)

    def _chosen(self, chosen: int) -> tuple[int, list[int]]:
        """Return the total of a set, and how far each node is from and to all of it."""
        known = self._sums.get(chosen)
        if known is None:
            lowest = chosen & -chosen
            total, sums = self._chosen(chosen ^ lowest)
            at = self._position[lowest]
            row = self._rows[at]
            known = total + sums[at] + row[at], [a + b for a, b in zip(sums, row, strict=True)]
            self._sums[chosen] = known
        return known

    def _alone_among(self, first: int, more: int) -> list[int]:
        known = self._alone.get((first, more))
        if known is None:
            known = []
            for at in range(first):
                others = self._rows[at][:first]
                own = others.pop(at)
                others.sort()
                known.append(2 * own + sum(others[: more - 1]))
            self._alone[first, more] = known
        return known
