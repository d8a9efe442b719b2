"""Readings of documents, quantities and CPU lists that share no code with those of the product."""

from __future__ import annotations

import json
from fractions import Fraction
from math import ceil
from typing import Any, Final

from agent.pods.quantity import MAX_INT64
from sysfs.mask import MAX_ID

_POWERS: Final[dict[str, int | Fraction]] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": 10**3,
    "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18, "Ki": 2**10, "Mi": 2**20,
    "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def naive_nano(text: str) -> int:
    """Return the amount of a quantity's text in units of 10^-9, rounded away from zero.

    One with a binary suffix is capped at 2^63-1 units.
    """
    exact = _naive_quantity(text.strip(" \t\r\n")) * 10**9
    nano = ceil(exact) if exact >= 0 else -ceil(-exact)
    most = MAX_INT64 * 10**9
    return max(-most, min(nano, most)) if text.strip().endswith("i") else nano


def _naive_quantity(text: str) -> Fraction:
    for suffix in sorted(_POWERS, key=len, reverse=True):
        if text.endswith(suffix):
            return Fraction(text.removesuffix(suffix).rstrip(".")) * _POWERS[suffix]
    mantissa, _, exponent = text.lower().partition("e")
    return Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or "0")


def naive_list(text: str) -> set[int] | None:
    """Return the ids of a list; None when it is none."""
    ids: set[int] = set()
    if not text.strip():
        return ids
    for part in text.strip().split(","):
        ends = part.split("-")
        if len(ends) > 2 or not all(end and set(end) <= set("0123456789") for end in ends):
            return None
        if any(len(end) > 40 or int(end) > MAX_ID for end in ends) or int(ends[0]) > int(ends[-1]):
            return None
        ids.update(range(int(ends[0]), int(ends[-1]) + 1))
    return ids


def naive_json(data: bytes) -> dict[str, Any] | None:
    """Return a document whose numbers are texts; None when it is YAML and not JSON."""
    if not data.lstrip().startswith(b"{"):
        return None
    try:
        document: dict[str, Any] = json.loads(data, parse_int=str, parse_float=str)
    except ValueError:
        return None
    return document
