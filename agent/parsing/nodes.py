"""The values of a document, each with its line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Collection, Iterator

SHOWN_LENGTH: Final = 60
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class Number(Struct, frozen=True):
    """A number as it was written, so that no digit is lost before it is understood."""

    text: str


class Unclear(Struct, frozen=True):
    """An unquoted scalar that YAML versions read differently (`on`, `010`, `12:30`)."""

    text: str
    reason: str


class ScalarNode(Struct, frozen=True):
    """A single value; `line` counts from 1 and is None where the format gives none (JSON)."""

    value: bool | str | Number | Unclear | None
    line: int | None = None


class SequenceNode(Struct, frozen=True):
    """A list."""

    items: tuple[Node, ...]
    line: int | None = None


class MappingNode(Struct, frozen=True):
    """An object with unique text keys in document order."""

    entries: collections.abc.Mapping[str, Node]
    line: int | None = None


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode

#: A document without its places: what `json` could write.
Plain: TypeAlias = "bool | str | int | float | list[Plain] | dict[str, Plain] | None"


def plain(node: Node) -> Plain:
    """Return a document without its lines; numbers and unclear scalars as their text."""
    if isinstance(node, SequenceNode):
        return [plain(item) for item in node.items]
    if isinstance(node, MappingNode):
        return {key: plain(value) for key, value in node.entries.items()}
    value = node.value
    return value.text if isinstance(value, Number | Unclear) else value


def from_plain(value: Plain) -> Node:
    """Return a document without lines for values as `json` reads them."""
    if isinstance(value, dict):
        return MappingNode({key: from_plain(item) for key, item in value.items()})
    if isinstance(value, list):
        return SequenceNode(tuple(map(from_plain, value)))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ScalarNode(Number(str(value)))
    return ScalarNode(value)


def places(document: Node, paths: Collection[str]) -> dict[str, int | None]:
    """Return by path the line of the value there, or of the nearest value around it that exists.

    The document is gone through once, however many paths there are.
    """
    lines = _lines(document, max(map(len, paths), default=0))
    return {path: lines[_nearest(path, lines)] for path in paths}


def join(path: str, key: str) -> str:
    """Return the path of a mapping's entry; a key that is not a short word is put in brackets."""
    if len(key) > SHOWN_LENGTH or not _WORD.fullmatch(key):
        return f"{path}[{shown(key)}]"
    return f"{path}.{key}" if path else key


def shown(text: str) -> str:
    """Return a text in quotes, escaped and cut to a length that fits in a message."""
    cut = text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 3] + "..."
    return '"' + cut.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def _lines(document: Node, longest: int) -> dict[str, int | None]:
    """Return the line of every value whose path has at most so many characters."""
    lines: dict[str, int | None] = {"": document.line}
    stack: list[tuple[str, Node]] = [("", document)]
    while stack:
        path, node = stack.pop()
        for inner, value in _inside(path, node):
            if len(inner) <= longest:
                lines[inner] = value.line
                stack.append((inner, value))
    return lines


def _inside(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    if isinstance(node, MappingNode):
        return ((join(path, key), value) for key, value in node.entries.items())
    if isinstance(node, SequenceNode):
        return ((f"{path}[{index}]", item) for index, item in enumerate(node.items))
    return iter(())


def _nearest(path: str, known: collections.abc.Mapping[str, object]) -> str:
    while path not in known:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return path
