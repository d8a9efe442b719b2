"""What a key of the configuration is, and how a section of keys is read, written and described."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agent.yaml import Field, Plain, Reader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


#: A JSON schema (draft 2020-12) as `json` writes it; `type` is always there.
Schema: TypeAlias = "dict[str, Any]"

Value = TypeVar("Value")
Values = TypeVar("Values", bound=Struct)

_WORD_BEGINS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


class KeyReader(Reader):
    """Reads keys; with `merge`, mappings are added to those of the base."""

    merge: bool = False


class ValueKind(Protocol[Value]):
    """What values a key takes. A kind knows its bounds; all kinds are frozen values."""

    @property
    def words(self) -> str:
        """The type and its bounds in a few words, for a page."""
        ...

    def read(self, reader: KeyReader, at: Field, base: Value) -> Value:
        """Return the value at a field that is not null; notes mistakes in the reader.

        What is returned beside a mistake is any value of the type, often the base.
        """
        ...

    def written(self, value: Value) -> Plain:
        """Return the value as a file has it: `read` makes the same value of it."""
        ...

    def schema(self) -> Schema:
        """Return a schema that every value in a file meets that `read` accepts."""
        ...


class Key(Struct, frozen=True):
    """One key of the configuration.

    The default is that of the struct's field which holds the value. `since` is the version of the
    agent that brought the key. `help` is plain text, paragraphs are divided by an empty line.
    `values` explains what can be chosen, `example` is YAML of a value that needs one, `remark` is
    what holds of the default beside its value. Without `stored` the key says what the document is
    (`kind`): its value is checked, and no field of the struct holds it.
    """

    name: str
    kind: ValueKind[Any]
    since: str
    help: str
    values: Mapping[str, str] = MappingProxyType({})
    example: str = ""
    remark: str = ""
    stored: bool = True

    @property
    def attribute(self) -> str:
        """The name of the struct's field that holds the value (`max_pods` for `maxPods`)."""
        return _WORD_BEGINS.sub("_", self.name).lower()


class KeyGroup(Struct, frozen=True):
    """Keys that are explained together, below one title."""

    title: str
    keys: tuple[Key, ...]


class Section(Struct, frozen=True):
    """Keys whose values one frozen struct holds; `defaults` is that struct with its defaults."""

    defaults: Struct
    groups: tuple[KeyGroup, ...]

    words: ClassVar[str] = "mapping"

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys in their order."""
        return tuple(key for group in self.groups for key in group.keys)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys in their order."""
        return tuple(key.name for key in self.keys)

    def default(self, key: Key) -> Plain:
        """Return the default of one of the keys as a file has it."""
        return key.kind.written(self._value(self.defaults, key))

    def inner(self, name: str) -> Section | None:
        """Return the section below a key; None where there is no such key, or it has a value."""
        kinds = {key.name: key.kind for key in self.keys}
        found = kinds.get(name)
        return found if isinstance(found, Section) else None

    def paths(self, prefix: str = "") -> Iterator[tuple[str, Section, Key]]:
        """Yield all keys with their path (`agent.metrics.port`) and their section, sections too."""
        for key in self.keys:
            yield f"{prefix}{key.name}", self, key
            if isinstance(key.kind, Section):
                yield from key.kind.paths(f"{prefix}{key.name}.")

    def read(self, reader: KeyReader, at: Field, base: Values) -> Values:
        """Return the base with what the document says laid over it."""
        reader.entries(at)
        reader.reject_unknown(at, self.names)
        changes: dict[str, object] = {}
        for key in self.keys:
            field = at.child(key.name)
            if field is None:
                continue
            value = key.kind.read(reader, field, self._value(base, key))
            if key.stored:
                changes[key.attribute] = value
        return replace(base, **changes)

    def written(self, value: Struct) -> dict[str, Plain]:
        """Return every key of the section with its value."""
        return {key.name: key.kind.written(self._value(value, key)) for key in self.keys}

    def schema(self) -> Schema:
        """Return the schema of the section, with help and default of every key."""
        properties = {
            key.name: nullable(key.kind.schema())
            | {"description": description(key), "default": self.default(key)}
            for key in self.keys
        }
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def _value(self, holder: Struct, key: Key) -> object:
        return getattr(holder, key.attribute) if key.stored else None


def description(key: Key) -> str:
    """Return the help of a key with what each of its values means, as plain text."""
    values = "".join(f"\n{value}: {meaning}" for value, meaning in key.values.items())
    return f"{key.help}\n{values}" if values else key.help


def nullable(schema: Schema) -> Schema:
    """Return a schema that takes null as well: a key without a value is left out."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*kinds, "null"], **values}
