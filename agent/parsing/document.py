"""The nodes of a document, each with its line, and typed access that collects every mistake."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct, field

from agent.parsing.errors import Mistake

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Collection, Iterable, Iterator

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


class Field(Struct, frozen=True):
    """A node and the path that leads to it (`spec.containers[1].name`)."""

    path: str
    node: Node

    @property
    def is_null(self) -> bool:
        """Whether the document gives no value here (`key:` or `key: null`)."""
        return isinstance(self.node, ScalarNode) and self.node.value is None

    def child(self, key: str) -> Field | None:
        """Return the entry of a mapping; None when absent, null, or this is not a mapping."""
        if not isinstance(self.node, MappingNode):
            return None
        node = self.node.entries.get(key)
        if node is None or (isinstance(node, ScalarNode) and node.value is None):
            return None
        return Field(join(self.path, key), node)


class Reader(Struct):
    """Typed access to fields; a value of the wrong type is noted in `problems` and given as None.

    A null is an absent value, as in Kubernetes.
    """

    problems: list[Mistake] = field(default_factory=list)

    def reject(self, where: Field, message: str) -> None:
        """Note a mistake at a field."""
        self.problems.append(Mistake(where.path, message, where.node.line))

    def entries(self, where: Field) -> dict[str, Field]:
        """Return the entries of a mapping, without those that are null."""
        if where.is_null:
            return {}
        if not isinstance(where.node, MappingNode):
            self.reject(where, f"expected a mapping, found {describe(where.node)}")
            return {}
        found = {key: Field(join(where.path, key), n) for key, n in where.node.entries.items()}
        return {key: entry for key, entry in found.items() if not entry.is_null}

    def items(self, where: Field) -> Iterator[Field]:
        """Yield the items of a list."""
        if where.is_null:
            return
        if not isinstance(where.node, SequenceNode):
            self.reject(where, f"expected a list, found {describe(where.node)}")
            return
        for index, node in enumerate(where.node.items):
            yield Field(f"{where.path}[{index}]", node)

    def text(self, where: Field) -> str | None:
        """Return a text."""
        if isinstance(where.node, ScalarNode) and isinstance(where.node.value, str):
            return where.node.value
        hint = "; put it in quotes" if isinstance(where.node, ScalarNode) else ""
        self.reject(where, f"expected a text, found {describe(where.node)}{hint}")
        return None

    def amount(self, where: Field) -> str | None:
        """Return the text of something written as a number or as a text (`2`, `0.5`, `"500m"`)."""
        if isinstance(where.node, ScalarNode):
            value = where.node.value
            if isinstance(value, Number):
                return value.text
            if isinstance(value, str):
                return value
        unclear = isinstance(where.node, ScalarNode) and isinstance(where.node.value, Unclear)
        hint = "; put it in quotes if it is meant as it stands" if unclear else ""
        self.reject(where, f"expected a number or a text, found {describe(where.node)}{hint}")
        return None

    def boolean(self, where: Field) -> bool | None:
        """Return a boolean."""
        if isinstance(where.node, ScalarNode) and isinstance(where.node.value, bool):
            return where.node.value
        self.reject(where, f"expected true or false, found {describe(where.node)}")
        return None

    def is_boolean(self, where: Field) -> bool:
        """Return whether a field holds a boolean."""
        return isinstance(where.node, ScalarNode) and isinstance(where.node.value, bool)

    def integer(self, where: Field, lowest: int, highest: int) -> int | None:
        """Return a whole number within bounds, both included."""
        value = where.node.value if isinstance(where.node, ScalarNode) else None
        if isinstance(value, Number) and len(value.text) < SHOWN_LENGTH and _is_whole(value.text):
            number = int(value.text)
            if lowest <= number <= highest:
                return number
        found = describe(where.node)
        self.reject(where, f"expected a whole number from {lowest} to {highest}, found {found}")
        return None

    def choice(self, where: Field, allowed: Iterable[str]) -> str | None:
        """Return a text that is one of the allowed ones."""
        names = tuple(allowed)
        value = self.text(where)
        if value is None or value in names:
            return value
        self.reject(where, f"{shown(value)} is not one of {', '.join(names)}{guess(value, names)}")
        return None

    def reject_unknown(self, where: Field, known: Iterable[str]) -> None:
        """Note every key of a mapping that is not a known one, with the nearest known name."""
        names = tuple(known)
        if isinstance(where.node, MappingNode):
            for key, node in where.node.entries.items():
                if key not in names:
                    entry = Field(join(where.path, key), node)
                    self.reject(entry, f"unknown key {shown(key)}{guess(key, names)}")


def guess(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean "x"?` for the nearest known word, or nothing."""
    nearest = _nearest_word(word.lower()[:SHOWN_LENGTH], tuple(known), cutoff)
    return "" if nearest is None else f'; did you mean "{nearest}"?'


@lru_cache(maxsize=256)  # the pods of a host have the same keys again and again
def _nearest_word(word: str, known: tuple[str, ...], cutoff: float) -> str | None:
    by_folded = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(word, by_folded, n=1, cutoff=cutoff)
    return by_folded[nearest[0]] if nearest else None


def describe(node: Node) -> str:
    """Say what a node is, for a message."""
    if isinstance(node, ScalarNode):
        return _describe_scalar(node)
    return "a mapping" if isinstance(node, MappingNode) else "a list"


def _describe_scalar(scalar: ScalarNode) -> str:
    match scalar.value:
        case None:
            text = "nothing"
        case bool():
            text = f"the boolean {str(scalar.value).lower()}"
        case Number(text=number):
            text = f"the number {number[:SHOWN_LENGTH]}"
        case Unclear(text=unclear, reason=reason):
            text = f"{shown(unclear)} without quotes, which is unclear because {reason}"
        case words:
            text = f"the text {shown(words)}"
    return text


def _is_whole(text: str) -> bool:
    return text.lstrip("+-").isdigit()
