"""The values of a document, each with its line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import collections.abc


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written, so that no digit is lost before it is understood."""

    text: str


@dataclass(frozen=True, slots=True)
class Unclear:
    """An unquoted scalar that YAML versions read differently (`on`, `010`, `12:30`)."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value; `line` counts from 1 and is None where the format gives none (JSON)."""

    value: bool | str | Number | Unclear | None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    items: tuple[Node, ...]
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Mapping:
    """An object with unique text keys in document order."""

    entries: collections.abc.Mapping[str, Node]
    line: int | None = None


Node: TypeAlias = Scalar | Sequence | Mapping
