"""That every test named in docs/differences.md exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


@cache
def names_in(file: Path) -> set[str]:
    """Return the tests of a file as pytest names them."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (item for item in node.body if isinstance(item, ast.FunctionDef))
            found |= {f"{node.name}::{item.name}" for item in inner}
    return found


def test_every_difference_is_shown_by_tests_that_exist() -> None:
    text = (ROOT / "docs/differences.md").read_text()
    named = NAMED.findall(text)
    assert len(named) > 30
    missing = [f"{file}::{test}" for file, test in named if test not in names_in(ROOT / file)]
    assert missing == []


def test_no_difference_is_without_a_test() -> None:
    lines = (ROOT / "docs/differences.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| ---")]
    heads = ("| the kubelet |", "| the documents |")
    assert [row for row in rows if not row.startswith(heads) and not NAMED.search(row)] == []
