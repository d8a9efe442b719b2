"""What a key of the configuration is, and how sections of keys are read, written and described.

A key is declared once, at the field of the section that holds its value:

    port: int = key(9464, whole_number(0, 65535), "The TCP port of the metrics listener.")

The file, `--set`, the page, the commented example, the JSON schema and error messages all take its
name, default, bounds, meaning and example from this declaration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct, StructMeta
from msgspec.structs import replace

from agent.config.kinds import BOOLEAN, Kind, nullable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.config.kinds import KeyReader, Schema
    from agent.yaml import Field, Plain

Value = TypeVar("Value")
Values = TypeVar("Values", bound="Section")


class Key(Struct, frozen=True):
    """One key of the configuration, which is a field of a section."""

    default: Any
    kind: Kind[Any]
    #: Plain text; paragraphs are divided by an empty line.
    help: str
    #: The version of the agent that brought the key.
    since: str = "0.1.0"
    #: The name in a file (`maxPods`): unless given, the name of the field in camel case.
    name: str = ""
    #: The name of the field (`max_pods`).
    attribute: str = ""
    #: Heads this key and those after it on a page.
    title: str = ""
    #: YAML of a value, where the help does not show how to write one.
    example: str = ""
    #: Whether a section without the key is a mistake; reading goes on with the default.
    is_required: bool = False

    @property
    def inner(self) -> type[Section] | None:
        """The section that is the value of the key; None for a single value."""
        return type(self.default) if isinstance(self.default, Section) else None

    @property
    def values(self) -> Mapping[str, str]:
        """The names that can be chosen, with their meanings."""
        return self.kind.meanings

    @property
    def written_default(self) -> Plain:
        """The default as a file has it."""
        return self.kind.written(self.default)


def key(
    default: Value,
    kind: Kind[Value],
    explained: str,
    **facts: Any,  # noqa: ANN401  # further fields of `Key`, which checks them
) -> Value:
    """Declare a key at its field, where the section then has the default (`_SectionType`)."""
    return cast("Value", Key(default, kind, explained, **facts))


def switch(explained: str, *, default: bool = False, **facts: str) -> bool:
    """Declare a key that is true or false."""
    return key(default, BOOLEAN, explained, **facts)


def section(defaults: Values, **facts: str) -> Values:
    """Declare a key whose value is a section; the docstring of the section explains the key."""
    of = type(defaults)
    return key(defaults, section_kind(of), " ".join((of.__doc__ or "").split()), **facts)


def section_kind(of: type[Values]) -> Kind[Values]:
    """Return the kind of a section."""
    return Kind("mapping", schema(of), read, written, parts=parts(of))


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
        declared = {field: key for field, key in body.items() if isinstance(key, Key)}
        defaults = {field: key.default for field, key in declared.items()}
        made = super().__new__(cls, name, bases, body | defaults, **options)
        made.keys = tuple(
            replace(key, attribute=field, name=key.name or _camel_case(field))
            for field, key in declared.items()
        )
        return made


def _camel_case(field: str) -> str:
    first, *words = field.split("_")
    return "".join((first, *map(str.capitalize, words)))


class Section(Struct, frozen=True, metaclass=_SectionType):
    """Values of keys: each field is declared by `key`, `switch` or `section`.

    The docstring of a section explains it to users.
    """


def parts(of: type[Section]) -> dict[str, str]:
    """Return the keys of a section, explained."""
    return {key.name: key.help for key in of.keys}


def paths(of: type[Section], prefix: str = "") -> Iterator[tuple[str, Key]]:
    """Yield all keys with their paths (`agent.metrics.port`), also those of inner sections."""
    for key in of.keys:
        yield f"{prefix}{key.name}", key
        if key.inner is not None:
            yield from paths(key.inner, f"{prefix}{key.name}.")


def read(reader: KeyReader, at: Field, base: Values) -> Values:
    """Return the base with the values of a document in place of its own."""
    keys = type(base).keys
    entries = reader.entries(at)
    reader.reject_unknown(at, (key.name for key in keys))
    values = {}
    for key in keys:
        if key.name in entries:
            value = getattr(base, key.attribute)
            values[key.attribute] = key.kind.read(reader, entries[key.name], value)
        elif key.is_required:
            reader.reject(at, f"{key.name} is missing")
    return replace(base, **values)


def written(value: Section) -> dict[str, Plain]:
    """Return every key of a section with its value."""
    return {key.name: key.kind.written(getattr(value, key.attribute)) for key in type(value).keys}


def schema(of: type[Section]) -> Schema:
    """Return the schema of a section, with help and default of every key."""
    described = item_schema(of)
    for key in of.keys:
        described["properties"][key.name]["default"] = key.written_default
    return described


def item_schema(of: type[Section]) -> Schema:
    """Return the schema of a section as an item of a list: as `schema`, without defaults."""
    properties = {
        key.name: (key.kind.schema if key.is_required else nullable(key.kind.schema))
        | {"description": _description(key)}
        for key in of.keys
    }
    required = [key.name for key in of.keys if key.is_required]
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _description(of: Key) -> str:
    values = "".join(f"\n{value}: {meaning}" for value, meaning in of.values.items())
    return f"{of.help}\n{values}" if values else of.help
