"""An immutable mapping of which thousands of versions share what they have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Iterator

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

#: Changes that a version carries before they become a part of what is shared.
_MOST_CHANGES: Final = 64


@final
class SharedMap(Mapping[_Key, _Value], Generic[_Key, _Value]):
    """A mapping in the order of insertion, as a `dict` has it; a change makes a new version.

    A version is a base, which many versions share, and its few changes. So a change copies at most
    as many entries as changes are kept; once in as many changes a new base is made.
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
        """Return a version with these entries; the mapping given must not change any more."""
        return entries if isinstance(entries, cls) else cls(entries)

    def with_entry(self, key: _Key, value: _Value) -> Self:
        """Return the version with one more entry, or with another value in an entry's place."""
        if key in self._removed or len(self._changes) >= _MOST_CHANGES:
            return type(self)(MappingProxyType({**dict(self.items()), key: value}))
        return type(self)(self._base, {**self._changes, key: value}, self._removed)

    def without(self, key: _Key) -> Self:
        """Return the version without an entry; raises `KeyError` when there is none."""
        if key not in self:
            raise KeyError(key)
        changes = {other: value for other, value in self._changes.items() if other != key}
        removed = self._removed | {key} if key in self._base else self._removed
        if len(removed) >= _MOST_CHANGES:
            return type(self)(MappingProxyType(dict(type(self)(self._base, changes, removed))))
        return type(self)(self._base, changes, removed)

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
        new = sum(1 for key in self._changes if key not in self._base)
        return len(self._base) - len(self._removed) + new

    def __repr__(self) -> str:
        return f"SharedMap({dict(self.items())!r})"
