from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "adr"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
INDEX = FOLDER / "README.md"
ROW = re.compile(r"^\| (\d+) \| \[([^\]]+)\]\(([^)]+)\) \|$", re.MULTILINE)
STATUS = re.compile(r"(Accepted|Replaced by \[\d+\]\([^)]+\))\.")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_every_record_has_the_one_format(record: Path) -> None:
    lines = record.read_text().splitlines()
    number = int(record.name[:4])
    assert lines[0].startswith(f"# {number}. ")
    assert STATUS.fullmatch(lines[2]), lines[2]
    headings = [line for line in lines if line.startswith("## ")]
    assert headings == ["## Context", "## Decision", "## Consequences"]


def test_records_are_numbered_without_a_gap() -> None:
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


def test_the_index_has_every_record_with_its_title() -> None:
    expected = []
    for record in RECORDS:
        number, _, title = record.read_text().splitlines()[0].removeprefix("# ").partition(". ")
        expected.append((number, title, record.name))
    assert ROW.findall(INDEX.read_text()) == expected
