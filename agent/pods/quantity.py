"""Kubernetes quantities (`500m`, `4Gi`, `1e3`) as exact integers.

The rules are those of k8s.io/apimachinery `pkg/api/resource`: an amount finer than 10^-9 is
rounded up (away from zero), a binary amount is capped at 2^63-1, and the canonical text keeps
the notation (binary, decimal, exponent) in which the amount was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec import Struct

_NANO: Final = 10**9
_NANO_PER_MILLI: Final = 10**6
MAX_INT64: Final = 2**63 - 1
#: Longer texts and larger exponents are mistakes or attacks, not amounts.
_MAX_TEXT: Final = 128
_MAX_EXPONENT: Final = 99

_PATTERN: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?",
    re.ASCII,
)
_ALLOWED: Final = (
    "write a number such as 2, 0.5, 500m or 4Gi; suffixes are n u m k M G T P E, "
    "Ki Mi Gi Ti Pi Ei, or an exponent such as e3"
)
#: An amount of memory as other programs write it: `8GB`, `8 gib`, `8g`.
_LIKE_MEMORY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgtpe])i?b?", re.ASCII | re.IGNORECASE)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_DECIMAL_EXA: Final = 18
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_TEXT: Final = {power: suffix for suffix, power in _DECIMAL.items()} | {18: "E"}
_BINARY_TEXT: Final = {0: ""} | {power: suffix for suffix, power in _BINARY.items()}


class Notation(StrEnum):
    """How an amount was written (resource.Format); the canonical text keeps it."""

    BINARY = "BinarySI"
    DECIMAL = "DecimalSI"
    EXPONENT = "DecimalExponent"


@dataclass
class QuantityError(ValueError):
    """A text is not a Kubernetes quantity; `text` is what was found, `reason` why not."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.text!r} is not a quantity: {self.reason}"


def _meant(text: str) -> str:
    """Return a question whether an amount of memory was meant, "" for what looks like none."""
    match = _LIKE_MEMORY.fullmatch(text)
    return "" if match is None else f"did you mean {match[1]}{match[2].upper()}i of memory? "


class Quantity(Struct, frozen=True, eq=False):
    """An exact amount in units of 10^-9 (the finest that Kubernetes keeps).

    Two quantities are equal when their amounts are; `notation` only decides the text.
    """

    nano: int
    notation: Notation = Notation.DECIMAL

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Return the amount that `text` names; white space around it is ignored.

        Raises `QuantityError`, which quotes the text and says what is allowed.
        """
        stripped = text.strip(" \t\r\n")
        if len(stripped) > _MAX_TEXT:
            raise QuantityError(stripped[:24] + "...", f"it is longer than {_MAX_TEXT} characters")
        match = _PATTERN.fullmatch(stripped)
        if match is None or not (match["whole"] or match["part"]):
            raise QuantityError(text, f"{_meant(stripped)}{_ALLOWED}")
        return _from_match(match)

    @classmethod
    def of(cls, units: int) -> Quantity:
        """Return an amount of whole units."""
        return cls(units * _NANO)

    @classmethod
    def of_bytes(cls, size: int) -> Quantity:
        """Return a number of bytes, written with binary suffixes."""
        return cls(size * _NANO, Notation.BINARY)

    @property
    def value(self) -> int:
        """The amount in whole units, rounded up and at most 2^63-1 (resource.Quantity.Value).

        Where Kubernetes counts on in 64 bits, and so arrives at any number, this is the largest.
        """
        return min(-(-self.nano // _NANO), MAX_INT64)

    @property
    def milli_value(self) -> int:
        """The amount in thousandths, rounded up and at most 2^63-1 (Quantity.MilliValue)."""
        return min(-(-self.nano // _NANO_PER_MILLI), MAX_INT64)

    @property
    def is_whole(self) -> bool:
        """Whether the amount is a whole number of units, however large."""
        return self.nano % _NANO == 0

    @property
    def is_whole_in_milli(self) -> bool:
        """Whether the amount, rounded up to thousandths, is a whole number of units."""
        return -(-self.nano // _NANO_PER_MILLI) * _NANO_PER_MILLI % _NANO == 0

    def rounded_to_milli(self) -> Quantity:
        """Return the amount rounded up to thousandths."""
        return self._rounded_to(_NANO_PER_MILLI)

    def rounded_to_units(self) -> Quantity:
        """Return the amount rounded up to whole units, however many."""
        return self._rounded_to(_NANO)

    def _rounded_to(self, step: int) -> Quantity:
        if self.nano % step == 0:
            return self
        return Quantity(-(-self.nano // step) * step, self.notation)

    def as_int64(self) -> int | None:
        """Return the amount when it is a whole number of at most 63 bits, else None.

        It is resource.Quantity.AsInt64 of the canonical text, which is what the API server hands
        to the kubelet (`1.5Gi` arrives there as `1536Mi`).
        """
        whole, rest = divmod(self.nano, _NANO)
        return None if rest or abs(whole) > MAX_INT64 else whole

    def __add__(self, other: Quantity) -> Quantity:
        """Add; the notation is that of the first amount that is not zero (Quantity.Add)."""
        notation = self.notation if self.nano else other.notation
        return Quantity(self.nano + other.nano, notation)

    def __sub__(self, other: Quantity) -> Quantity:
        notation = self.notation if self.nano else other.notation
        return Quantity(self.nano - other.nano, notation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nano == other.nano

    def __ne__(self, other: object) -> bool:
        return not self == other  # not derived from __eq__: Struct has a comparison of its own

    def __hash__(self) -> int:
        return hash(self.nano)

    def __lt__(self, other: Quantity) -> bool:
        return self.nano < other.nano

    def __le__(self, other: Quantity) -> bool:
        return self.nano <= other.nano

    def __bool__(self) -> bool:
        return self.nano != 0

    def __str__(self) -> str:
        """Return the canonical text (resource.Quantity.String): `1Gi` for `1024Mi`."""
        if not self.nano:
            return "0"
        if self.notation is Notation.BINARY and _fits_binary(self.nano):
            return _binary_text(self.nano // _NANO)
        return _decimal_text(self.nano, exponent_form=self.notation is Notation.EXPONENT)


ZERO: Final = Quantity(0)


def _from_match(match: re.Match[str]) -> Quantity:
    digits = match["whole"] + (match["part"] or "")
    places = len(match["part"] or "")
    sign = -1 if match["sign"] == "-" else 1
    suffix = match["suffix"] or ""
    if suffix in _BINARY:
        nano = _scaled_up(int(digits) * 1024 ** _BINARY[suffix], 9 - places)
        return Quantity(sign * min(nano, MAX_INT64 * _NANO), Notation.BINARY)
    power, notation = _decimal_power(suffix, match.string)
    return Quantity(sign * _scaled_up(int(digits), 9 + power - places), notation)


def _decimal_power(suffix: str, text: str) -> tuple[int, Notation]:
    if suffix == "E":
        return _DECIMAL_EXA, Notation.DECIMAL
    if suffix[:1] not in ("e", "E"):
        return _DECIMAL[suffix], Notation.DECIMAL
    exponent = int(suffix[1:])
    if abs(exponent) > _MAX_EXPONENT:
        raise QuantityError(text, f"the exponent is outside of -{_MAX_EXPONENT}..{_MAX_EXPONENT}")
    return exponent, Notation.EXPONENT


def _scaled_up(amount: int, power: int) -> int:
    """Return ceil(amount * 10^power) of a non-negative amount."""
    if power >= 0:
        return int(amount * 10**power)
    return -(-amount // int(10**-power))


def _fits_binary(nano: int) -> bool:
    return abs(nano) >= 1024 * _NANO and nano % _NANO == 0


def _binary_text(amount: int) -> str:
    power = 0
    while amount % 1024 == 0 and power < len(_BINARY):
        amount //= 1024
        power += 1
    return f"{amount}{_BINARY_TEXT[power]}"


def _decimal_text(nano: int, *, exponent_form: bool) -> str:
    power = -9
    while nano % 1000 == 0 and (exponent_form or power < _DECIMAL_EXA):
        nano //= 1000
        power += 3
    if not exponent_form:
        return f"{nano}{_DECIMAL_TEXT[power]}"
    return f"{nano}e{power}" if power else str(nano)
