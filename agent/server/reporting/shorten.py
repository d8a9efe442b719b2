"""Texts and lists that others chose, cut to what fits into a line of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_Item = TypeVar("_Item")

#: How many characters of one text are told.
LONGEST: Final = 512


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return a text that is no longer than `longest` characters, its end marked where it was."""
    return text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def first(items: Sequence[_Item], most: int) -> tuple[Sequence[_Item], int]:
    """Return the first items, and how many there are beyond."""
    return items[:most], max(0, len(items) - most)
