"""Kinds of keys with a single value: one of several names, a number, a path, an address."""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from msgspec import Struct

from agent.yaml import Field, Plain, shown
from sysfs.mask import Mask

if TYPE_CHECKING:
    from agent.config.keys.key import KeyReader, Schema

Choice = TypeVar("Choice", bound=StrEnum)

#: A host name or an address, no user and no query: neither belongs in a configuration.
_HTTPS: Final = re.compile(
    r"https://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/[A-Za-z0-9._~/-]*", re.ASCII
)
_GROUP: Final = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,63}\$?", re.ASCII)
#: sun_path of a Unix socket address holds 108 bytes, the closing zero included.
_MAX_SOCKET_PATH: Final = 107
_ABSOLUTE: Final[Schema] = {"type": "string", "pattern": "^(/.*)?$"}


class DocumentMarker(Struct, frozen=True):
    """A key that says what the document is; `own` is the value of the agent's own files."""

    allowed: tuple[str, ...]
    own: str

    @property
    def words(self) -> str:
        """The values in words."""
        return f"one of {', '.join(self.allowed)}"

    def read(self, reader: KeyReader, at: Field, base: None) -> None:
        """Note a value that is not allowed; nothing is kept of it."""
        del base
        reader.choice(at, self.allowed)

    def written(self, value: None) -> Plain:
        """Return the value of the agent's own files."""
        del value
        return self.own

    def schema(self) -> Schema:
        """Return the values."""
        return {"type": "string", "enum": list(self.allowed)}


class Switch(Struct, frozen=True):
    """Whether something is on."""

    words: ClassVar[str] = "true or false"

    def read(self, reader: KeyReader, at: Field, base: bool) -> bool:  # noqa: FBT001  # of all kinds
        """Return the value."""
        value = reader.boolean(at)
        return base if value is None else value

    def written(self, value: bool) -> Plain:  # noqa: FBT001  # of all kinds
        """Return the value."""
        return value

    def schema(self) -> Schema:
        """Return a boolean."""
        return {"type": "boolean"}


class OneOf(Struct, Generic[Choice], frozen=True):
    """One of the values of an enumeration."""

    choices: type[Choice]

    @property
    def words(self) -> str:
        """The values in words."""
        return f"one of {', '.join(self.choices)}"

    def read(self, reader: KeyReader, at: Field, base: Choice) -> Choice:
        """Return the value."""
        name = reader.choice(at, self.choices)
        return base if name is None else self.choices(name)

    def written(self, value: Choice) -> Plain:
        """Return the name."""
        return str(value)

    def schema(self) -> Schema:
        """Return the names."""
        return {"type": "string", "enum": list(map(str, self.choices))}


class OneOfAnyCase(Struct, Generic[Choice], frozen=True):
    """One of the values of an enumeration in any letter case.

    `elsewhere` are values, in lower case, that exist and cannot be used here, with the reason.
    """

    choices: type[Choice]
    elsewhere: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> str:
        """The values in words."""
        return f"one of {', '.join(self.choices)} in any letter case"

    def read(self, reader: KeyReader, at: Field, base: Choice) -> Choice:
        """Return the value."""
        text = reader.text(at)
        if text is None:
            return base
        by_folded = {choice.lower(): choice for choice in self.choices}
        choice = by_folded.get(text.lower())
        if choice is None:
            reason = dict(self.elsewhere).get(text.lower())
            why = f" ({reason})" if reason is not None else ""
            reader.reject(at, f"{shown(text)} is not one of {', '.join(self.choices)}{why}")
        return choice or base

    def written(self, value: Choice) -> Plain:
        """Return the name in its usual letter case."""
        return str(value)

    def schema(self) -> Schema:
        """Return a pattern, since a list of names would be in one letter case."""
        names = (
            "".join(f"[{letter.upper()}{letter.lower()}]" for letter in name)
            for name in self.choices
        )
        return {
            "type": "string",
            "pattern": f"^({'|'.join(names)})$",
            "examples": list(map(str, self.choices)),
        }


class WholeNumber(Struct, frozen=True):
    """A whole number within bounds, both included; `zero_means` is what a 0 stands for."""

    lowest: int
    highest: int
    zero_means: int = 0

    @property
    def words(self) -> str:
        """The type and its bounds in words."""
        return f"whole number from {self.lowest} to {self.highest}"

    def read(self, reader: KeyReader, at: Field, base: int) -> int:
        """Return the number."""
        number = reader.integer(at, self.lowest, self.highest)
        return base if number is None else number or self.zero_means

    def written(self, value: int) -> Plain:
        """Return the number."""
        return value

    def schema(self) -> Schema:
        """Return an integer with the bounds."""
        return {"type": "integer", "minimum": self.lowest, "maximum": self.highest}


class CpuList(Struct, frozen=True):
    """A list of CPUs as the kernel writes it; None where the text is empty."""

    words: ClassVar[str] = "list of CPUs such as 0-1,8"

    def read(self, reader: KeyReader, at: Field, base: Mask | None) -> Mask | None:
        """Return the CPUs."""
        text = reader.amount(at)
        if text is None:
            return base
        try:
            return Mask.parse(text) or None
        except ValueError as error:
            reader.reject(at, f"{shown(text)} is not a list of CPUs such as 0-1,8: {error}")
            return base

    def written(self, value: Mask | None) -> Plain:
        """Return the list, or an empty text."""
        return "" if value is None else str(value)

    def schema(self) -> Schema:
        """Return a text; a single CPU may be a number."""
        return {"type": ["string", "integer"], "minimum": 0}


class OptionalPath(Struct, frozen=True):
    """An absolute path; None where the text is empty, as the kubelet writes "unset"."""

    words: ClassVar[str] = 'absolute path, or ""'

    def read(self, reader: KeyReader, at: Field, base: Path | None) -> Path | None:
        """Return the path."""
        text = reader.text(at)
        if text is None:
            return base
        return _absolute(reader, at, text) if text else None

    def written(self, value: Path | None) -> Plain:
        """Return the path, or an empty text."""
        return "" if value is None else str(value)

    def schema(self) -> Schema:
        """Return an absolute path or an empty text."""
        return _ABSOLUTE


class RequiredPath(Struct, frozen=True):
    """An absolute path; an empty text leaves the one of the base."""

    words: ClassVar[str] = "absolute path"

    def read(self, reader: KeyReader, at: Field, base: Path) -> Path:
        """Return the path."""
        text = reader.text(at)
        return _absolute(reader, at, text) if text else base

    def written(self, value: Path) -> Plain:
        """Return the path."""
        return str(value)

    def schema(self) -> Schema:
        """Return an absolute path or an empty text."""
        return _ABSOLUTE


class SocketPath(RequiredPath, frozen=True):
    """The absolute path of a Unix socket."""

    words: ClassVar[str] = f"absolute path of at most {_MAX_SOCKET_PATH} bytes"

    def read(self, reader: KeyReader, at: Field, base: Path) -> Path:
        """Return the path."""
        path = super().read(reader, at, base)
        _check_socket_path(reader, at, path)
        return path

    def schema(self) -> Schema:
        """Return an absolute path; its bytes are at least its characters."""
        return {**_ABSOLUTE, "maxLength": _MAX_SOCKET_PATH}


class OptionalSocketPath(OptionalPath, frozen=True):
    """The absolute path of a Unix socket; None where the text is empty."""

    words: ClassVar[str] = f'{SocketPath.words}, or ""'

    def read(self, reader: KeyReader, at: Field, base: Path | None) -> Path | None:
        """Return the path."""
        path = super().read(reader, at, base)
        _check_socket_path(reader, at, path)
        return path

    def schema(self) -> Schema:
        """Return an absolute path or an empty text; its bytes are at least its characters."""
        return {**_ABSOLUTE, "maxLength": _MAX_SOCKET_PATH}


def _check_socket_path(reader: KeyReader, at: Field, path: Path | None) -> None:
    if path is not None and len(str(path).encode()) > _MAX_SOCKET_PATH:
        reader.reject(at, f"the path of a socket has at most {_MAX_SOCKET_PATH} bytes")


class CgroupPath(Struct, frozen=True):
    """The path of a cgroup within the cgroup file system; an empty text is its root."""

    words: ClassVar[str] = "absolute path within the cgroup file system"

    def read(self, reader: KeyReader, at: Field, base: str) -> str:
        """Return the path."""
        text = reader.text(at)
        if text is None:
            return base
        return str(_absolute(reader, at, text)) if text else "/"

    def written(self, value: str) -> Plain:
        """Return the path."""
        return value

    def schema(self) -> Schema:
        """Return an absolute path or an empty text."""
        return _ABSOLUTE


class UserGroup(Struct, frozen=True):
    """The name of a group of users; None where the text is empty."""

    words: ClassVar[str] = 'name of a group, or ""'

    def read(self, reader: KeyReader, at: Field, base: str | None) -> str | None:
        """Return the name."""
        text = reader.text(at)
        if text is None:
            return base
        if text and not _GROUP.fullmatch(text):
            reader.reject(at, f"{shown(text)} is not the name of a group")
        return text or None

    def written(self, value: str | None) -> Plain:
        """Return the name, or an empty text."""
        return value or ""

    def schema(self) -> Schema:
        """Return a name or an empty text."""
        return {"type": "string", "pattern": f"^({_GROUP.pattern})?$"}


class IpAddress(Struct, frozen=True):
    """An IP address of version 4 or 6, kept in its canonical text."""

    words: ClassVar[str] = "IP address"

    def read(self, reader: KeyReader, at: Field, base: str) -> str:
        """Return the address."""
        text = reader.text(at)
        if text is None:
            return base
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            reader.reject(at, f"{shown(text)} is not an IP address such as 127.0.0.1 or ::1")
            return base

    def written(self, value: str) -> Plain:
        """Return the address."""
        return value

    def schema(self) -> Schema:
        """Return a text with the characters of an address, the zone of a link included."""
        return {"type": "string", "pattern": "^([0-9.]+|[0-9A-Fa-f:.]+(%.+)?)$"}


class HttpsAddress(Struct, frozen=True):
    """The address of a page served over HTTPS; an empty text is none."""

    words: ClassVar[str] = 'https address, or ""'

    def read(self, reader: KeyReader, at: Field, base: str) -> str:
        """Return the address."""
        text = reader.text(at)
        if text is None:
            return base
        if text and not _HTTPS.fullmatch(text):
            reader.reject(at, f"{shown(text)} is not like https://127.0.0.1:10250/pods")
        return text

    def written(self, value: str) -> Plain:
        """Return the address."""
        return value

    def schema(self) -> Schema:
        """Return an address or an empty text."""
        return {"type": "string", "pattern": f"^({_HTTPS.pattern})?$"}


def _absolute(reader: KeyReader, at: Field, text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts or not text.isprintable():
        reader.reject(at, f"{shown(text)} is not an absolute path without '..'")
    return path


_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(h|ms|us|µs|ns|m|s)", re.ASCII)

_MAX_TEXT: Final = 64


class Period(Struct, frozen=True):
    """A duration in seconds within bounds, both included, written as Go writes it."""

    shortest: float
    longest: float

    @property
    def words(self) -> str:
        """The type and its bounds in words."""
        return f"duration from {duration_text(self.shortest)} to {duration_text(self.longest)}"

    def read(self, reader: KeyReader, at: Field, base: float) -> float:
        """Return the seconds."""
        text = reader.text(at)
        if text is None:
            return base
        seconds = seconds_of(text)
        if seconds is None:
            reader.reject(at, f"{shown(text)} is not a duration; write one such as 10s or 1m30s")
            return base
        if not self.shortest <= seconds <= self.longest:
            bounds = f"{duration_text(self.shortest)} and {duration_text(self.longest)}"
            reader.reject(at, f"{shown(text)} is not between {bounds}")
        return seconds

    def written(self, value: float) -> Plain:
        """Return the duration to the nanosecond."""
        return duration_text(value)

    def schema(self) -> Schema:
        """Return a text of numbers with units; the bounds are not part of it."""
        return {"type": "string", "pattern": "^([0-9]+(\\.[0-9]+)?(h|ms|us|µs|ns|m|s))+$"}


def seconds_of(text: str) -> float | None:
    """Return a duration in seconds; None for a text that is none. A bare `0` is one."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text) if len(text) <= _MAX_TEXT else ()
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
