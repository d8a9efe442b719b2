"""One YAML or JSON document as nodes that know their line, and typed access that collects mistakes.

PyYAML's C parser is used for its events only: nothing is constructed from tags, and nesting, size
and duplicates are checked here, of aliases as if they were written out. A text that begins with `{`
is JSON, as for kubectl. What an unquoted scalar means is YAML 1.2's reading, where no other
version disagrees. `read_document` gives the nodes, whose `line` counts from 1 and is None where the
format gives none (JSON); a `Reader` takes values from them.
"""

from __future__ import annotations

import difflib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeAlias

import msgspec
import yaml
from msgspec import Struct, field
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Callable, Collection, Iterable, Iterator

DEFAULT_MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64
#: A pod with a hundred containers has some two thousand values; each costs time to read.
MAX_VALUES: Final = 20_000
#: The most mistakes of one document that are reported: a text can have thousands.
MISTAKES_REPORTED: Final = 100
#: The longest word or text of a document in a message, in characters.
SHOWN_LENGTH: Final = 60


class Mistake(Struct, frozen=True):
    """One mistake: `path` names the field (`spec.containers[0].name`), or is "".

    `line` is that of the manifest, from 1, null where the mistake is on no line.
    """

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return f"{place}{self.path}: {self.message}" if self.path else f"{place}{self.message}"


@dataclass
class DocumentError(Exception):
    """A document was rejected: `source` names it, `problems` are all mistakes in document order."""

    source: str
    problems: tuple[Mistake, ...]

    what: ClassVar[str] = "document"

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.source}: {self.problems[0]}"
        lines = [f"{self.source}: {len(self.problems)} mistakes in this {self.what}"]
        lines += [f"  {problem}" for problem in self.problems[:MISTAKES_REPORTED]]
        if (more := len(self.problems) - MISTAKES_REPORTED) > 0:
            lines.append(f"  and {more} more")
        return "\n".join(lines)


class UnreadableError(Exception):
    """The text is not one well-formed document; `problem` says where and why."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.problem = Mistake("", message, line)


def shown(text: str) -> str:
    """Return a text in quotes, escaped and cut to a length that fits in a message."""
    return '"' + _cut(text).encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_LENGTH else f"{text[: SHOWN_LENGTH - 3]}..."


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


class Number(Struct, frozen=True):
    """A number as it was written, so that no digit is lost before it is understood."""

    text: str


class Unclear(Struct, frozen=True):
    """An unquoted scalar that YAML versions read differently (`on`, `010`, `12:30`)."""

    text: str
    reason: str


Scalar: TypeAlias = bool | str | Number | Unclear | None


class ScalarNode(Struct, frozen=True):
    """A single value."""

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
    return node.value.text if isinstance(node.value, Number | Unclear) else node.value


def from_plain(value: Plain) -> Node:
    """Return a document without lines for values as `json` reads them."""
    if isinstance(value, dict):
        return MappingNode({key: from_plain(item) for key, item in value.items()})
    if isinstance(value, list):
        return SequenceNode(tuple(map(from_plain, value)))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ScalarNode(Number(str(value)))
    return ScalarNode(value)


_JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", re.ASCII)


def json_of(node: Node) -> bytes:
    """Return a document as JSON, which is read as the same; raises `UnreadableError`."""
    return msgspec.json.encode(_as_json(node))


def _as_json(node: Node) -> object:
    if isinstance(node, SequenceNode):
        return list(map(_as_json, node.items))
    if isinstance(node, MappingNode):
        return {key: _as_json(value) for key, value in node.entries.items()}
    if isinstance(node.value, Unclear):
        raise UnreadableError(f"{describe(node)}; put it in quotes", node.line)
    if isinstance(node.value, Number):
        text = node.value.text
        return msgspec.Raw(text.encode()) if _JSON_NUMBER.fullmatch(text) else text
    return node.value


def describe(node: Node) -> str:
    """Say what a node is, for a message."""
    if not isinstance(node, ScalarNode):
        return "a mapping" if isinstance(node, MappingNode) else "a list"
    match node.value:
        case None:
            return "nothing"
        case bool() as value:
            return f"the boolean {str(value).lower()}"
        case Number(text=number):
            return f"the number {number[:SHOWN_LENGTH]}"
        case Unclear(text=text, reason=reason):
            return f"{shown(text)} without quotes, which is unclear because {reason}"
        case text:
            return f"the text {shown(text)}"


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
        node = self.node.entries.get(key) if isinstance(self.node, MappingNode) else None
        found = None if node is None else Field(join(self.path, key), node)
        return None if found is None or found.is_null else found

    def children(self) -> Iterator[Field]:
        """Yield the entries of a mapping or the items of a list, nulls too."""
        if isinstance(self.node, MappingNode):
            for key, node in self.node.entries.items():
                yield Field(join(self.path, key), node)
        elif isinstance(self.node, SequenceNode):
            for index, node in enumerate(self.node.items):
                yield Field(f"{self.path}[{index}]", node)


_WORD: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{SHOWN_LENGTH}}}", re.ASCII)


def join(path: str, key: str) -> str:
    """Return the path of a mapping's entry; a key that is not a short word is put in brackets."""
    if not _WORD.fullmatch(key):
        return f"{path}[{shown(key)}]"
    return f"{path}.{key}" if path else key


def places(document: Node, paths: Collection[str]) -> dict[str, int | None]:
    """Return by path the line of the value there, or of the nearest value around it that exists.

    The document is gone through once, however many paths there are.
    """
    longest = max(map(len, paths), default=0)
    lines, stack = {"": document.line}, [Field("", document)]
    while stack:
        for child in stack.pop().children():
            if len(child.path) <= longest:
                lines[child.path] = child.node.line
                stack.append(child)

    def line(path: str) -> int | None:
        while path not in lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return lines[path]

    return {path: line(path) for path in paths}


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

    def expected(self, what: str, where: Field, hint: str = "") -> None:
        """Note that a field is something else than what it has to be."""
        self.reject(where, f"expected {what}, found {describe(where.node)}{hint}")

    def entries(self, where: Field) -> dict[str, Field]:
        """Return the entries of a mapping, without those that are null."""
        if not isinstance(where.node, MappingNode):
            if not where.is_null:
                self.expected("a mapping", where)
            return {}
        found = zip(where.node.entries, where.children(), strict=True)
        return {key: entry for key, entry in found if not entry.is_null}

    def items(self, where: Field) -> Iterator[Field]:
        """Yield the items of a list."""
        if isinstance(where.node, SequenceNode):
            yield from where.children()
        elif not where.is_null:
            self.expected("a list", where)

    def text(self, where: Field) -> str | None:
        """Return a text."""
        if isinstance(where.value, str):
            return where.value
        hint = "; put it in quotes" if isinstance(where.node, ScalarNode) else ""
        self.expected("a text", where, hint)
        return None

    def amount(self, where: Field) -> str | None:
        """Return the text of something written as a number or as a text (`2`, `0.5`, `"500m"`)."""
        value = where.value
        if isinstance(value, str | Number):
            return value if isinstance(value, str) else value.text
        unclear = isinstance(value, Unclear)
        hint = "; put it in quotes if it is meant as it stands" if unclear else ""
        self.expected("a number or a text", where, hint)
        return None

    def boolean(self, where: Field) -> bool | None:
        """Return a boolean."""
        if isinstance(where.value, bool):
            return where.value
        self.expected("true or false", where)
        return None

    def integer(self, where: Field, lowest: int, highest: int) -> int | None:
        """Return a whole number within bounds, both included."""
        text = where.value.text if isinstance(where.value, Number) else ""
        if len(text) < SHOWN_LENGTH and text.lstrip("+-").isdigit():
            number = int(text)
            if lowest <= number <= highest:
                return number
        self.expected(f"a whole number from {lowest} to {highest}", where)
        return None

    def choice(self, where: Field, allowed: Iterable[str]) -> str | None:
        """Return a text that is one of the allowed ones."""
        names, value = tuple(allowed), self.text(where)
        if value is not None and value not in names:
            others = f"{', '.join(names)}{self.guess(value, names)}"
            self.reject(where, f"{shown(value)} is not one of {others}")
            return None
        return value

    def reject_unknown(self, where: Field, known: Iterable[str]) -> None:
        """Note every key of a mapping that is not a known one, with the nearest known name."""
        names = tuple(known)
        for key, node in where.node.entries.items() if isinstance(where.node, MappingNode) else ():
            if key not in names:
                entry = Field(join(where.path, key), node)
                self.reject(entry, f"unknown key {shown(key)}{self.guess(key, names)}")


_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
#: A longer scalar is a text: no number, boolean or date has so many characters.
_LONGEST: Final = 128
_NUMBER: Final = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII
)
_UNCLEAR: Final = tuple(
    (re.compile(pattern, re.ASCII), reason)
    for pattern, reason in (
        (r"(?i:yes|no|on|off)", "YAML 1.1 reads it as a boolean and YAML 1.2 as a text"),
        (r"[-+]?0[0-9_]+", "a leading zero is octal to some readers and decimal to others"),
        (r"[-+]?0[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?", "it has a leading zero"),
        (r"[-+]?0[xob][0-9a-fA-F_]+", "not every reader takes it as a number"),
        (
            r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?",
            "YAML 1.1 reads it as a number in base 60",
        ),
        (
            r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?",
            "not every reader allows underscores in a number",
        ),
        (r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "it is not a finite number"),
        (r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?", "YAML 1.1 reads it as a date"),
    )
)


def resolve(text: str) -> Scalar:
    """Return the value of a plain (unquoted) scalar; `Unclear` where YAML versions disagree.

    A scalar of more than 128 characters is a text, whatever its characters.
    """
    if len(text) > _LONGEST:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return Number(text)
    reason = next((reason for pattern, reason in _UNCLEAR if pattern.fullmatch(text)), None)
    return text if reason is None else Unclear(text, reason)


_TOO_DEEP: Final = f"values are nested more than {MAX_DEPTH} deep"
_TOO_MANY: Final = f"the document has more than {MAX_VALUES} values"
#: How every gzip file begins (RFC 1952).
_GZIP: Final = b"\x1f\x8b"


def read_document(text: str | bytes, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Node:
    """Return the only document of a YAML or JSON text.

    Raises `UnreadableError` on: more than `max_bytes` bytes, text that is not UTF-8, broken
    syntax, no or several documents, tags, merge keys, keys that are no texts, duplicate keys; and,
    with each alias written out, more than `max_bytes` characters of values, values nested more than
    64 deep, more than 20,000 values.
    """
    try:
        raw = text.encode() if isinstance(text, str) else text
        content = raw.decode("utf-8-sig") if len(raw) <= max_bytes else ""
    except UnicodeError as error:
        if isinstance(text, bytes) and text.startswith(_GZIP):
            raise UnreadableError("the text is compressed with gzip; unpack it first") from error
        raise UnreadableError(f"the text is not valid UTF-8 ({error})") from error
    if len(raw) > max_bytes:
        raise UnreadableError(f"the text has {len(raw)} bytes, more than the limit of {max_bytes}")
    if content.lstrip(" \t\r\n").startswith("{"):
        return _read_json(content, max_bytes)
    return _read_yaml(content, max_bytes)


#: What libyaml says of a tab, of `@` and of a grave accent before a value.
_NO_BEGINNING: Final = "found character that cannot start any token"


def _read_yaml(content: str, most: int) -> Node:
    try:
        return _Composer(content, most).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        problem = error.problem
        if mark is not None and problem == _NO_BEGINNING:
            found = content.splitlines()[mark.line][mark.column :][:1]
            problem = f"no value begins with {found!r}; put the text in quotes"
            if found == "\t":
                problem = "a tab stands before a value; indent with spaces"
        raise UnreadableError(f"this is not YAML: {problem}", line) from error
    except yaml.YAMLError as error:
        raise UnreadableError(f"this is not YAML: {error}") from error


class _Anchored(Struct, frozen=True):
    """A value that aliases stand for: how much it is, and how deep, with its own ones written out.

    The value itself is in the document as often as it is named, but in memory once.
    """

    node: Node
    values: int
    characters: int
    levels: int


class _Composer:
    """Makes nodes of the events of a parser, which has no types: an event is `Any` here."""

    def __init__(self, content: str, most: int) -> None:
        self._events: Iterator[Any] = yaml.parse(content, Loader=yaml.CSafeLoader)
        self._anchored: dict[str, _Anchored] = {}
        #: Of what was read so far, with aliases written out; `most` are the most characters.
        self._most = most
        self._values = 0
        self._characters = 0
        self._deepest = 0

    def document(self) -> Node:
        next(self._events)
        if isinstance(next(self._events), StreamEndEvent):
            raise UnreadableError("the document is empty")
        node = self._node(self._next(), 0)
        after = [*islice(self._events, 2)][-1]
        if isinstance(after, DocumentStartEvent):
            # A last `---` with nothing after it begins no document.
            value, *ends = islice(self._events, 3)
            empty = isinstance(value, ScalarEvent) and value.implicit[0] and not value.value
            if not empty or [*map(type, ends)] != [DocumentEndEvent, StreamEndEvent]:
                message = "a second document begins here; give one per file"
                raise UnreadableError(message, _line(after))
        return node

    def _next(self) -> Any:  # noqa: ANN401
        """Return the next event, which is no use of what documents must not have."""
        event = next(self._events)
        if not isinstance(event, NodeEvent):
            return event
        tag, line = getattr(event, "tag", None), _line(event)
        if not isinstance(event, AliasEvent):
            self._count(1, _characters(event), line)
        if tag is not None:
            raise UnreadableError(f"tag {_cut(tag)} is not supported: remove it", line)
        return event

    def _count(self, values: int, characters: int, line: int) -> None:
        self._values += values
        self._characters += characters
        if self._values > MAX_VALUES:
            raise UnreadableError(_TOO_MANY, line)
        if self._characters > self._most:
            message = f"with its aliases the text has more than {self._most} characters"
            raise UnreadableError(message, line)

    def _reach(self, depth: int, line: int) -> None:
        if depth > MAX_DEPTH:
            raise UnreadableError(_TOO_DEEP, line)
        self._deepest = max(self._deepest, depth)

    def _node(self, event: Any, depth: int) -> Node:  # noqa: ANN401
        line, name = _line(event), event.anchor
        self._reach(depth, line)
        if isinstance(event, AliasEvent):
            found = self._anchored.get(name)
            if found is None:
                raise UnreadableError(f"alias *{_cut(name)} names no value before it", line)
            self._count(found.values, found.characters, line)
            self._reach(depth + found.levels, line)
            return found.node
        if name is None:
            return self._value(event, depth, line)
        # No value is inside itself.
        self._anchored.pop(name, None)
        before = self._values - 1, self._characters - _characters(event)
        deepest, self._deepest = self._deepest, depth
        node = self._value(event, depth, line)
        self._anchored[name] = _Anchored(
            node, self._values - before[0], self._characters - before[1], self._deepest - depth
        )
        self._deepest = max(deepest, self._deepest)
        return node

    def _value(self, event: Any, depth: int, line: int) -> Node:  # noqa: ANN401
        if isinstance(event, ScalarEvent):
            return ScalarNode(event.value if event.style else resolve(event.value), line)
        if isinstance(event, SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(item := self._next(), SequenceEndEvent):
                items.append(self._node(item, depth + 1))
            return SequenceNode(tuple(items), line)
        entries: dict[str, Node] = {}
        first_seen: dict[str, int] = {}
        while not isinstance(at := self._next(), MappingEndEvent):
            key = _key(at)
            if key in entries:
                seen = f"is given twice, first on line {first_seen[key]}"
                raise UnreadableError(f"key {_cut(key)!r} {seen}", _line(at))
            first_seen[key] = _line(at)
            entries[key] = self._node(self._next(), depth + 1)
        return MappingNode(entries, line)


def _line(event: Any) -> int:  # noqa: ANN401
    return 0 if event.start_mark is None else event.start_mark.line + 1


def _characters(event: Any) -> int:  # noqa: ANN401
    return len(event.value) if isinstance(event, ScalarEvent) else 0


def _key(event: Any) -> str:  # noqa: ANN401
    if not isinstance(event, ScalarEvent):
        raise UnreadableError("a key must be a text, not a list, mapping or alias", _line(event))
    if event.value == "<<" and not event.style:
        raise UnreadableError("merge key << is not supported: write the values out", _line(event))
    value = event.value if event.style else resolve(event.value)
    if isinstance(value, str):
        return value
    why = f": {value.reason}" if isinstance(value, Unclear) else ""
    message = f"key {_cut(event.value)!r} is not a text{why}; put it in quotes"
    raise UnreadableError(message, _line(event))


#: A text in JSON, to its end or to that of the document.
_TEXT: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object in order, duplicates included."""


def _read_json(content: str, most: int) -> Node:
    if sum(map(content.count, ",[{")) >= MAX_VALUES:
        # Before a million values are made: outside of texts, every bracket begins a value, and
        # every comma stands between two.
        bare = _TEXT.sub("", content)
        if max(bare.count(","), bare.count("[") + bare.count("{")) > MAX_VALUES:
            raise UnreadableError(_TOO_MANY)
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
            return _read_yaml(content, most)  # a mapping in YAML's flow style
        raise UnreadableError(f"this is not JSON: {error.msg}", error.lineno) from error
    except RecursionError as error:
        raise UnreadableError(_TOO_DEEP) from error
    return _json_node(value, 0, count(1))


def _reject_constant(text: str) -> NoReturn:
    raise UnreadableError(f"this is not JSON: {text} is not a number")


def _json_node(value: Any, depth: int, values: Iterator[int]) -> Node:  # noqa: ANN401
    if depth > MAX_DEPTH:
        raise UnreadableError(_TOO_DEEP)
    if next(values) > MAX_VALUES:
        raise UnreadableError(_TOO_MANY)
    if isinstance(value, _Pairs):
        entries: dict[str, Node] = {}
        for key, item in value:
            if key in entries:
                raise UnreadableError(f"key {_cut(key)!r} is given twice in one object")
            _reject_surrogate("key", key)
            entries[key] = _json_node(item, depth + 1, values)
        return MappingNode(entries)
    if isinstance(value, list):
        return SequenceNode(tuple(_json_node(item, depth + 1, values) for item in value))
    _reject_surrogate("text", value)
    return ScalarNode(value)


def _reject_surrogate(what: str, text: object) -> None:
    if isinstance(text, str) and _SURROGATE.search(text):
        raise UnreadableError(f"{what} {_cut(text)!r} holds half of a surrogate pair")
