"""Durations as Go writes them (`1m30s`), and the kind of key that has one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.parsing.nodes import shown

if TYPE_CHECKING:
    from agent.config.keys.key import KeyReader, Schema
    from agent.parsing.fields import Field
    from agent.parsing.nodes import Plain

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
