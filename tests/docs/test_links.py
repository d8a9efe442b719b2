from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: `[text](target)`, the text possibly over several lines.
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
#: What is not a file: another site, another place of the same page.
ELSEWHERE = ("http://", "https://", "mailto:", "#")


def files_of(text: str) -> list[str]:
    """Return the files that a page's links name, relative to it."""
    targets = LINK.findall(text)
    return [target.partition("#")[0] for target in targets if not target.startswith(ELSEWHERE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    missing = [name for name in files_of(page.read_text()) if not (page.parent / name).exists()]
    assert missing == []


def test_links_to_files_are_distinguished_from_others() -> None:
    text = "[a](docs/a.md#top), [two\nlines](../b.py), [site](https://example.invalid/), [here](#x)"
    assert files_of(text) == ["docs/a.md", "../b.py"]
