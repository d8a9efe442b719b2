"""Lines of text: tables, lines under a label, times, and what is red in a terminal.

Every command draws with these. In go texts of any origin, out come lines; `output.print_lines`
prints them and escapes what is not printable. Nothing here prints.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: What needs attention at the beginning of a line: a rejection, a difference, a condition.
_FIRST: Final = (
    "rejected", "would reject", "invalid", "does not fit", "failed", "CONDITION", "DIFFERS",
    "INTRUDES", "warning:", "not enforced:",
    "not exclusive:",
)  # fmt: skip
#: What needs attention anywhere in a line.
_ANYWHERE: Final = ("NOT ENFORCED", "NOT-ENFORCED", "NOT EXCLUSIVE", "NOT-EXCLUSIVE", "NOT READY")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table as `kubectl get` prints one.

    Three blanks separate columns, `-` stands for an empty cell. No cell is cut or wrapped.
    """
    filled = [list(header), *([cell or "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    for row in filled:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "   ".join(cells).rstrip()


def labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, each after the same label."""
    return (f"{label}{line}" for line in lines)


def moment(seconds: float) -> str:
    """Return a Unix time as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def coloured(line: str) -> str:
    """Return a line with the words that need attention in red, as a terminal shows them."""
    body = line.lstrip(" ")
    for words in _FIRST:
        if f"{body} ".startswith(f"{words} "):
            return line[: len(line) - len(body)] + _red(words) + body[len(words) :]
    warning = next((words for words in _ANYWHERE if words in line), None)
    return line if warning is None else line.replace(warning, _red(warning), 1)


def _red(text: str) -> str:
    return click.style(text, fg="red", bold=True)
