"""The values of a document, each with its line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Iterator

SHOWN_LENGTH: Final = 60
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


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

#: A document without its places: what `json` could write.
Plain: TypeAlias = "bool | str | int | float | list[Plain] | dict[str, Plain] | None"


def plain(node: Node) -> Plain:
    """Return a document without its lines; numbers and unclear scalars as their text."""
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.entries.items()}
    value = node.value
    return value.text if isinstance(value, Number | Unclear) else value


def from_plain(value: Plain) -> Node:
    """Return a document without lines for values as `json` reads them."""
    if isinstance(value, dict):
        return Mapping({key: from_plain(item) for key, item in value.items()})
    if isinstance(value, list):
        return Sequence(tuple(map(from_plain, value)))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Scalar(Number(str(value)))
    return Scalar(value)


def place(document: Node, path: str) -> int | None:
    """Return the line of the value at a path, or of the nearest value around it that exists."""
    nearest = document.line
    depth = -1
    for found, line in _places(document, ""):
        if len(found) > depth and (path == found or path.startswith((f"{found}.", f"{found}["))):
            nearest, depth = line, len(found)
    return nearest


def join(path: str, key: str) -> str:
    """Return the path of a mapping's entry; a key that is no plain word is put in brackets."""
    if not _WORD.fullmatch(key):
        return f"{path}[{shown(key)}]"
    return f"{path}.{key}" if path else key


def shown(text: str) -> str:
    """Return a text in quotes, escaped and cut to a length that fits in a message."""
    cut = text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 3] + "..."
    return '"' + cut.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def _places(node: Node, path: str) -> Iterator[tuple[str, int | None]]:
    yield path, node.line
    if isinstance(node, Mapping):
        for key, value in node.entries.items():
            yield from _places(value, join(path, key))
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from _places(item, f"{path}[{index}]")
