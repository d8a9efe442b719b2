"""Every row of docs/differences.md is shown by tests, which name its key in a comment above."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/differences.md").read_text()
#: What begins a row.
KEY: Final = re.compile(r"^- `([a-z0-9-]+)`: .+ → ")
#: `# Shows in differences.md: KEY, KEY`, directly above a test or a class, or what decorates it.
MARK: Final = re.compile(
    r"^( *)# Shows in differences\.md: (.+)\n(?=(?:\1@(?s:.)*?)?\1(?:def test_|class Test))",
    re.MULTILINE,
)


def rows() -> list[str]:
    return [line for line in PAGE.splitlines() if line.startswith("- ")]


def marked() -> set[str]:
    """Return the keys that tests name."""
    files = ((file, file.read_text()) for file in (ROOT / "tests").rglob("test_*.py"))
    found = [MARK.findall(text) for file, text in files if file != Path(__file__)]
    return {key for marks in found for _, keys in marks for key in keys.split(", ")}


def test_every_row_has_a_key_of_its_own() -> None:
    keys = [found[1] if (found := KEY.search(row)) else row for row in rows()]
    assert len(keys) > 30
    assert {key: count for key, count in Counter(keys).items() if count > 1} == {}
    assert [key for key in keys if key.startswith("-")] == []


def test_every_row_is_named_by_a_test_and_every_named_row_exists() -> None:
    found = {match[1] for row in rows() if (match := KEY.search(row))}
    assert marked() == found


def test_a_mark_stands_above_a_test() -> None:
    mark = "# Shows in differences.md:"
    text = f"{mark} a, b\n@mark(\n)\ndef test_a():\n    {mark} c\n    x = 1\n"
    assert [keys for _, keys in MARK.findall(text)] == ["a, b"]
