"""Errors of documents: all mistakes, each with its path and line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from msgspec import Struct

#: The most mistakes of one document that are reported: a text can have thousands.
MISTAKES_REPORTED: Final = 100


class Mistake(Struct, frozen=True):
    """One mistake: `path` names the field (`spec.containers[0].name`), or is "".

    `line` is that of the manifest, from 1, null where the mistake is on no line.
    """

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        return f"{place}{self.path}: {self.message}" if self.path else f"{place}{self.message}"


@dataclass
class DocumentError(Exception):
    """A document was rejected: `source` names it, `problems` are all mistakes in document order.

    Its text has the first 100 of them, and how many there are.
    """

    source: str
    problems: tuple[Mistake, ...]

    what: ClassVar[str] = "document"

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.source}: {self.problems[0]}"
        count = len(self.problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems[:MISTAKES_REPORTED])
        more = count - MISTAKES_REPORTED
        rest = f"\n  and {more} more" if more > 0 else ""
        return f"{self.source}: {count} mistakes in this {self.what}{lines}{rest}"
