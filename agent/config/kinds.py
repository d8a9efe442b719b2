"""What a kind of value is, and the makers of the kinds that most keys have.

A kind reads a field of a document, writes the value back and describes values to people and to
programs. A kind is a row, never a class of its own; `text_kinds`, `durations`, `amounts`, `devices`
and `isolation` have further rows. A mistake is noted in the reader, with the path and line of the
field, and reading goes on.

True of every kind: what it reads meets its schema, and what it writes it reads as an equal value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, cast

from msgspec import Struct

from agent.yaml import Field, Plain, Reader, ScalarNode, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: A JSON schema (draft 2020-12) as `json` writes it; `type` is always there.
Schema: TypeAlias = "dict[str, Any]"
Value = TypeVar("Value")
Empty = TypeVar("Empty")
Member = TypeVar("Member", bound=StrEnum)
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class KeyReader(Reader):
    """Reads keys; with `merge`, entries of a mapping are added to those of the base."""

    merge: bool = False


class Kind(Struct, Generic[Value], frozen=True):
    """What values a key takes, bounds included."""

    #: The type and its bounds in a few words, for a page.
    words: str
    schema: Schema
    #: Read a field that is not null. The last argument is the base: the value that holds without
    #: the field. Beside a noted mistake any value of the type is returned, often the base.
    read: Callable[[KeyReader, Field, Value], Value]
    #: Return the value as a file has it.
    written: Callable[[Value], Plain]
    #: The names that can be chosen, each with its meaning; empty where values need no explanation.
    meanings: Mapping[str, str] = _NONE
    #: The keys of each entry of a list or mapping, explained; empty where entries are plain values.
    parts: Mapping[str, str] = _NONE


def nullable(schema: Schema) -> Schema:
    """Return a schema that takes null as well: a key without a value is left out."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*types, "null"], **values}


def _boolean(reader: KeyReader, at: Field, base: bool) -> bool:  # noqa: FBT001  # of all kinds
    value = reader.boolean(at)
    return base if value is None else value


BOOLEAN: Final[Kind[bool]] = Kind("true or false", {"type": "boolean"}, _boolean, bool)


def whole_number(lowest: int, highest: int, *, zero_means: int = 0) -> Kind[int]:
    """Return the kind of a number within bounds, both included; a 0 stands for `zero_means`."""

    def read(reader: KeyReader, at: Field, base: int) -> int:
        number = reader.integer(at, lowest, highest)
        return base if number is None else number or zero_means

    schema = {"type": "integer", "minimum": lowest, "maximum": highest}
    return Kind(f"whole number from {lowest} to {highest}", schema, read, int)


def marker(*allowed: str) -> Kind[str]:
    """Return the kind of a text that is compared with the allowed ones, and not kept."""

    def read(reader: KeyReader, at: Field, base: str) -> str:
        reader.choice(at, allowed)
        return base

    return Kind(f"one of {', '.join(allowed)}", {"type": "string", "enum": [*allowed]}, read, str)


def one_of(choices: Iterable[Member]) -> Kind[Member]:
    """Return the kind of one of the choices: an enumeration, or members mapped to meanings."""
    by_name = {str(choice): choice for choice in choices}

    def read(reader: KeyReader, at: Field, base: Member) -> Member:
        name = reader.choice(at, by_name)
        return base if name is None else by_name[name]

    words, schema = f"one of {', '.join(by_name)}", {"type": "string", "enum": [*by_name]}
    return Kind(words, schema, read, str, meanings_of(choices))


def some_of(choices: Iterable[Member]) -> Kind[frozenset[Member]]:
    """Return the kind of a list of choices as of `one_of`, which replaces that of the base."""
    by_name = {str(choice): choice for choice in choices}

    def read(reader: KeyReader, at: Field, _: object) -> frozenset[Member]:
        names = (reader.choice(item, by_name) for item in reader.items(at))
        return frozenset(by_name[name] for name in names if name is not None)

    def written(value: frozenset[Member]) -> Plain:
        return [name for name, choice in by_name.items() if choice in value]

    schema = {"type": "array", "items": {"type": "string", "enum": [*by_name]}}
    return Kind(f"list of {', '.join(by_name)}", schema, read, written, meanings_of(choices))


def one_of_any_case(
    choices: Iterable[Member], unusable: Mapping[str, str] = MappingProxyType({})
) -> Kind[Member]:
    """Return the kind of one of the choices, as of `one_of`, in any letter case.

    `unusable` has names in lower case that the kubelet knows, each with why it cannot be used here.
    """
    by_folded = {choice.lower(): choice for choice in choices}
    names = ", ".join(by_folded.values())

    def parse(text: str) -> Member:
        folded = text.lower()
        if folded not in by_folded:
            reason = f" ({unusable[folded]})" if folded in unusable else ""
            raise ValueError(f"{shown(text)} is not one of {names}{reason}")
        return by_folded[folded]

    # A pattern, since a list of names would be in one letter case.
    patterns = ("".join(f"[{letter.upper()}{letter}]" for letter in folded) for folded in by_folded)
    schema = {
        "type": "string",
        "pattern": f"^({'|'.join(patterns)})$",
        "examples": [str(choice) for choice in choices],
    }
    words = f"one of {names} in any letter case"
    return text_kind(words, schema, parse, meanings=meanings_of(choices))


def meanings_of(choices: Iterable[str]) -> Mapping[str, str]:
    """Return the meaning of each choice by name, without those that need none."""
    if isinstance(choices, Mapping):
        return {str(choice): meaning for choice, meaning in choices.items()}
    meanings = {str(choice): getattr(choice, "meaning", "") for choice in choices}
    return {name: meaning for name, meaning in meanings.items() if meaning}


def text_kind(
    words: str,
    schema: Schema,
    parse: Callable[[str], Value],
    *,
    written: Callable[[Value], Plain] = str,
    amount: bool = False,
    meanings: Mapping[str, str] = _NONE,
) -> Kind[Value]:
    """Return the kind of one text, from which `parse` makes the value.

    `parse` raises `ValueError` with the mistake. `amount`: a number is taken as its text.
    """

    def read(reader: KeyReader, at: Field, base: Value) -> Value:
        if amount and not isinstance(at.node, ScalarNode):
            reader.expected(f"one text: {words}", at)
            return base
        text = reader.amount(at) if amount else reader.text(at)
        try:
            return base if text is None else parse(text)
        except ValueError as error:
            reader.reject(at, str(error))
            return base

    return Kind(words, schema, read, written, meanings)


def matching(words: str, pattern: str, is_not: str = "", *, amount: bool = False) -> Kind[str]:
    """Return the kind of a text that a pattern matches as a whole.

    Any other text "is not" what `is_not` says; it may be left out for "the" and `words`.
    """
    compiled = re.compile(pattern, re.ASCII)

    def parse(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{shown(text)} is not {is_not or f'the {words}'}")
        return text

    types = ["string", "integer"] if amount else "string"
    schema = {"type": types, "pattern": f"^({pattern})$"}
    return text_kind(words, schema, parse, amount=amount)


def or_empty(kind: Kind[Value], empty: Empty) -> Kind[Value | Empty]:
    """Return a kind that also takes an empty text, whose value is `empty`."""

    def read(reader: KeyReader, at: Field, base: Value | Empty) -> Value | Empty:
        return empty if at.value == "" else kind.read(reader, at, cast("Value", base))

    def written(value: Value | Empty) -> Plain:
        return "" if value == empty else kind.written(cast("Value", value))

    words = f'{kind.words}, or ""'
    return Kind(words, _empty_or(kind.schema), read, written, kind.meanings)


def or_base(kind: Kind[Value]) -> Kind[Value]:
    """Return a kind for which an empty text leaves the value of the base, as in the kubelet."""

    def read(reader: KeyReader, at: Field, base: Value) -> Value:
        return base if at.value == "" else kind.read(reader, at, base)

    return Kind(kind.words, _empty_or(kind.schema), read, kind.written, kind.meanings)


def _empty_or(schema: Schema) -> Schema:
    return schema | {"pattern": f"^$|{schema['pattern']}"} if "pattern" in schema else schema


def list_of_names(
    words: str, pattern: str, fault_of: Callable[[str], str | None]
) -> Kind[tuple[str, ...]]:
    """Return the kind of a list of names, each once, which replaces that of the base.

    `fault_of` returns the mistake in a name, worded to follow the name; None without a mistake.
    """

    def read(reader: KeyReader, at: Field, _: object) -> tuple[str, ...]:
        names: list[str] = []
        for item in reader.items(at):
            name = reader.text(item)
            if name is None:
                continue
            fault = "is listed twice" if name in names else fault_of(name)
            if fault is not None:
                reader.reject(item, f"{shown(name)} {fault}")
            else:
                names.append(name)
        return tuple(names)

    item = {"type": "string", "pattern": pattern}
    return Kind(words, {"type": "array", "items": item, "uniqueItems": True}, read, list)


def mapping_kind(
    words: str,
    names: Schema,
    entry: Kind[Value],
    base: Value,
    check_name: Callable[[KeyReader, str, Field], object] = lambda *_: None,
    meanings: Mapping[str, str] = _NONE,
) -> Kind[Mapping[str, Value]]:
    """Return the kind of a mapping of names to values of a kind, each read over `base`.

    `names` is the schema of the names, and `check_name` notes what is wrong with one.
    """

    def read(reader: KeyReader, at: Field, present: Mapping[str, Value]) -> Mapping[str, Value]:
        values = dict(present) if reader.merge else {}
        for name, field in reader.entries(at).items():
            check_name(reader, name, field)
            values[name] = entry.read(reader, field, base)
        return MappingProxyType(values)

    def written(values: Mapping[str, Value]) -> Plain:
        return {name: entry.written(value) for name, value in values.items()}

    schema = {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": nullable(entry.schema),
    }
    return Kind(words, schema, read, written, meanings, entry.parts)


def _option_text(reader: KeyReader, at: Field, base: str) -> str:
    if isinstance(at.value, bool):
        return str(at.value).lower()
    text = reader.amount(at)
    return base if text is None else text


_OPTION_TEXT: Final[Kind[str]] = Kind(
    "text", {"type": ["string", "number", "boolean"]}, _option_text, str
)


def option_texts(meanings: Mapping[str, str]) -> Kind[Mapping[str, str]]:
    """Return the kind of policy options by name; values are texts, as to the kubelet.

    `agent.config.policy_options` judges names and values, since gates decide which there are.
    """
    names = {"enum": [*meanings]}
    return mapping_kind("mapping of options to texts", names, _OPTION_TEXT, "", meanings=meanings)


def gate_switches(meanings: Mapping[str, str]) -> Kind[Mapping[str, bool]]:
    """Return the kind of feature gates, on or off: those that have meanings, and any other."""
    words, names = "mapping of feature gates to true or false", [*meanings]
    schema = {"type": "string", "examples": names}
    return mapping_kind(words, schema, BOOLEAN, base=False, meanings=meanings)
