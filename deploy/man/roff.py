"""Text in the language of manual pages, man(7): what a reader sees is what was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def escaped(text: str) -> str:
    """Return a text of one line: hyphens are ASCII, so that options can be copied."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def bold(text: str) -> str:
    """Return a text of one line in bold."""
    return f"\\fB{escaped(text)}\\fR"


def title(name: str, date: str, version: str) -> str:
    """Return the first line of a page of section 1."""
    quoted = (f'"{escaped(text)}"' for text in (name.upper(), "1", date, version, "Numawarden"))
    return f".TH {' '.join(quoted)}"


def section(name: str, lines: Iterable[str]) -> list[str]:
    """Return a section with its lines, nothing without lines."""
    found = list(lines)
    return [f'.SH "{escaped(name.upper())}"', *found] if found else []


def paragraphs(text: str) -> list[str]:
    """Return paragraphs, which blank lines separate."""
    parts = [escaped(part) for part in text.split("\n\n") if part.strip()]
    return [line for number, part in enumerate(parts) for line in ([".PP"] * (number > 0) + [part])]


def entry(term: str, text: str) -> list[str]:
    """Return a term, already in the language of the page, and what is said of it."""
    return [".TP", term, escaped(text) or "\\&"]
