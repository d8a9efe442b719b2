"""Kinds of values that keys take: how a value is read, written and described.

A kind is a row, not a class: its type in words and as a schema, what reads it and what writes it.
Most are made by `text_kind`: one text, and the function that makes the value of it.
"""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from agent.pods.model import CPU, MEMORY, PID, extended_resource_fault, prefixed_resource_fault
from agent.pods.quantity import ZERO, Quantity, QuantityError
from agent.pods.requests import is_memory_type
from agent.pods.validation import resource_name_fault
from agent.yaml import Field, Plain, Reader, ScalarNode, shown
from sysfs.mask import MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: A JSON schema (draft 2020-12) as `json` writes it; `type` is always there.
Schema: TypeAlias = "dict[str, Any]"
Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=StrEnum)


class KeyReader(Reader):
    """Reads keys; with `merge`, mappings are added to those of the base."""

    merge: bool = False


class Kind(Struct, Generic[Value], frozen=True):
    """What values a key takes, bounds included."""

    #: The type and its bounds in a few words, for a page.
    words: str
    #: Every value that `read` accepts meets this schema.
    schema: Schema
    #: Return the value at a field that is not null, given that of the base. Mistakes are noted in
    #: the reader; what is returned beside one is any value of the type, often the base.
    read: Callable[[KeyReader, Field, Value], Value]
    #: Return the value as a file has it: `read` makes the same value of it.
    written: Callable[[Value], Plain]


def nullable(schema: Schema) -> Schema:
    """Return a schema that takes null as well: a key without a value is left out."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [*kinds, "null"], **values}


def _boolean(reader: KeyReader, at: Field, base: bool) -> bool:  # noqa: FBT001  # of all kinds
    value = reader.boolean(at)
    return base if value is None else value


BOOLEAN: Final[Kind[bool]] = Kind("true or false", {"type": "boolean"}, _boolean, bool)


def marker(*allowed: str) -> Kind[str]:
    """Return the kind of a key that says what the document is: checked, and nothing is kept."""

    def read(reader: KeyReader, at: Field, base: str) -> str:
        reader.choice(at, allowed)
        return base

    return Kind(f"one of {', '.join(allowed)}", {"type": "string", "enum": [*allowed]}, read, str)


def one_of(choices: Iterable[Choice]) -> Kind[Choice]:
    """Return the kind of one of the values of an enumeration, or of some of these."""
    by_name = {str(choice): choice for choice in choices}

    def read(reader: KeyReader, at: Field, base: Choice) -> Choice:
        name = reader.choice(at, by_name)
        return base if name is None else by_name[name]

    names = list(by_name)
    return Kind(f"one of {', '.join(names)}", {"type": "string", "enum": names}, read, str)


def some_of(choices: Iterable[Choice]) -> Kind[frozenset[Choice]]:
    """Return the kind of a list of values of an enumeration, or of some of these.

    A list replaces that of the base.
    """
    by_name = {str(choice): choice for choice in choices}

    def read(reader: KeyReader, at: Field, _: object) -> frozenset[Choice]:
        names = (reader.choice(item, by_name) for item in reader.items(at))
        return frozenset(by_name[name] for name in names if name is not None)

    def written(value: frozenset[Choice]) -> Plain:
        return [name for name, choice in by_name.items() if choice in value]

    names = list(by_name)
    schema = {"type": "array", "items": {"type": "string", "enum": names}}
    return Kind(f"list of {', '.join(names)}", schema, read, written)


def whole_number(lowest: int, highest: int, *, zero_means: int = 0) -> Kind[int]:
    """Return the kind of a number within bounds, both included; a 0 stands for `zero_means`."""

    def read(reader: KeyReader, at: Field, base: int) -> int:
        number = reader.integer(at, lowest, highest)
        return base if number is None else number or zero_means

    schema = {"type": "integer", "minimum": lowest, "maximum": highest}
    return Kind(f"whole number from {lowest} to {highest}", schema, read, int)


def _written(value: object) -> Plain:
    return "" if value is None else str(value)


def text_kind(
    words: str,
    schema: Schema,
    parse: Callable[[str], Value],
    *,
    written: Callable[[Value], Plain] = _written,
    amount: bool = False,
    empty_is_base: bool = False,
) -> Kind[Value]:
    """Return the kind of one text, of which `parse` makes the value.

    `parse` raises `ValueError` with the mistake. `amount`: a number is taken as its text.
    `empty_is_base`: an empty text leaves the value of the base.
    """

    def read(reader: KeyReader, at: Field, base: Value) -> Value:
        if amount and not isinstance(at.node, ScalarNode):
            reader.expected(f"one text: {words}", at)
            return base
        text = reader.amount(at) if amount else reader.text(at)
        if text is None or (empty_is_base and not text):
            return base
        try:
            return parse(text)
        except ValueError as error:
            reader.reject(at, str(error))
            return base

    return Kind(words, schema, read, written)


def one_of_any_case(
    choices: type[Choice], elsewhere: Mapping[str, str] = MappingProxyType({})
) -> Kind[Choice]:
    """Return the kind of one of the values of an enumeration in any letter case.

    `elsewhere` are values, in lower case, that exist and cannot be used here, with the reason.
    """
    by_folded = {choice.lower(): choice for choice in choices}

    def parse(text: str) -> Choice:
        choice = by_folded.get(text.lower())
        if choice is None:
            reason = elsewhere.get(text.lower())
            why = f" ({reason})" if reason is not None else ""
            raise ValueError(f"{shown(text)} is not one of {', '.join(choices)}{why}")
        return choice

    # A pattern, since a list of names would be in one letter case.
    patterns = (
        "".join(f"[{letter.upper()}{letter.lower()}]" for letter in name) for name in choices
    )
    schema = {
        "type": "string",
        "pattern": f"^({'|'.join(patterns)})$",
        "examples": list(map(str, choices)),
    }
    return text_kind(f"one of {', '.join(choices)} in any letter case", schema, parse)


def version_of(choices: Iterable[Choice]) -> Kind[Choice]:
    """Return the kind of one of these versions, which are named `v1.37`; 1.37 is the same."""
    by_name = {str(choice): choice for choice in choices}
    names = ", ".join(by_name)

    def parse(text: str) -> Choice:
        choice = by_name.get(f"v{text.removeprefix('v')}")
        if choice is None:
            raise ValueError(f"{shown(text)} is not one of {names}")
        return choice

    return text_kind(f"one of {names}", _version_schema(by_name), parse, amount=True)


def any_version_of(choices: Iterable[Choice]) -> Kind[Choice | None]:
    """Return the kind of `version_of`, of which an empty text is None."""
    by_name = {str(choice): choice for choice in choices}
    names = f'{", ".join(by_name)}, or ""'

    def parse(text: str) -> Choice | None:
        choice = by_name.get(f"v{text.removeprefix('v')}")
        if text and choice is None:
            raise ValueError(f"{shown(text)} is not one of {names}")
        return choice

    schema = _version_schema(by_name, optional="?")
    return text_kind(f"one of {names}", schema, parse, amount=True)


def _version_schema(names: Iterable[str], optional: str = "") -> Schema:
    numbers = "|".join(re.escape(name.removeprefix("v")) for name in names)
    return {
        "type": ["string", "number"],
        "pattern": f"^(v?({numbers})){optional}$",
        "examples": list(names),
    }


def _cpus(text: str) -> Mask | None:
    try:
        return Mask.parse(text) or None
    except ValueError as error:
        raise ValueError(f"{shown(text)} is not a list of CPUs such as 0-1,8: {error}") from error


#: CPUs as the kernel lists them; None where the text is empty. A single CPU may be a number.
CPU_LIST: Final[Kind[Mask | None]] = text_kind(
    "list of CPUs such as 0-1,8",
    {"type": ["string", "integer"], "minimum": 0},
    _cpus,
    amount=True,
)


def _nodes(text: str) -> Mask:
    try:
        return Mask.parse(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)} is not a list of nodes such as 0-1,8: {error}") from error


#: NUMA nodes as the kernel lists them. A single node may be a number.
NODE_LIST: Final[Kind[Mask]] = text_kind(
    "list of NUMA nodes such as 0-1,8",
    {"type": ["string", "integer"], "minimum": 0},
    _nodes,
    amount=True,
)

_ABSOLUTE: Final[Schema] = {"type": "string", "pattern": "^(/.*)?$"}


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts or not text.isprintable():
        raise ValueError(f"{shown(text)} is not an absolute path without '..'")
    return path


def _paths(longest: int = 0, too_long: str = "") -> tuple[Kind[Path], Kind[Path | None]]:
    """Return the kinds of an absolute path that there has to be, and of one that there need not be.

    An empty text leaves the path of the base in the one, and is None in the other, as the kubelet
    writes "unset". With `longest` a path has at most so many bytes.
    """

    def parse(text: str) -> Path:
        path = _absolute(text)
        if longest and len(str(path).encode()) > longest:
            raise ValueError(too_long)
        return path

    def parse_optional(text: str) -> Path | None:
        return parse(text) if text else None

    words = f"absolute path of at most {longest} bytes" if longest else "absolute path"
    # A path has at least as many bytes as characters.
    schema = {**_ABSOLUTE, "maxLength": longest} if longest else _ABSOLUTE
    return (
        text_kind(words, schema, parse, empty_is_base=True),
        text_kind(f'{words}, or ""', schema, parse_optional),
    )


PATH, OPTIONAL_PATH = _paths()
#: sun_path of a Unix socket address holds 108 bytes, the closing zero included.
SOCKET, OPTIONAL_SOCKET = _paths(107, "the path of a socket has at most 107 bytes")
#: A directory of sockets: `kubelet.sock`, and a plugin's own file name of a usual length, have to
#: fit in the 107 bytes as well (unix(7)).
SOCKET_DIRECTORY: Final = _paths(
    64,
    "the path of a directory of sockets has at most 64 bytes, since the kernel allows 107 for a "
    "socket's",
)[0]
#: A path within the cgroup file system; an empty text is its root.
CGROUP: Final[Kind[str]] = text_kind(
    "absolute path within the cgroup file system",
    _ABSOLUTE,
    lambda text: str(_absolute(text)) if text else "/",
)


_FRACTION: Final = re.compile(r"[01](\.[0-9]{0,9})?|\.[0-9]{1,9}", re.ASCII)


def _fraction(text: str) -> float | None:
    if not text:
        return None
    fraction = float(text) if _FRACTION.fullmatch(text) else 0.0
    if not 0 < fraction <= 1:
        raise ValueError(f'{shown(text)} is not above 0 and at most 1, such as 0.9, nor ""')
    return fraction


#: A number above 0 and at most 1; None where the text is empty.
FRACTION: Final[Kind[float | None]] = text_kind(
    'number above 0 and at most 1, or ""',
    {"type": ["number", "string"], "exclusiveMinimum": 0, "maximum": 1},
    _fraction,
    written=lambda value: "" if value is None else value,
    amount=True,
)


def _checked(text: str, fits: object, is_not: str) -> str:
    """Return a text that fits, or is empty; raise `ValueError` with what another one is not."""
    if text and not fits:
        raise ValueError(f"{shown(text)} is not {is_not}")
    return text


_GROUP: Final = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,63}\$?", re.ASCII)
#: The name of a group of users; None where the text is empty.
USER_GROUP: Final[Kind[str | None]] = text_kind(
    'name of a group, or ""',
    {"type": "string", "pattern": f"^({_GROUP.pattern})?$"},
    lambda text: _checked(text, _GROUP.fullmatch(text), "the name of a group") or None,
)


def _ip_address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(f"{shown(text)} is not an IP address such as 127.0.0.1 or ::1") from None


#: An IP address of version 4 or 6 (with the zone of a link), kept in its canonical text.
IP_ADDRESS: Final[Kind[str]] = text_kind(
    "IP address", {"type": "string", "pattern": "^([0-9.]+|[0-9A-Fa-f:.]+(%.+)?)$"}, _ip_address
)

#: A host name or an address, no user and no query: neither belongs in a configuration.
_HTTPS: Final = re.compile(
    r"https://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/[A-Za-z0-9._~/-]*", re.ASCII
)
#: The address of a page served over HTTPS; an empty text is none.
HTTPS_ADDRESS: Final[Kind[str]] = text_kind(
    'https address, or ""',
    {"type": "string", "pattern": f"^({_HTTPS.pattern})?$"},
    lambda text: _checked(text, _HTTPS.fullmatch(text), "like https://127.0.0.1:10250/pods"),
)

#: The name of a node is a DNS subdomain (RFC 1123), as of every object of the cluster.
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NODE: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)
_LONGEST_NAME: Final = 253
#: The name of a node of a cluster, or an empty text.
NODE_NAME: Final[Kind[str]] = text_kind(
    'name of a node, or ""',
    {"type": "string", "pattern": f"^({_NODE.pattern})?$", "maxLength": _LONGEST_NAME},
    lambda text: _checked(
        text,
        len(text) <= _LONGEST_NAME and _NODE.fullmatch(text),
        "the name of a node, such as worker-1",
    ),
)


def _is_server(text: str) -> bool:
    """Return whether a text is a URL with a host, and with nothing but a port and a path."""
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    try:
        url = urlsplit(text)
        usable = url.port is None or url.port > 0
    except ValueError:  # a port that is not one, or half of an IPv6 address
        return False
    more = url.query or url.fragment or url.username is not None
    return url.scheme == "https" and bool(url.hostname) and usable and not more


#: The URL of an API server without a slash at its end, or an empty text; https only, since a token
#: goes with a request.
SERVER_URL: Final[Kind[str]] = text_kind(
    'URL such as https://10.0.0.1:6443, or ""',
    {"type": "string", "pattern": "^(https://[^ ]+)?$"},
    lambda text: _checked(text, _is_server(text), "a URL such as https://10.0.0.1:6443").rstrip(
        "/"
    ),
)


def _extended_resource(name: str) -> str:
    fault = extended_resource_fault(name) if name else None
    if fault is not None:
        raise ValueError(f"{shown(name)} is not an extended resource: {fault}")
    return name


#: An extended resource, or "" for none.
OPTIONAL_RESOURCE: Final[Kind[str]] = text_kind(
    'extended resource such as example.com/name, or ""',
    {"type": "string", "pattern": "^([^/]+/[^/]+)?$"},
    _extended_resource,
)


def period(shortest: float, longest: float) -> Kind[float]:
    """Return the kind of a duration in seconds within bounds, written as Go writes it."""
    low, high = duration_text(shortest), duration_text(longest)

    def parse(text: str) -> float:
        seconds = seconds_of(text)
        if seconds is None:
            raise ValueError(f"{shown(text)} is not a duration; write one such as 10s or 1m30s")
        if not shortest <= seconds <= longest:
            raise ValueError(f"{shown(text)} is not between {low} and {high}")
        return seconds

    schema = {"type": "string", "pattern": "^([0-9]+(\\.[0-9]+)?(h|ms|us|µs|ns|m|s))+$"}
    return text_kind(f"duration from {low} to {high}", schema, parse, written=duration_text)


_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(h|ms|us|µs|ns|m|s)", re.ASCII)
_LONGEST_DURATION: Final = 64


def seconds_of(text: str) -> float | None:
    """Return a duration in seconds; None for a text that is none. A bare `0` is one."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text) if len(text) <= _LONGEST_DURATION else ()
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def duration_text(seconds: float) -> str:
    """Return a duration that is not negative as the shortest text, to the nanosecond."""
    nanoseconds = round(seconds * 10**9)
    if nanoseconds % 10**9 and nanoseconds < 10**9:
        milliseconds, rest = divmod(nanoseconds, 10**6)
        return f"{nanoseconds}ns" if rest else f"{milliseconds}ms"
    whole, rest = divmod(nanoseconds, 10**9)
    minutes, in_minute = divmod(whole, 60)
    hours, in_hour = divmod(minutes, 60)
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    last = f"{in_minute}{fraction}s" if in_minute or rest else ""
    parts = (f"{hours}h" if hours else "", f"{in_hour}m" if in_hour else "", last)
    return "".join(parts) or "0s"


#: A quantity that is not negative, as JSON schema has it: more is allowed than `Quantity` takes.
_QUANTITY_PATTERN: Final = r"\s*[+-]?[0-9]*(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?\s*"
_AMOUNT: Final[Schema] = {"type": ["string", "number"], "pattern": f"^{_QUANTITY_PATTERN}$"}


def _quantity(text: str) -> Quantity:
    try:
        quantity = Quantity.parse(text)
    except QuantityError as error:
        raise ValueError(f"{shown(error.text)} is not a quantity: {error.reason}") from error
    if quantity < ZERO:
        raise ValueError(f"{text} is negative; an amount is zero or more")
    return quantity


def _quantity_at(reader: Reader, at: Field) -> Quantity | None:
    """Return an amount that is not negative; None beside a note where there is none."""
    text = reader.amount(at)
    try:
        return None if text is None else _quantity(text)
    except ValueError as error:
        reader.reject(at, str(error))
        return None


def _bytes_at(reader: Reader, at: Field, lowest: int, highest: int) -> int | None:
    """Return a number of bytes within bounds, both included; None beside a note."""
    quantity = _quantity_at(reader, at)
    whole = None if quantity is None else quantity.as_int64()
    if quantity is not None and (whole is None or not lowest <= whole <= highest):
        low, high = Quantity.of_bytes(lowest), Quantity.of_bytes(highest)
        reader.reject(at, f"{quantity} is not a number of bytes from {low} to {high}")
        return None
    return whole


def byte_size(lowest: int, highest: int) -> Kind[int]:
    """Return the kind of a number of bytes within bounds, both included, written as a quantity."""

    def read(reader: KeyReader, at: Field, base: int) -> int:
        size = _bytes_at(reader, at, lowest, highest)
        return base if size is None else size

    low, high = Quantity.of_bytes(lowest), Quantity.of_bytes(highest)
    return Kind(
        f"bytes as a quantity from {low} to {high}",
        {**_AMOUNT, "minimum": lowest, "maximum": highest},  # the bounds are of a plain number
        read,
        lambda size: str(Quantity.of_bytes(size)),
    )


def mapping_kind(
    words: str,
    names: Schema,
    item: Schema,
    read_item: Callable[[KeyReader, str, Field], Value],
    written_item: Callable[[Value], Plain],
) -> Kind[Mapping[str, Value]]:
    """Return the kind of a mapping; `names` and `item` are the schemas of its keys and values."""

    def read(reader: KeyReader, at: Field, base: Mapping[str, Value]) -> Mapping[str, Value]:
        found = dict(base) if reader.merge else {}
        for name, entry in reader.entries(at).items():
            found[name] = read_item(reader, name, entry)
        return MappingProxyType(found)

    def written(value: Mapping[str, Value]) -> Plain:
        return {name: written_item(item) for name, item in value.items()}

    schema = {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": nullable(item),
    }
    return Kind(words, schema, read, written)


def option_texts(names: Iterable[str]) -> Kind[Mapping[str, str]]:
    """Return the kind of policy options by name; values are texts, as to the kubelet.

    Names and values are judged by `agent.config.load`, since gates decide which there are.
    """

    def read_item(reader: KeyReader, _: str, entry: Field) -> str:
        if isinstance(entry.value, bool):
            return str(entry.value).lower()
        return reader.amount(entry) or ""

    text = {"type": ["string", "number", "boolean"]}
    return mapping_kind("mapping of options to texts", {"enum": [*names]}, text, read_item, str)


def gate_switches(names: Iterable[str]) -> Kind[Mapping[str, bool]]:
    """Return the kind of feature gates, on or off: those of `names`, and any other."""
    return mapping_kind(
        "mapping of feature gates to true or false",
        {"type": "string", "examples": [*names]},
        {"type": "boolean"},
        lambda reader, _, entry: reader.boolean(entry) is True,
        bool,
    )


_RESERVABLE: Final = (CPU, MEMORY, "ephemeral-storage", PID)


def _reject_name(reader: KeyReader, entry: Field, name: str) -> None:
    fault = resource_name_fault(name)
    if fault is not None:
        reader.reject(entry, f"{shown(name)} is not a resource: {fault}")


def _reserved(reader: KeyReader, name: str, entry: Field) -> Quantity:
    if name not in _RESERVABLE and not is_memory_type(name):
        known = ", ".join(_RESERVABLE)
        reader.reject(
            entry,
            f"{shown(name)} cannot be reserved; {known} and hugepages-* can"
            f"{reader.guess(name, _RESERVABLE)}",
        )
    elif name != "pid":
        _reject_name(reader, entry, name)
    return _quantity_at(reader, entry) or ZERO


#: `systemReserved` and `kubeReserved`: amounts by resource.
RESERVED_AMOUNTS: Final = mapping_kind(
    "mapping of resources to quantities",
    {"pattern": f"^({'|'.join(_RESERVABLE)}|hugepages-.+)$"},
    _AMOUNT,
    _reserved,
    str,
)

MEMORY_AVAILABLE: Final = "memory.available"
_SIGNALS: Final = (
    MEMORY_AVAILABLE,
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "allocatableMemory.available",
    "pid.available",
)
_PERCENT: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,9})?", re.ASCII)
_WHOLE: Final = 100


class Threshold(Struct, frozen=True):
    """An eviction threshold: an amount, or a share of the capacity in percent."""

    amount: Quantity | None = None
    #: A text, because the kubelet computes with it in single precision.
    percent: str | None = None

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent is not None else str(self.amount)


def _threshold(reader: KeyReader, signal: str, entry: Field) -> Threshold:
    if signal not in _SIGNALS:
        hint = reader.guess(signal, _SIGNALS)
        reader.reject(entry, f"{shown(signal)} is not an eviction signal{hint}")
    text = reader.amount(entry)
    if text is None:
        return Threshold(ZERO)
    if not text.endswith("%"):
        return Threshold(_quantity_at(reader, entry) or ZERO)
    share = text.removesuffix("%")
    if not _PERCENT.fullmatch(share) or float(share) > _WHOLE:
        reader.reject(entry, f"{shown(text)} is not a share from 0% to 100%")
        return Threshold(ZERO)
    return Threshold(percent=share)


#: `evictionHard`: an amount such as `100Mi` or a share such as `5%` by signal.
EVICTION_THRESHOLDS: Final = mapping_kind(
    "mapping of eviction signals to quantities or percentages",
    {"enum": list(_SIGNALS)},
    {
        "type": ["string", "number"],
        "pattern": rf"^({_QUANTITY_PATTERN}|[0-9]{{1,3}}(\.[0-9]{{1,9}})?%)$",
    },
    _threshold,
    str,
)


class MemoryReservation(Struct, frozen=True):
    """One entry of `reservedMemory`: amounts by memory type on one NUMA node."""

    numa_node: int
    limits: Mapping[str, Quantity]


_RESERVED_MEMORY_KEYS: Final = ("numaNode", "limits")


def _reservations(
    reader: KeyReader, at: Field, _: tuple[MemoryReservation, ...]
) -> tuple[MemoryReservation, ...]:
    seen: set[tuple[int, str]] = set()
    return tuple(_reservation(reader, item, seen) for item in reader.items(at))


def _reservation(reader: KeyReader, item: Field, seen: set[tuple[int, str]]) -> MemoryReservation:
    reader.entries(item)
    reader.reject_unknown(item, _RESERVED_MEMORY_KEYS)
    for key in _RESERVED_MEMORY_KEYS:
        if item.child(key) is None:
            reader.reject(item, f"{key} is missing")
    node_field, limits = map(item.child, _RESERVED_MEMORY_KEYS)
    node = reader.integer(node_field, 0, MAX_ID) if node_field is not None else None
    entries = reader.entries(limits) if limits is not None else {}
    amounts = {name: _reserved_amount(reader, name, entry) for name, entry in entries.items()}
    for name, entry in entries.items():
        if node is not None and (node, name) in seen:
            reader.reject(entry, f"{name} of node {node} is reserved twice")
        seen.add((-1 if node is None else node, name))
    return MemoryReservation(node or 0, MappingProxyType(amounts))


def _reserved_amount(reader: KeyReader, name: str, entry: Field) -> Quantity:
    if not is_memory_type(name):
        reader.reject(entry, f"{shown(name)} is not a memory type; memory and hugepages-* are")
        return ZERO
    _reject_name(reader, entry, name)
    amount = _quantity_at(reader, entry)
    if amount is not None and (not amount or amount.as_int64() is None):
        reader.reject(entry, f"{amount} is not a positive whole number of bytes")
    return amount or ZERO


def _written_reservations(value: tuple[MemoryReservation, ...]) -> Plain:
    return [
        {
            "numaNode": reservation.numa_node,
            "limits": {name: str(amount) for name, amount in reservation.limits.items()},
        }
        for reservation in value
    ]


#: `reservedMemory`: it replaces that of the base, and may name a node again for another type.
RESERVED_MEMORY: Final[Kind[tuple[MemoryReservation, ...]]] = Kind(
    "list of mappings with numaNode and limits",
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "numaNode": {"type": "integer", "minimum": 0, "maximum": MAX_ID},
                "limits": {
                    "type": "object",
                    "propertyNames": {"pattern": "^(memory|hugepages-.+)$"},
                    "additionalProperties": nullable(_AMOUNT),
                },
            },
            "required": list(_RESERVED_MEMORY_KEYS),
            "additionalProperties": False,
        },
    },
    _reservations,
    _written_reservations,
)


def _list_of_names(
    words: str, pattern: str, fault_of: Callable[[str], str | None]
) -> Kind[tuple[str, ...]]:
    """Return the kind of a list of names, each once; the list replaces that of the base.

    `fault_of` returns what is wrong with a name, said behind it, None for nothing.
    """

    def read(reader: KeyReader, at: Field, _: tuple[str, ...]) -> tuple[str, ...]:
        found: list[str] = []
        for item in reader.items(at):
            name = reader.text(item)
            if name is None:
                continue
            fault = "is listed twice" if name in found else fault_of(name)
            if fault is not None:
                reader.reject(item, f"{shown(name)} {fault}")
            else:
                found.append(name)
        return tuple(found)

    names = {"type": "string", "pattern": pattern}
    return Kind(words, {"type": "array", "items": names, "uniqueItems": True}, read, list)


def _fault_of_ignored(name: str) -> str | None:
    """Return why the agent cannot leave a resource to others; None when it can."""
    # A host may not show how much memory a node has; then the agent cannot say what fits.
    if name == MEMORY:
        return None
    fault = prefixed_resource_fault(name)
    if fault is not None and resource_name_fault(name) is None:
        fault = "it is the node's own; others provide extended resources such as example.com/gpu"
    return None if fault is None else f"cannot be ignored: {fault}"


#: `agent.ignoredResources`: resources that others provide.
IGNORED_RESOURCES: Final = _list_of_names(
    "list of resources", "^(memory|[^/]+/[^/]+)$", _fault_of_ignored
)


_CGROUP_NAME: Final = re.compile(r"[^/*\x00-\x1f\x7f]{1,255}\*?")


def _fault_of_cgroup(name: str) -> str | None:
    if _CGROUP_NAME.fullmatch(name) is None:
        return "is neither the name of a cgroup nor the beginning of one and *"
    return None


#: Names of cgroups, of which `*` at the end is any.
CGROUP_NAMES: Final = _list_of_names(
    "list of cgroups such as ovs.slice or lxc.*", f"^{_CGROUP_NAME.pattern}$", _fault_of_cgroup
)
