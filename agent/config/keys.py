"""What a key of the configuration is, and how sections of keys are read, written and described.

A key is declared once, at the field of the section (a struct) that holds its value:

    port: int = key(9464, whole_number(0, 65535), "The TCP port of the metrics listener.")
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from msgspec import Struct, StructMeta
from msgspec.structs import replace

from agent.config.kinds import BOOLEAN, Kind, nullable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.config.kinds import KeyReader, Schema
    from agent.yaml import Field, Plain

Value = TypeVar("Value")
Values = TypeVar("Values", bound="Section")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Key(Struct, frozen=True):
    """One key of the configuration, which is a field of a section."""

    default: Any
    kind: Kind[Any]
    #: Plain text; paragraphs are divided by an empty line.
    help: str
    #: The version of the agent that brought the key.
    since: str
    #: The name in a file (`maxPods`), and that of the field (`max_pods`).
    name: str = ""
    attribute: str = ""
    #: Keys from here on are explained below this title.
    title: str = ""
    #: What can be chosen, with its meaning.
    values: Mapping[str, str] = _NONE
    #: YAML of a value that needs one.
    example: str = ""
    #: What holds of the default beside its value.
    remark: str = ""

    @property
    def inner(self) -> type[Section] | None:
        """The section of which the value of the key is; None for a single value."""
        return type(self.default) if isinstance(self.default, Section) else None

    @property
    def written_default(self) -> Plain:
        """The default as a file has it."""
        return self.kind.written(self.default)


def key(  # noqa: PLR0913  # a row of facts, most of them left out in most keys
    default: Value,
    kind: Kind[Value],
    explained: str,
    *,
    since: str = "0.1.0",
    name: str = "",
    title: str = "",
    values: Mapping[str, str] = _NONE,
    example: str = "",
    remark: str = "",
) -> Value:
    """Declare a key at its field; the struct has the default there. For the rest see `Key`."""
    declared = Key(
        default,
        kind,
        explained,
        since,
        name=name,
        title=title,
        values=values,
        example=example,
        remark=remark,
    )
    return cast("Value", declared)


def switch(explained: str, *, default: bool = False, since: str = "0.1.0", name: str = "") -> bool:
    """Declare a key that is true or false."""
    return key(default, BOOLEAN, explained, since=since, name=name)


def section(defaults: Values, explained: str, *, since: str = "0.1.0", title: str = "") -> Values:
    """Declare a key whose value is a section of keys, with their defaults."""
    kind: Kind[Values] = Kind("mapping", schema(type(defaults)), read, written)
    return key(defaults, kind, explained, since=since, title=title)


class _SectionType(StructMeta):
    """Makes a struct of the declarations of keys, and keeps these as `keys`."""

    keys: tuple[Key, ...]

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        body: dict[str, Any],
        **options: Any,  # noqa: ANN401  # as StructMeta takes them
    ) -> _SectionType:
        declared = {field: each for field, each in body.items() if isinstance(each, Key)}
        defaults = {field: each.default for field, each in declared.items()}
        made = super().__new__(cls, name, bases, body | defaults, **options)
        made.keys = tuple(
            replace(each, attribute=field, name=each.name or _camel_case(field))
            for field, each in declared.items()
        )
        return made


def _camel_case(field: str) -> str:
    first, *words = field.split("_")
    return "".join((first, *map(str.capitalize, words)))


class Section(Struct, frozen=True, metaclass=_SectionType):
    """Values of keys; each field is declared by `key` or `section`."""


def paths(of: type[Section], prefix: str = "") -> Iterator[tuple[str, Key]]:
    """Yield all keys with their path (`agent.metrics.port`), those of sections too."""
    for each in of.keys:
        yield f"{prefix}{each.name}", each
        if each.inner is not None:
            yield from paths(each.inner, f"{prefix}{each.name}.")


def read(reader: KeyReader, at: Field, base: Values) -> Values:
    """Return the base with what the document says laid over it."""
    keys = type(base).keys
    reader.entries(at)
    reader.reject_unknown(at, (each.name for each in keys))
    given = ((each, at.child(each.name)) for each in keys)
    changes = {
        each.attribute: each.kind.read(reader, field, getattr(base, each.attribute))
        for each, field in given
        if field is not None
    }
    return replace(base, **changes)


def written(value: Section) -> dict[str, Plain]:
    """Return every key of a section with its value."""
    return {
        each.name: each.kind.written(getattr(value, each.attribute)) for each in type(value).keys
    }


def schema(of: type[Section]) -> Schema:
    """Return the schema of a section, with help and default of every key."""
    properties = {
        each.name: nullable(each.kind.schema)
        | {"description": _description(each), "default": each.written_default}
        for each in of.keys
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _description(of: Key) -> str:
    values = "".join(f"\n{value}: {meaning}" for value, meaning in of.values.items())
    return f"{of.help}\n{values}" if values else of.help
