"""Cuts texts and lists of clients to a length that fits into a log line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_Item = TypeVar("_Item")

#: The longest text, in characters.
LONGEST: Final = 512


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return a text of at most `longest` characters, with an ellipsis if it was cut."""
    return text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def first(items: Sequence[_Item], most: int) -> tuple[Sequence[_Item], int]:
    """Return the first items, and the number of the others."""
    return items[:most], max(0, len(items) - most)
