"""Durations as Go writes them (`10s`, `1m30s`, `500ms`), which is how the kubelet's file does."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(h|ms|us|µs|ns|m|s)", re.ASCII)
_MAX_TEXT: Final = 64


def seconds_of(text: str) -> float | None:
    """Return a duration in seconds; None for a text that is none. A bare `0` is one."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text) if len(text) <= _MAX_TEXT else ()
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
