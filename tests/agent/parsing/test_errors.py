from __future__ import annotations

from agent.parsing.errors import DocumentError, Mistake


def test_one_mistake_is_reported_in_one_line() -> None:
    error = DocumentError("pod.yaml", (Mistake("spec.x", "is wrong", 3),))
    assert str(error) == "pod.yaml: line 3: spec.x: is wrong"


def test_several_mistakes_are_reported_one_per_line() -> None:
    error = DocumentError("pod.yaml", (Mistake("a", "bad"), Mistake("", "worse", 1)))
    assert str(error) == "pod.yaml: 2 mistakes in this document\n  a: bad\n  line 1: worse"


def test_of_many_mistakes_the_first_are_reported_and_how_many_more_there_are() -> None:
    error = DocumentError("pod.yaml", tuple(Mistake("a", str(number)) for number in range(250)))
    first, *lines, last = str(error).splitlines()
    assert first == "pod.yaml: 250 mistakes in this document"
    assert lines == [f"  a: {number}" for number in range(100)]
    assert last == "  and 150 more"
