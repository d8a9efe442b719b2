"""Durations as Go writes them: `10s`, `1m30s`, `500ms`. Values are seconds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.config.kinds import text_kind
from agent.yaml import shown

if TYPE_CHECKING:
    from agent.config.kinds import Kind

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(h|ms|us|µs|ns|m|s)", re.ASCII)
#: Characters of a text that is read; a longer one is no duration.
_LONGEST: Final = 64


def period(shortest: float, longest: float) -> Kind[float]:
    """Return the kind of a duration in seconds within bounds, both included."""
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


def seconds_of(text: str) -> float | None:
    """Return a duration in seconds; None where the text is not a duration. `0` needs no unit."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text) if len(text) <= _LONGEST else ()
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def duration_text(seconds: float) -> str:
    """Return the shortest text of a duration that is not negative, to the nanosecond."""
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
