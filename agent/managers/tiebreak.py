"""What orders sets of NUMA nodes of the same size: their distances, then their integer value."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TYPE_CHECKING, TypeAlias

from sysfs.mask import iter_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: ACPI SLIT distances: from node id, to node id, the way back and the node itself included.
Distances: TypeAlias = "Mapping[int, Mapping[int, int]]"
#: What orders masks with the same number of nodes; the smallest key wins.
Tiebreak: TypeAlias = "Callable[[int], tuple[int, ...]]"


def by_value(nodes: int) -> tuple[int, ...]:
    """Order by the mask as an integer: the set without the highest node first."""
    return (nodes,)


@dataclass(frozen=True, slots=True)
class Closest:
    """Order by the sum of distances (KEP-3545): of equally large sets that is the average."""

    distances: Distances
    _partners: dict[tuple[int, int], list[tuple[int, int]]] = field(
        default_factory=dict, compare=False
    )

    def __call__(self, nodes: int) -> tuple[int, ...]:
        """Return the key of a set of nodes (bits)."""
        return self.total(nodes), nodes

    def total(self, nodes: int) -> int:
        """Return the distances from every node of a set (bits) to every one, added up."""
        members = tuple(iter_bits(nodes))
        return sum([self.distances[one][other] for one in members for other in members])

    def at_least(self, chosen: int, others: int, more: int) -> int:
        """Return a lower bound, doubled, on the total of `chosen` and `more` nodes of `others`.

        A node adds its distance to itself, to and from all that are chosen, and at least half of
        those to and from its closest partners among the others.
        """
        members = tuple(iter_bits(chosen))
        added = [
            alone + 2 * sum([self._between(node, member) for member in members])
            for node, alone in self._alone(others, more)
        ]
        return 2 * self.total(chosen) + sum(nsmallest(more, added))

    def _alone(self, others: int, more: int) -> list[tuple[int, int]]:
        known = self._partners.get((others, more))
        if known is None:
            nodes = tuple(iter_bits(others))
            known = [
                (
                    node,
                    2 * self.distances[node][node]
                    + sum(
                        nsmallest(more - 1, [self._between(node, o) for o in nodes if o != node])
                    ),
                )
                for node in nodes
            ]
            self._partners[others, more] = known
        return known

    def _between(self, one: int, other: int) -> int:
        return self.distances[one][other] + self.distances[other][one]
