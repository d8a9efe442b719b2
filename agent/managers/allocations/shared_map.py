"""An immutable mapping whose versions share their common entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Iterator

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
