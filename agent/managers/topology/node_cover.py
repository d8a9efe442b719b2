"""Families of sets of NUMA nodes, defined by the amounts that a set must have."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class CoverDemand(NamedTuple):
    """An amount that a set of nodes must have; any unit, never negative.

    `places` are pairs of nodes (bits) and an amount: a set of nodes has the amount of every
    place that it touches. CPUs and memory have a place per node, a device may sit on several.
    """

    need: int
    places: tuple[tuple[int, int], ...]

    @classmethod
    def by_node(cls, need: int, amounts: Mapping[int, int]) -> Self:
        """Return a demand from the amount of each node (by id)."""
        return cls(
            need, tuple((1 << node, amount) for node, amount in amounts.items() if amount > 0)
        )

    def amount_of(self, nodes: int) -> int:
        """Return the amount that a set of nodes (bits) has."""
        return sum([amount for place, amount in self.places if place & nodes])

    def met_by(self, nodes: int) -> bool:
        """Return whether a set of nodes (bits) has enough."""
        return self.amount_of(nodes) >= self.need


class Cover(Struct, frozen=True):
    """All non-empty sets of nodes within `domain` that contain `required` and meet the demands.

    Upward closed: with a set, every larger one within the domain belongs to it.
    """

    domain: int
    demands: tuple[CoverDemand, ...]
    required: int = 0

    def holds(self, nodes: int) -> bool:
        """Return whether a set of nodes (bits) belongs to the family."""
        if not nodes or nodes & ~self.domain or self.required & ~nodes:
            return False
        return all(demand.met_by(nodes) for demand in self.demands)

    @property
    def is_empty(self) -> bool:
        """Whether no set of nodes suffices: not even all of the domain."""
        return not self.holds(self.domain)

    def containing(self, nodes: int) -> Cover:
        """Return the sets of the family that contain the given nodes."""
        return Cover(self.domain, self.demands, self.required | nodes)

    @staticmethod
    def common(covers: Iterable[Cover]) -> Cover:
        """Return the sets of nodes that belong to each of one or more families."""
        known = tuple(covers)
        demands = dict.fromkeys(demand for cover in known for demand in cover.demands)
        return Cover(
            reduce(and_, [cover.domain for cover in known]),
            tuple(demands),
            reduce(or_, [cover.required for cover in known]),
        )


class Span(NamedTuple):
    """Sets of nodes that touch exactly `touching` of some groups of nodes (bits), the sockets."""

    groups: tuple[int, ...]
    touching: int

    def touched(self, nodes: int) -> int:
        """Return how many groups a set of nodes touches."""
        return sum([1 for group in self.groups if group & nodes])

    def met_by(self, nodes: int) -> bool:
        """Return whether a set of nodes touches as many groups as it must."""
        return self.touched(nodes) == self.touching

    def cover(self, domain: int) -> Cover:
        """Return the half of the condition that is upward closed: enough groups are touched."""
        return Cover(
            domain, (CoverDemand(self.touching, tuple((group, 1) for group in self.groups)),)
        )
