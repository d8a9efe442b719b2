"""Which words are not ours, how often they still stand in the tree, and where."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: Where words are looked for, from the root of the checkout.
PLACES: Final = (
    ".ci",
    "CONTRIBUTING.md",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "agent",
    "cgroupfs",
    "changelog.d",
    "deploy",
    "docs",
    "pyproject.toml",
    "sysfs",
    "systemd",
    "tests",
)
#: What is not read: names of others, and the pages that say which words are not ours.
EXCEPT: Final = ("deploy/requirements", "docs/glossary.md", "tests/words")
#: What is text in our own words; the rest is recorded, drawn or compiled.
TEXTS: Final = frozenset({".conf", ".md", ".py", ".service", ".sh", ".toml", ".yaml", ""})

#: Where an identifier is taken apart: snake_case and CamelCase.
_PARTS: Final = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Word(Struct, frozen=True):
    """A word that is not ours: its pattern, what to say, and how many hits are still allowed."""

    pattern: str
    instead: str
    allowed: int = 0


class Hit(Struct, frozen=True):
    """One place of a word; line 0 is the file's name."""

    file: str
    line: int
    text: str


class Text(Struct, frozen=True):
    """A file: its name as line 0, then its lines; `words` are the same lines as words."""

    file: str
    lines: tuple[str, ...]
    words: str


def words_in(text: str) -> tuple[Word, ...]:
    """Return the words of `words.toml`; raises `ValueError` for a count that cannot be one."""
    document = tomllib.loads(text)
    to_come = document["to-come"]
    if late := [pattern for pattern, entry in to_come.items() if entry["hits"] < 1]:
        raise ValueError(f"without hits, so it belongs into [never]: {', '.join(late)}")
    return (
        *(Word(pattern, instead) for pattern, instead in document["never"].items()),
        *(Word(pattern, entry["instead"], entry["hits"]) for pattern, entry in to_come.items()),
    )


def as_words(text: str) -> str:
    """Return a text in lower case, its identifiers taken apart."""
    return _PARTS.sub(" ", text).lower()


def texts_below(root: Path) -> Iterator[Text]:
    """Yield every file in which words are looked for."""
    for file in _files_below(root):
        name = file.relative_to(root).as_posix()
        text = f"{name}\n{file.read_text()}"
        yield Text(name, tuple(text.split("\n")), as_words(text))


def hits_of(word: Word, texts: Iterable[Text]) -> list[Hit]:
    """Return every place of a word."""
    pattern = re.compile(word.pattern)
    found: list[Hit] = []
    for text in texts:
        for match in pattern.finditer(text.words):
            line = text.words.count("\n", 0, match.start())
            found.append(Hit(text.file, line, text.lines[line].strip()))
    return found


def complaint(word: Word, hits: list[Hit]) -> list[str]:
    """Return what is wrong with the number of hits, line by line; empty when nothing is."""
    if len(hits) == word.allowed:
        return []
    if len(hits) < word.allowed:
        return [f"{word.pattern}: allowed {word.allowed}, left {len(hits)}; lower it: make words"]
    what = f"{word.pattern}: allowed {word.allowed}, found {len(hits)}; say: {word.instead}"
    if word.allowed:
        return [f"{what} (the new ones are in your change: git diff)"]
    return [what, *(f"  {hit.file}:{hit.line}: {hit.text}" for hit in hits)]


def lowered(text: str, counts: dict[str, int]) -> str:
    """Return `words.toml` with each count of `[to-come]` as found, where that is less."""

    def less(match: re.Match[str]) -> str:
        found = counts.get(match["pattern"], int(match["hits"]))
        return f"{match['before']}{min(found, int(match['hits']))}{match['after']}"

    entry = r"^(?P<before>'(?P<pattern>[^']+)' = \{.*\bhits = )(?P<hits>\d+)(?P<after>.*\})$"
    return re.sub(entry, less, text, flags=re.MULTILINE)


def _files_below(root: Path) -> Iterator[Path]:
    for place in PLACES:
        start = root / place
        files = sorted(start.rglob("*")) if start.is_dir() else [start]
        for file in files:
            if file.is_file() and file.suffix in TEXTS and not _is_excepted(file, root):
                yield file


def _is_excepted(file: Path, root: Path) -> bool:
    name = file.relative_to(root).as_posix()
    inside = any(name == other or name.startswith(f"{other}/") for other in EXCEPT)
    return inside or "__pycache__" in file.parts
