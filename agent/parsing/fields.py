"""Read typed values out of a document and collect every mistake on the way."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from msgspec import Struct, field

from agent.parsing.errors import Mistake
from agent.parsing.nodes import (
    SHOWN_LENGTH,
    MappingNode,
    Number,
    ScalarNode,
    SequenceNode,
    Unclear,
    join,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.parsing.nodes import Node


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
    by_folded = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(word.lower()[:SHOWN_LENGTH], by_folded, n=1, cutoff=cutoff)
    return f'; did you mean "{by_folded[nearest[0]]}"?' if nearest else ""


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
