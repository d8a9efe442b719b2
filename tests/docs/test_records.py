"""The decisions on record are numbered paragraphs on one page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/contributing/decisions.md").read_text()
DECISION = re.compile(r"^## (\d+)\. (.+)\n\n((?:.+\n)+)(?=\n##|\Z)", re.MULTILINE)


def test_decisions_are_numbered_and_of_one_paragraph_each() -> None:
    found = DECISION.findall(PAGE)
    assert len(found) == PAGE.count("\n## ") > 10
    numbers = [int(number) for number, _, _ in found]
    assert numbers == sorted(set(numbers))
