from __future__ import annotations

import pytest

from agent.parsing.document import Field, Reader, guess, join, shown
from agent.parsing.reader import read_document


def _field(text: str, key: str) -> Field:
    field = Field("", read_document(text)).child(key)
    assert field is not None
    return field


def test_absent_and_null_are_the_same() -> None:
    root = Field("", read_document("a: null\nb:\n"))
    assert root.child("a") is None
    assert root.child("b") is None
    assert root.child("c") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("5", "found the number 5; put it in quotes"),
        ("true", "found the boolean true; put it in quotes"),
        ("010", "leading zero"),
        ("12:30", "base 60"),
        ("[a]", "found a list"),
        ("{a: b}", "found a mapping"),
    ],
)
def test_a_text_of_another_type_is_rejected_with_what_was_found(value: str, words: str) -> None:
    reader = Reader()
    assert reader.text(_field(f"a:\n  {value}\n", "a")) is None
    (problem,) = reader.problems
    assert (problem.path, problem.line) == ("a", 2)
    assert words in problem.message


@pytest.mark.parametrize("value", ["1.0", "1e3", '"1"', "9" * 100, "11", "-1", "x", "[]"])
def test_only_whole_numbers_within_bounds_are_integers(value: str) -> None:
    reader = Reader()
    assert reader.integer(_field(f"a: {value}\n", "a"), 0, 10) is None
    assert "from 0 to 10" in reader.problems[0].message


def test_bounds_of_an_integer_are_allowed() -> None:
    reader = Reader()
    assert reader.integer(_field("a: 0", "a"), 0, 10) == 0
    assert reader.integer(_field("a: +10", "a"), 0, 10) == 10
    assert not reader.problems


def test_unknown_keys_are_rejected_with_the_nearest_name() -> None:
    reader = Reader()
    reader.reject_unknown(Field("x", read_document("adress: 1\nport: 2\n")), ("address", "port"))
    (problem,) = reader.problems
    assert str(problem) == 'line 1: x.adress: unknown key "adress"; did you mean "address"?'


def test_a_guess_ignores_case_and_may_find_nothing() -> None:
    assert guess("STATIC", ["none", "static"]) == '; did you mean "static"?'
    assert guess("zzz", ["none", "static"]) == ""


def test_paths_put_keys_that_are_no_words_in_brackets() -> None:
    assert join("a.b", "cpu") == "a.b.cpu"
    assert join("", "cpu") == "cpu"
    assert join("a", "hugepages-2Mi") == "a.hugepages-2Mi"
    assert join("a", "example.com/gpu") == 'a["example.com/gpu"]'


def test_shown_text_is_escaped_and_bounded() -> None:
    assert shown('a"\n\x1b[31m') == '"a\\"\\n\\x1b[31m"'
    assert len(shown("x" * 10_000)) < 70
