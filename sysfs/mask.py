"""Sets of small integers (CPU ids, NUMA node ids) as one immutable bit mask."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: No kernel supports more; a larger id in a list is a mistake, not a machine.
MAX_ID: Final = 65535
_LONGEST_PART: Final = 40
_PIECE_BITS: Final = 512
#: So many conversions are remembered, of sets of up to so many ids and texts of up to so many
#: characters.
_REMEMBERED: Final = 256
_LARGE: Final = 1 << 4096
_SHORT_TEXT: Final = 4096
_PIECE: Final = (1 << _PIECE_BITS) - 1


@final
class Mask:
    """An immutable set of non-negative integers stored in the bits of one `int`.

    Bit *n* of `bits` is set when id *n* is a member. The text form is the kernel's list
    format (`0-3,8`; Documentation/admin-guide/cputopology.rst), the empty set is `""`.
    """

    __slots__ = ("bits",)

    bits: int

    def __init__(self, bits: int = 0) -> None:
        if bits < 0:
            raise ValueError(f"a mask has no negative bits, got {bits}")
        _set_bits(self, bits)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Mask is immutable: cannot set {name!r} to {value!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Mask is immutable: cannot delete {name!r}")

    @classmethod
    def of(cls, *ids: int) -> Self:
        """Return the mask of the given ids."""
        return cls.from_ids(ids)

    @classmethod
    def from_ids(cls, ids: Iterable[int]) -> Self:
        """Return the mask of all ids of an iterable; raises `ValueError` on a negative id."""
        bits = 0
        for member in ids:
            bits |= 1 << member
        return cls(bits)

    @classmethod
    def union(cls, masks: Iterable[Mask]) -> Self:
        """Return all ids that are in any of the masks."""
        bits = 0
        for mask in masks:
            bits |= mask.bits
        return cls(bits)

    @staticmethod
    def parse(text: str) -> Mask:
        """Parse the kernel's list format.

        Accepts surrounding white space and the empty string. Raises `ValueError`, whose text
        quotes the offending part, on anything else: reversed ranges, signs, ids above 65535.
        """
        return (_parse_short if len(text) <= _SHORT_TEXT else _parse)(text)

    @property
    def lowest(self) -> int:
        """The smallest member; raises `ValueError` on the empty set."""
        if not self.bits:
            raise ValueError("the empty mask has no lowest member")
        return (self.bits & -self.bits).bit_length() - 1

    @property
    def highest(self) -> int:
        """The largest member; raises `ValueError` on the empty set."""
        if not self.bits:
            raise ValueError("the empty mask has no highest member")
        return self.bits.bit_length() - 1

    def isdisjoint(self, other: Mask) -> bool:
        """Return whether the two sets share no member."""
        return not self.bits & other.bits

    def __and__(self, other: Mask) -> Mask:
        return Mask(self.bits & other.bits)

    def __or__(self, other: Mask) -> Mask:
        return Mask(self.bits | other.bits)

    def __sub__(self, other: Mask) -> Mask:
        return Mask(self.bits & ~other.bits)

    def __le__(self, other: Mask) -> bool:
        return not self.bits & ~other.bits

    def __lt__(self, other: Mask) -> bool:
        return self.bits != other.bits and self <= other

    def __ge__(self, other: Mask) -> bool:
        return other <= self

    def __gt__(self, other: Mask) -> bool:
        return other < self

    def __contains__(self, member: int) -> bool:
        return member >= 0 and bool(self.bits >> member & 1)

    def __iter__(self) -> Iterator[int]:
        return iter_bits(self.bits)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return bool(self.bits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self.bits == other.bits

    def __hash__(self) -> int:
        return hash(self.bits)

    def __str__(self) -> str:
        return (_text_of_small if self.bits < _LARGE else _text)(self.bits)

    def __repr__(self) -> str:
        return f"Mask({str(self)!r})"

    def __reduce__(self) -> tuple[type[Mask], tuple[int]]:
        return Mask, (self.bits,)


#: Past `Mask.__setattr__`, which rejects.
_set_bits: Final = Mask.bits.__set__  # type: ignore[attr-defined,misc]  # the slot itself

EMPTY: Final = Mask(0)


def iter_bits(bits: int) -> Iterator[int]:
    """Yield the positions of the set bits of a non-negative integer, ascending."""
    first = 0
    while bits:
        # Piece by piece: each step on the whole would cost as much as the largest id is high.
        piece = bits & _PIECE
        while piece:
            low = piece & -piece
            yield first + low.bit_length() - 1
            piece ^= low
        bits >>= _PIECE_BITS
        first += _PIECE_BITS


def _text(bits: int) -> str:
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in _runs(bits)
    )


def _parse(text: str) -> Mask:
    stripped = text.strip()
    bits = 0
    for part in stripped.split(",") if stripped else ():
        bits |= _range_bits(part)
    return Mask(bits)


# Thousands of cgroups show the same few sets, and are looked at again and again.
_text_of_small = lru_cache(maxsize=_REMEMBERED)(_text)
_parse_short = lru_cache(maxsize=_REMEMBERED)(_parse)


def _runs(bits: int) -> Iterator[tuple[int, int]]:
    first = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        first += skip
        length = (~bits & (bits + 1)).bit_length() - 1
        yield first, first + length - 1
        bits >>= length
        first += length


def _range_bits(part: str) -> int:
    first_text, dash, last_text = part.partition("-")
    first = _member(first_text, part)
    last = _member(last_text, part) if dash else first
    if last < first:
        raise ValueError(f"range {_shown(part)} runs backwards")
    return (1 << last + 1) - (1 << first)


def _member(text: str, part: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{_shown(part)} is not a number or a range of numbers such as 0-3")
    # Counted first: int() rejects thousands of digits with an error of its own.
    if len(text) > _LONGEST_PART or int(text) > MAX_ID:
        raise ValueError(f"{_shown(part)} names an id above {MAX_ID}")
    return int(text)


def _shown(part: str) -> str:
    return repr(part if len(part) <= _LONGEST_PART else f"{part[:_LONGEST_PART]}...")
