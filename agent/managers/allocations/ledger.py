"""The ledger: all allocations of a host, which are the whole state of the agent."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocations.shared_map import SharedMap
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.origin import Source
    from agent.pods.lifetime import Lifetime

SetT = TypeVar("SetT", Mask, frozenset[str])


class Taken(Struct, Generic[SetT], frozen=True):
    """Resources with an id each that allocations have.

    `ids` is the union over the allocations. `again` has, for ids that several allocations have, the
    ids that a second has, those that a third has, and so on: no decision allocates a resource
    twice, but a checkpoint or an import may.
    """

    ids: SetT
    again: tuple[SetT, ...] = ()

    def added(self, ids: SetT) -> Taken[SetT]:
        """Return the resources with those of one more allocation."""
        if not ids:
            return self
        twice = self.ids & ids
        again: list[SetT] = []
        for layer in self.again:
            again.append(layer | twice)
            twice &= layer
        if twice:
            again.append(twice)
        return Taken(self.ids | ids, tuple(again))

    def removed(self, ids: SetT) -> Taken[SetT]:
        """Return the resources without those that only this allocation has."""
        if not ids:
            return self
        again: list[SetT] = []
        for layer in reversed(self.again):
            kept = layer - ids
            ids -= layer
            if kept:
                again.append(kept)
        return Taken(self.ids - ids, tuple(reversed(again)))


class Ledger(Struct, frozen=True):
    """Every allocation, in the order of admission, and what the resource managers keep of them.

    `parts` are those of the managers, by their names; a manager without a part has allocated
    nothing. They are the managers' own: each has functions that read its part. The mapping no
    longer changes. `requests` is the sum of `PodAllocation.node_requests` (`total_requests`).
    """

    parts: Mapping[str, Any] = MappingProxyType({})
    allocations: Mapping[str, PodAllocation] = MappingProxyType({})
    requests: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def of(cls, allocations: Iterable[PodAllocation], parts: Mapping[str, Any]) -> Ledger:
        """Return the ledger of some allocations, in their order, with the parts of the managers."""
        by_uid = MappingProxyType({allocation.uid: allocation for allocation in allocations})
        return cls(parts, by_uid, total_requests(by_uid.values()))

    def with_allocation(
        self, allocation: PodAllocation, parts: Mapping[str, Any] | None = None
    ) -> Ledger:
        """Return this ledger with an allocation added, or replaced if the pod has one.

        `parts` are those of all managers; without them the allocation has the same resources as
        the one in its place.
        """
        former = self.allocations.get(allocation.uid)
        return Ledger(
            parts=self.parts if parts is None else parts,
            allocations=SharedMap.of(self.allocations).with_entry(allocation.uid, allocation),
            requests=self.requests_after(removed=former, added=allocation),
        )

    def with_source(self, uid: str, source: Source) -> Ledger:
        """Return this ledger with another source of a pod; raises `KeyError` for an unknown uid."""
        allocation = replace(self.allocations[uid], source=source)
        return replace(self, allocations=SharedMap.of(self.allocations).with_entry(uid, allocation))

    def with_lifetime(self, uid: str, lifetime: Lifetime) -> Ledger:
        """Return this ledger with another lifetime of a pod; raises `KeyError` as above."""
        allocation = replace(self.allocations[uid], lifetime=lifetime)
        return replace(self, allocations=SharedMap.of(self.allocations).with_entry(uid, allocation))

    def without_allocation(self, uid: str, parts: Mapping[str, Any]) -> Ledger:
        """Return this ledger without a pod, with new parts; raises `KeyError` for another uid."""
        return Ledger(
            parts=parts,
            allocations=SharedMap.of(self.allocations).without(uid),
            requests=self.requests_after(removed=self.allocations[uid]),
        )

    def with_part(self, manager: str, part: Any) -> Ledger:  # noqa: ANN401  (the manager's own type)
        """Return this ledger with another part of one manager."""
        return replace(self, parts=MappingProxyType({**self.parts, manager: part}))

    def requests_after(
        self, *, added: PodAllocation | None = None, removed: PodAllocation | None = None
    ) -> Mapping[str, int]:
        """Return `requests` after an allocation is added, removed or replaced.

        The cost does not depend on the number of allocations.
        """
        sums = dict(self.requests)
        for allocation, sign in ((removed, -1), (added, 1)):
            for name, amount in allocation.node_requests.items() if allocation is not None else ():
                sums[name] = sums.get(name, 0) + sign * amount
        return MappingProxyType({name: amount for name, amount in sums.items() if amount > 0})


def total_requests(allocations: Iterable[PodAllocation]) -> Mapping[str, int]:
    """Return the sum of `PodAllocation.node_requests` by resource, without zeros."""
    sums: dict[str, int] = {}
    for allocation in allocations:
        for name, amount in allocation.node_requests.items():
            sums[name] = sums.get(name, 0) + amount
    return MappingProxyType({name: amount for name, amount in sums.items() if amount})
