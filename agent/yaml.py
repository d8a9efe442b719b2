"""One YAML or JSON document as nodes that know their line, and typed access that collects mistakes.

PyYAML's C parser is used for its events only: nothing is constructed from tags, anchors and
aliases are rejected, and nesting, size and duplicates are checked here. A text that begins with
`{` is JSON, as for kubectl. What an unquoted scalar means is YAML 1.2's reading, where no other
version disagrees.
"""

from __future__ import annotations

import difflib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, TypeAlias, cast

import yaml
from msgspec import Struct, field
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Callable, Collection, Iterable, Iterator

    from yaml.events import Event


#: The most mistakes of one document that are reported: a text can have thousands.
MISTAKES_REPORTED: Final = 100


class Mistake(Struct, frozen=True):
    """One mistake: `path` names the field (`spec.containers[0].name`), or is "".

    `line` is that of the manifest, from 1, null where the mistake is on no line.
    """

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        return f"{place}{self.path}: {self.message}" if self.path else f"{place}{self.message}"


@dataclass
class DocumentError(Exception):
    """A document was rejected: `source` names it, `problems` are all mistakes in document order.

    Its text has the first 100 of them, and how many there are.
    """

    source: str
    problems: tuple[Mistake, ...]

    what: ClassVar[str] = "document"

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.source}: {self.problems[0]}"
        count = len(self.problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems[:MISTAKES_REPORTED])
        more = count - MISTAKES_REPORTED
        rest = f"\n  and {more} more" if more > 0 else ""
        return f"{self.source}: {count} mistakes in this {self.what}{lines}{rest}"


SHOWN_LENGTH: Final = 60
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class Number(Struct, frozen=True):
    """A number as it was written, so that no digit is lost before it is understood."""

    text: str


class Unclear(Struct, frozen=True):
    """An unquoted scalar that YAML versions read differently (`on`, `010`, `12:30`)."""

    text: str
    reason: str


Scalar: TypeAlias = bool | str | Number | Unclear | None


class ScalarNode(Struct, frozen=True):
    """A single value; `line` counts from 1 and is None where the format gives none (JSON)."""

    value: Scalar
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
    def value(self) -> Scalar:
        """The value of a scalar; None for a mapping and a list, too."""
        return self.node.value if isinstance(self.node, ScalarNode) else None

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


def guesses(cutoff: float = 0.6) -> Callable[[str, Iterable[str]], str]:
    """Return `guess` for the mistakes of one document: it finds nothing after `MISTAKES_REPORTED`.

    A search takes a third of a millisecond, and a text can have thousands of unknown words.
    """
    searches = count()

    def bounded(word: str, known: Iterable[str]) -> str:
        return guess(word, known, cutoff=cutoff) if next(searches) < MISTAKES_REPORTED else ""

    return bounded


def guess(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean "x"?` for the nearest known word, or nothing."""
    nearest = _nearest_word(word.lower()[:SHOWN_LENGTH], tuple(known), cutoff)
    return "" if nearest is None else f'; did you mean "{nearest}"?'


@lru_cache(maxsize=256)  # the pods of a host have the same keys again and again
def _nearest_word(word: str, known: tuple[str, ...], cutoff: float) -> str | None:
    by_folded = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(word, by_folded, n=1, cutoff=cutoff)
    return by_folded[nearest[0]] if nearest else None


class Reader(Struct):
    """Typed access to fields; a value of the wrong type is noted in `problems` and given as None.

    A null is an absent value, as in Kubernetes.
    """

    problems: list[Mistake] = field(default_factory=list)
    #: `; did you mean "x"?` for a word and the known ones.
    guess: Callable[[str, Iterable[str]], str] = field(default_factory=guesses)

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
        value = where.value
        if isinstance(value, str):
            return value
        hint = "; put it in quotes" if isinstance(where.node, ScalarNode) else ""
        self.reject(where, f"expected a text, found {describe(where.node)}{hint}")
        return None

    def amount(self, where: Field) -> str | None:
        """Return the text of something written as a number or as a text (`2`, `0.5`, `"500m"`)."""
        value = where.value
        if isinstance(value, str):
            return value
        if isinstance(value, Number):
            return value.text
        unclear = isinstance(value, Unclear)
        hint = "; put it in quotes if it is meant as it stands" if unclear else ""
        self.reject(where, f"expected a number or a text, found {describe(where.node)}{hint}")
        return None

    def boolean(self, where: Field) -> bool | None:
        """Return a boolean."""
        value = where.value
        if isinstance(value, bool):
            return value
        self.reject(where, f"expected true or false, found {describe(where.node)}")
        return None

    def integer(self, where: Field, lowest: int, highest: int) -> int | None:
        """Return a whole number within bounds, both included."""
        text = where.value.text if isinstance(where.value, Number) else ""
        if len(text) < SHOWN_LENGTH and text.lstrip("+-").isdigit():
            number = int(text)
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
        self.reject(
            where, f"{shown(value)} is not one of {', '.join(names)}{self.guess(value, names)}"
        )
        return None

    def reject_unknown(self, where: Field, known: Iterable[str]) -> None:
        """Note every key of a mapping that is not a known one, with the nearest known name."""
        names = tuple(known)
        if isinstance(where.node, MappingNode):
            for key, node in where.node.entries.items():
                if key not in names:
                    entry = Field(join(where.path, key), node)
                    self.reject(entry, f"unknown key {shown(key)}{self.guess(key, names)}")


def describe(node: Node) -> str:
    """Say what a node is, for a message."""
    match node.value if isinstance(node, ScalarNode) else node:
        case MappingNode():
            text = "a mapping"
        case SequenceNode():
            text = "a list"
        case None:
            text = "nothing"
        case bool() as value:
            text = f"the boolean {str(value).lower()}"
        case Number(text=number):
            text = f"the number {number[:SHOWN_LENGTH]}"
        case Unclear(text=unclear, reason=reason):
            text = f"{shown(unclear)} without quotes, which is unclear because {reason}"
        case words:
            text = f"the text {shown(words)}"
    return text


_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE"})
_FALSE: Final = frozenset({"false", "False", "FALSE"})
_YAML11_BOOLEANS: Final = frozenset({"yes", "no", "on", "off"})
#: A longer scalar is a text: no number, boolean or date has so many characters.
_LONGEST: Final = 128

_NUMBER: Final = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII
)
_UNCLEAR: Final = (
    (
        re.compile(r"[-+]?0[0-9_]+", re.ASCII),
        "a leading zero is octal to some readers and decimal to others",
    ),
    (
        re.compile(r"[-+]?0[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?", re.ASCII),
        "it has a leading zero",
    ),
    (re.compile(r"[-+]?0[xob][0-9a-fA-F_]+", re.ASCII), "not every reader takes it as a number"),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII),
        "YAML 1.1 reads it as a number in base 60",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?", re.ASCII),
        "not every reader allows underscores in a number",
    ),
    (
        re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII),
        "it is not a finite number",
    ),
    (
        re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?", re.ASCII),
        "YAML 1.1 reads it as a date",
    ),
)


def resolve(text: str) -> Scalar:
    """Return the value of a plain (unquoted) scalar; `Unclear` where YAML versions disagree.

    A scalar of more than 128 characters is a text, whatever its characters.
    """
    if len(text) > _LONGEST:
        return text
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text.lower() in _YAML11_BOOLEANS:
        return Unclear(text, "YAML 1.1 reads it as a boolean and YAML 1.2 as a text")
    return _number_or_text(text)


def _number_or_text(text: str) -> str | Number | Unclear:
    if _NUMBER.fullmatch(text):
        return Number(text)
    for pattern, reason in _UNCLEAR:
        if pattern.fullmatch(text):
            return Unclear(text, reason)
    return text


DEFAULT_MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64
#: A pod with a hundred containers has some two thousand values; each costs time to read.
MAX_VALUES: Final = 20_000
_TOO_DEEP: Final = f"values are nested more than {MAX_DEPTH} deep"
_TOO_MANY: Final = f"the document has more than {MAX_VALUES} values"

_Json: TypeAlias = "bool | str | Number | list[_Json] | _Pairs | None"


class UnreadableError(Exception):
    """The text is not one well-formed document; `problem` says where and why."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.problem = Mistake("", message, line)


def read_document(text: str | bytes, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Node:
    """Return the only document of a YAML or JSON text.

    Raises `UnreadableError` on: more than `max_bytes` bytes, text that is not UTF-8, broken
    syntax, no or several documents, tags, anchors, aliases, merge keys, keys that are no texts,
    duplicate keys, values nested more than 64 deep, more than 20,000 values.
    """
    content = _utf8(text, max_bytes)
    if content.lstrip(" \t\r\n").startswith("{"):
        return _read_json(content)
    return _read_yaml(content)


#: How every gzip file begins (RFC 1952).
_GZIP: Final = b"\x1f\x8b"


def _utf8(text: str | bytes, max_bytes: int) -> str:
    try:
        raw = text.encode() if isinstance(text, str) else text
        content = raw.decode("utf-8-sig") if len(raw) <= max_bytes else ""
    except UnicodeError as error:
        if isinstance(text, bytes) and text.startswith(_GZIP):
            raise UnreadableError("the text is compressed with gzip; unpack it first") from error
        raise UnreadableError(f"the text is not valid UTF-8 ({error})") from error
    if len(raw) > max_bytes:
        raise UnreadableError(f"the text has {len(raw)} bytes, more than the limit of {max_bytes}")
    return content


def _read_yaml(content: str) -> Node:
    try:
        return _only_document(_bounded(yaml.parse(content, Loader=yaml.CSafeLoader)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else None
        raise UnreadableError(f"this is not YAML: {error.problem}", line) from error
    except yaml.YAMLError as error:
        raise UnreadableError(f"this is not YAML: {error}") from error


def _bounded(events: Iterator[Event]) -> Iterator[Event]:
    values = 0
    for event in events:
        values += isinstance(event, NodeEvent)
        if values > MAX_VALUES:
            raise UnreadableError(_TOO_MANY, _line(event))
        yield event


def _only_document(events: Iterator[Event]) -> Node:
    next(events)
    if isinstance(next(events), StreamEndEvent):
        raise UnreadableError("the document is empty")
    node = _node(next(events), events, 0)
    next(events)
    after = next(events)
    if isinstance(after, DocumentStartEvent) and not _is_empty_end(events):
        raise UnreadableError("a second document begins here; give one per file", _line(after))
    return node


def _is_empty_end(events: Iterator[Event]) -> bool:
    """Return whether what begins with `---` has nothing in it and is the last of the text."""
    value = next(events)
    empty = isinstance(value, ScalarEvent) and value.implicit[0] and not value.value
    if not empty or not isinstance(next(events), DocumentEndEvent):
        return False
    return isinstance(next(events), StreamEndEvent)


def _node(event: Event, events: Iterator[Event], depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise UnreadableError(_TOO_DEEP, _line(event))
    _reject_features(event)
    if isinstance(event, ScalarEvent):
        value = event.value if event.style else resolve(event.value)
        return ScalarNode(value, _line(event))
    if isinstance(event, SequenceStartEvent):
        return SequenceNode(tuple(_items(events, depth)), _line(event))
    return MappingNode(_entries(events, depth), _line(event))


def _reject_features(event: Event) -> None:
    if isinstance(event, AliasEvent):
        raise UnreadableError(
            f"alias *{_short(event.anchor or '')}: write the value out", _line(event)
        )
    if isinstance(event, NodeEvent) and event.anchor is not None:
        raise UnreadableError(
            f"anchor &{_short(event.anchor)} is not supported: remove it", _line(event)
        )
    if (
        isinstance(event, ScalarEvent | SequenceStartEvent | MappingStartEvent)
        and event.tag is not None
    ):
        raise UnreadableError(f"tag {_short(event.tag)} is not supported: remove it", _line(event))


def _items(events: Iterator[Event], depth: int) -> Iterator[Node]:
    while not isinstance(event := next(events), SequenceEndEvent):
        yield _node(event, events, depth + 1)


def _entries(events: Iterator[Event], depth: int) -> dict[str, Node]:
    entries: dict[str, Node] = {}
    first_seen: dict[str, int] = {}
    while not isinstance(event := next(events), MappingEndEvent):
        key = _key(event)
        if key in entries:
            raise UnreadableError(
                f"key {_short(key)!r} is given twice, first on line {first_seen[key]}", _line(event)
            )
        first_seen[key] = _line(event)
        entries[key] = _node(next(events), events, depth + 1)
    return entries


def _key(event: Event) -> str:
    _reject_features(event)
    if not isinstance(event, ScalarEvent):
        raise UnreadableError("a key must be a text, not a list or mapping", _line(event))
    if event.style:
        return str(event.value)
    if event.value == "<<":
        raise UnreadableError("merge key << is not supported: write the values out", _line(event))
    value = resolve(event.value)
    if isinstance(value, str):
        return value
    why = f": {value.reason}" if isinstance(value, Unclear) else ""
    raise UnreadableError(
        f"key {_short(event.value)!r} is not a text{why}; put it in quotes", _line(event)
    )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_LENGTH else f"{text[: SHOWN_LENGTH - 3]}..."


def _line(event: Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 0


class _Pairs(list[tuple[str, "_Json"]]):
    """The members of a JSON object in order, duplicates included."""


def _reject_constant(text: str) -> NoReturn:
    raise UnreadableError(f"this is not JSON: {text} is not a number")


def _read_json(content: str) -> Node:
    # There is no more than one value, one for each comma and one for each bracket.
    many = 1 + content.count(",") + content.count("[") + content.count("{") > MAX_VALUES
    if many:
        _reject_unread(content)
    try:
        value = json.loads(
            content,
            object_pairs_hook=_Pairs,
            parse_int=Number,
            parse_float=Number,
            parse_constant=_reject_constant,
        )
    except json.JSONDecodeError as error:
        with suppress(UnreadableError):
            return _read_yaml(content)  # a mapping in YAML's flow style
        raise UnreadableError(f"this is not JSON: {error.msg}", error.lineno) from error
    except RecursionError as error:
        raise UnreadableError(_TOO_DEEP) from error
    if many:
        _reject_many(cast("_Json", value))
    return _json_node(cast("_Json", value), 0)


#: A text in JSON, to its end or to that of the document.
_TEXT: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def _reject_unread(content: str) -> None:
    """Raise when a text holds certainly too many values, before a million of them are made.

    Outside of its texts, every bracket begins a value, and every comma stands between two.
    """
    commas = brackets = at = 0
    for start, end in chain(map(re.Match.span, _TEXT.finditer(content)), ((len(content),) * 2,)):
        commas += content.count(",", at, start)
        brackets += content.count("[", at, start) + content.count("{", at, start)
        if max(commas, brackets) > MAX_VALUES:
            raise UnreadableError(_TOO_MANY)
        at = end


def _reject_many(value: _Json) -> None:
    """Raise when a value has too many; nesting is not checked here."""
    stack, seen = [value], 0
    while stack:
        inner = stack.pop()
        seen += 1
        if isinstance(inner, _Pairs):
            stack.extend(item for _, item in inner)
        elif isinstance(inner, list):
            stack.extend(cast("list[_Json]", inner))
        if seen + len(stack) > MAX_VALUES:
            raise UnreadableError(_TOO_MANY)


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _json_node(value: _Json, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise UnreadableError(_TOO_DEEP)
    if isinstance(value, _Pairs):
        return _json_mapping(value, depth)
    if isinstance(value, list):
        return SequenceNode(tuple(_json_node(cast("_Json", item), depth + 1) for item in value))
    if isinstance(value, str) and _SURROGATE.search(value):
        raise UnreadableError(f"text {_short(value)!r} holds half of a surrogate pair")
    return ScalarNode(value)


def _json_mapping(pairs: _Pairs, depth: int) -> MappingNode:
    entries: dict[str, Node] = {}
    for key, value in pairs:
        if key in entries:
            raise UnreadableError(f"key {_short(key)!r} is given twice in one object")
        if _SURROGATE.search(key):
            raise UnreadableError(f"key {_short(key)!r} holds half of a surrogate pair")
        entries[key] = _json_node(value, depth + 1)
    return MappingNode(entries)
