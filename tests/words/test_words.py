from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.words.__main__ import LIST
from tests.words.check import (
    Word,
    as_words,
    complaint,
    hits_of,
    lowered,
    texts_below,
    words_in,
)

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
[never]
'\\banew\\b' = "again"

[to-come]
'\\btold\\b' = { instead = "report", hits = 3 }
'\\bdoors?\\b' = { instead = "listener", hits = 2 }
"""
TOLD = Word(r"\btold\b", "report", allowed=1)


def tree(root: Path, **files: str) -> Path:
    """Make a checkout with files in `docs`, by their names without the ending."""
    folder = root / "docs"
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.md").write_text(text)
    return root


def test_a_list_has_words_without_hits_and_words_with_some() -> None:
    assert words_in(TEXT) == (
        Word(r"\banew\b", "again"),
        Word(r"\btold\b", "report", 3),
        Word(r"\bdoors?\b", "listener", 2),
    )


def test_a_word_to_come_that_has_no_hits_is_a_mistake_of_the_list() -> None:
    with pytest.raises(ValueError, match="belongs into"):
        words_in(TEXT.replace("hits = 2", "hits = 0"))


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("not_told_yet", "not told yet"),
        ("NotToldError", "not told error"),
        ("HTTPDoor", "http door"),
        ("_told", " told"),
        ("ConnectionRefusedError", "connection refused error"),
    ],
)
def test_identifiers_are_read_as_their_words(identifier: str, words: str) -> None:
    assert as_words(identifier) == words


def test_each_place_is_a_hit_names_of_files_too(tmp_path: Path) -> None:
    root = tree(tmp_path, told="first\nTold, and told again\n", other="retold")
    found = hits_of(TOLD, texts_below(root))
    assert [(hit.file, hit.line) for hit in found] == [
        ("docs/told.md", 0),
        ("docs/told.md", 2),
        ("docs/told.md", 2),
    ]


def test_the_glossary_may_say_which_words_are_not_ours(tmp_path: Path) -> None:
    assert hits_of(TOLD, texts_below(tree(tmp_path, glossary="told"))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("told", None),
        ("told and told", "allowed 1, found 2; say: report"),
        ("said", "allowed 1, left 0; lower it: make words"),
    ],
)
def test_more_hits_than_allowed_are_a_complaint_and_so_are_fewer(
    tmp_path: Path, text: str, expected: str | None
) -> None:
    found = complaint(TOLD, hits_of(TOLD, texts_below(tree(tmp_path, page=text))))
    assert found == [] if expected is None else expected in found[0]


def test_a_complaint_names_every_place_of_a_word_that_has_none_allowed(tmp_path: Path) -> None:
    texts = list(texts_below(tree(tmp_path, page="x\ntold told")))
    never = Word(TOLD.pattern, TOLD.instead)
    assert complaint(never, hits_of(never, texts))[1:] == ["  docs/page.md:2: told told"] * 2
    assert len(complaint(TOLD, hits_of(TOLD, texts))) == 1


def test_counts_are_lowered_and_never_raised() -> None:
    text = lowered(TEXT, {r"\btold\b": 1, r"\bdoors?\b": 5})
    assert text == TEXT.replace("hits = 3", "hits = 1")


def test_the_project_s_own_list_can_be_read_and_lowered() -> None:
    text = LIST.read_text()
    words = words_in(text)
    assert lowered(text, dict.fromkeys((word.pattern for word in words), 10**6)) == text
    coming = [word for word in words if word.allowed]
    fewer = lowered(text, {word.pattern: 1 for word in coming})
    assert [word.allowed for word in words_in(fewer)] == [min(1, word.allowed) for word in words]
