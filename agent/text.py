"""Texts and lists of names as they fit in a line: of a log, of a terminal, of a pod's status."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def printable(text: str, longest: int | None = None) -> str:
    r"""Return a text without line breaks and codes of terminals, of at most `longest` characters.

    What is not printable is escaped; a byte that is not UTF-8 is shown as `\xe9`. A text that was
    cut ends with an ellipsis.
    """
    shown = text if longest is None else text[: longest + 1]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else _escaped(c) for c in shown)
    if longest is None or len(shown) <= longest:
        return shown
    return f"{shown[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def printable_line(text: str, longest: int) -> str:
    """Return a text as `printable` does, with a space for each run of spaces and line breaks."""
    return printable(" ".join(text.split()), longest)


def some_of(names: Sequence[str], most: int) -> str:
    """Return the first `most` names, and how many more there are: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # how Python reads such a byte (PEP 383)
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
