"""The ledger: all allocations of a host, which are the whole state of the agent.

Its allocations are a `SharedMap`: an immutable mapping whose versions share their common entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, final

from msgspec import Struct
from msgspec.structs import replace

from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable, Iterator, ValuesView

    from agent.managers.allocation import PodAllocation, Source
    from agent.pods.model import Lifetime


_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

#: The most changes of a version before a new base is built.
_MOST_CHANGES: Final = 64
_ABSENT: Final = object()


@final
class SharedMap(Mapping[_Key, _Value], Generic[_Key, _Value]):
    """A mapping in the order of insertion, as a `dict` has it; a change makes a new version.

    A version is a base, shared by many versions, and a few changes. So a new version copies at most
    `_MOST_CHANGES` entries; after that many changes a new base is built.
    """

    __slots__ = ("_base", "_changes", "_removed")

    def __init__(
        self,
        base: Mapping[_Key, _Value] | None = None,
        changes: Mapping[_Key, _Value] | None = None,
        removed: frozenset[_Key] = frozenset(),
    ) -> None:
        self._base: Mapping[_Key, _Value] = {} if base is None else base
        self._changes: Mapping[_Key, _Value] = {} if changes is None else changes
        self._removed = removed

    @classmethod
    def of(cls, entries: Mapping[_Key, _Value]) -> Self:
        """Return a version with these entries; `entries` must no longer change."""
        return entries if isinstance(entries, cls) else cls(entries)

    def with_entry(self, key: _Key, value: _Value) -> Self:
        """Return the version with an entry added, or its value replaced."""
        if key in self._removed or len(self._changes) >= _MOST_CHANGES:
            merged = self._merged(self._removed)
            merged[key] = value
            return type(self)(merged)
        return type(self)(self._base, {**self._changes, key: value}, self._removed)

    def without(self, key: _Key) -> Self:
        """Return the version without an entry; raises `KeyError` when it is missing."""
        if key not in self:
            raise KeyError(key)
        removed = self._removed | {key} if key in self._base else self._removed
        if len(removed) >= _MOST_CHANGES:
            return type(self)(self._merged(removed | {key}))
        changes = self._changes
        if key in changes:
            changes = {**changes}
            del changes[key]
        return type(self)(self._base, changes, removed)

    def _merged(self, removed: frozenset[_Key]) -> dict[_Key, _Value]:
        """Return base and changes merged, in order; a copy without a Python step for each entry."""
        merged = {**self._base, **self._changes}
        for key in removed:
            merged.pop(key, None)
        return merged

    def __getitem__(self, key: _Key) -> _Value:
        if key in self._changes:
            return self._changes[key]
        if key in self._removed:
            raise KeyError(key)
        return self._base[key]

    def __iter__(self) -> Iterator[_Key]:
        yield from (key for key in self._base if key not in self._removed)
        yield from (key for key in self._changes if key not in self._base)

    def items(self) -> ItemsView[_Key, _Value]:
        """Return the entries, by way of a plain mapping, which is much faster to go through."""
        return self._whole().items()

    def values(self) -> ValuesView[_Value]:
        """Return the values; see `items`."""
        return self._whole().values()

    def _whole(self) -> Mapping[_Key, _Value]:
        changed = self._changes or self._removed
        return self._merged(self._removed) if changed else self._base

    def __len__(self) -> int:
        replaced = sum(map(self._base.__contains__, self._changes))
        return len(self._base) - len(self._removed) + len(self._changes) - replaced

    def __repr__(self) -> str:
        return f"SharedMap({dict(self.items())!r})"

    def apart_from(self, other: SharedMap[_Key, _Value]) -> Iterator[_Key] | None:
        """Yield the keys in which two versions may differ, None when they share no base."""
        if self._base is not other._base:
            return None
        return iter((*self._changes, *other._changes, *self._removed, *other._removed))


def differences(old: Mapping[_Key, _Value], new: Mapping[_Key, _Value]) -> list[_Key]:
    """Return the keys whose values are not identical in both, or that are in one only.

    In the order of `new`, then of `old`. For two versions of a `SharedMap` with the same base, only
    their changes are compared.
    """
    if old is new:
        return []
    near = (
        new.apart_from(old) if isinstance(new, SharedMap) and isinstance(old, SharedMap) else None
    )
    keys = dict.fromkeys((*new, *old) if near is None else near)
    return [key for key in keys if old.get(key, _ABSENT) is not new.get(key, _ABSENT)]


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

    def with_same_requests(self, allocation: PodAllocation) -> Ledger:
        """Return this ledger with another allocation of a pod that has the same resources.

        Its `node_requests` are those of the one in its place, too.
        """
        allocations = SharedMap.of(self.allocations).with_entry(allocation.uid, allocation)
        return replace(self, allocations=allocations)

    def with_source(self, uid: str, source: Source) -> Ledger:
        """Return this ledger with another source of a pod; raises `KeyError` for an unknown uid."""
        return self.with_same_requests(replace(self.allocations[uid], source=source))

    def with_lifetime(
        self,
        uid: str,
        lifetime: Lifetime,
        isolation: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Ledger:
        """Return this ledger with another lifetime of a pod; raises `KeyError` as above.

        `isolation` and `annotations` are the pod's, None leaves them as they are.
        """
        allocation = replace(self.allocations[uid], lifetime=lifetime)
        if isolation is not None:
            allocation = replace(allocation, isolation=isolation)
        if annotations is not None:
            allocation = replace(allocation, annotations=annotations)
        return self.with_same_requests(allocation)

    def with_unprepared(self, uid: str, why: str) -> Ledger:
        """Return this ledger with another `unprepared` of a pod; raises `KeyError` as above."""
        return self.with_same_requests(replace(self.allocations[uid], unprepared=why))

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
