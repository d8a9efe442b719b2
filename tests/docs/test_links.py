"""Links of the pages lead to files and headings that exist."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "changelog.d").glob("*.md")),
]

#: `[text](target)`, the text possibly over several lines.
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
#: What is another site.
ELSEWHERE = ("http://", "https://", "mailto:")
#: Blocks of code, and code in a line, in which nothing is a link.
BLOCK = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def links_of(text: str) -> list[tuple[str, str]]:
    """Return the files that a page's links name, relative to it, and the anchors in them."""
    targets = LINK.findall(INLINE.sub("", BLOCK.sub("", text)))
    parts = [target.partition("#") for target in targets if not target.startswith(ELSEWHERE)]
    return [(name, anchor) for name, _, anchor in parts]


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    anchors: set[str] = set()
    for heading in HEADING.findall(BLOCK.sub("", text)):
        plain = LINK.sub(lambda found: found[0][1:].partition("]")[0], heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return anchors


@cache
def anchors_in(page: Path) -> set[str]:
    return anchors_of(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    missing = []
    # Fragments become a part of CHANGELOG.md.
    folder = ROOT if page.name.startswith("+") else page.parent
    for name, anchor in links_of(page.read_text()):
        file = folder / name if name else page
        if not file.exists() or (anchor and anchor not in anchors_in(file.resolve())):
            missing.append(f"{name}#{anchor}" if anchor else name)
    assert missing == []


def test_links_and_anchors_are_those_of_the_text_and_not_of_its_code() -> None:
    text = (
        "# `a`: the *first*, [x](y.md)\n[a](docs/a.md#top), [two\nlines](../b.py), [here](#x)"
        " [site](https://example.invalid/) `[code](c.md)`\n```\n# no heading\n[code](d.md)\n```\n"
        "## Same\n\n### Same\n"
    )
    assert links_of(text) == [("y.md", ""), ("docs/a.md", "top"), ("../b.py", ""), ("", "x")]
    assert anchors_of(text) == {"a-the-first-x", "same", "same-1"}
