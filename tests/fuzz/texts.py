"""Quantities and CPU lists, against readings of their texts that share no code with ours."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Final

from agent.pods.quantity import MAX_INT64, Quantity, QuantityError
from sysfs.mask import MAX_ID, Mask
from tests.fuzz.damage import damaged_text
from tests.fuzz.target import Nonsense, Target, demand, plain_check

_QUANTITIES: Final = (
    "0", "1", "2.5", "500m", "100u", "7n", "4Gi", "1.5Ki", "3Ei", "9E", "12k", "1e3", "2E-3", "+1",
    "-5", ".5", "5.", "0.0000000001", "9223372036854775807", "8Ei", "1e99", "-1e-99", "0e0",
    "00010", " 1 ", "1.1Ti", "123456789.987654321",
)  # fmt: skip
_LISTS: Final = (
    "", "0", "0-3", "0-3,8", "1,3,5-7", "0-65535", "65535", "0-7,16-23", "10-11,2", "3-3",
    "0-1,0-1", " 0-3\n", "007", "0-15:2/4", "all", "none",
)  # fmt: skip
_POWERS: Final[dict[str, int | Fraction]] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": 10**3,
    "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18, "Ki": 2**10, "Mi": 2**20,
    "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def naive_quantity(text: str) -> Fraction:
    """Return the exact amount of a text that is a quantity."""
    text = text.strip(" \t\r\n")
    for suffix in sorted(_POWERS, key=len, reverse=True):
        if text.endswith(suffix):
            return Fraction(text.removesuffix(suffix).rstrip(".")) * _POWERS[suffix]
    mantissa, _, exponent = text.lower().partition("e")
    return Fraction(mantissa.rstrip(".")) * Fraction(10) ** int(exponent or "0")


def naive_nano(text: str) -> int:
    """Return the amount of a text that is a quantity in units of 10^-9, rounded away from zero.

    One with a binary suffix is capped at 2^63-1 units.
    """
    exact = naive_quantity(text) * 10**9
    nano = ceil(exact) if exact >= 0 else -ceil(-exact)
    most = MAX_INT64 * 10**9
    return max(-most, min(nano, most)) if text.strip().endswith("i") else nano


def check_quantity(data: bytes) -> bool:
    """Try one quantity: its amount is that of the text, and its own text names it again."""
    text = data.decode("utf-8", "replace")
    try:
        quantity = Quantity.parse(text)
    except QuantityError:
        return False
    nano = naive_nano(text)
    demand(quantity.nano == nano, f"{quantity.nano} is not {nano}")
    again = Quantity.parse(str(quantity))
    demand(again == quantity, f"{quantity} was written, {again} is read")
    demand(str(again) == str(quantity), f"{again} is not the text {quantity}")
    return True


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


def check_list(data: bytes) -> bool:
    """Try one list: accepted exactly when the naive reading accepts it, and with the same ids."""
    text = data.decode("utf-8", "replace")
    expected = naive_list(text)
    try:
        mask = Mask.parse(text)
    except ValueError as error:
        if isinstance(error, UnicodeError) or "int string conversion" in str(error):
            raise
        demand(expected is None, f"rejected although it is {expected}: {error}")
        return False
    if expected is None:
        raise Nonsense(f"accepted as {mask}")
    demand(set(mask) == expected, f"{mask} is not {sorted(expected)}")
    demand(Mask.parse(str(mask)) == mask, f"{mask} does not name itself")
    return True


QUANTITIES: Final = Target(
    "quantity",
    lambda random: damaged_text(random, _QUANTITIES),
    plain_check(check_quantity),
    weight=40,
)
LISTS: Final = Target(
    "cpu-list", lambda random: damaged_text(random, _LISTS), plain_check(check_list), weight=25
)
