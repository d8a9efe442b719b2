from __future__ import annotations

import pytest

from agent.text import printable, printable_line


@pytest.mark.parametrize(
    ("text", "longest", "shown"),
    [
        pytest.param("a b\u00e9\\", None, "a b\u00e9\\", id="nothing to escape"),
        pytest.param("\x1b]0;\x07\n", None, "\\x1b]0;\\x07\\n", id="codes of a terminal"),
        pytest.param("\x9b\u2028\u202e", None, "\\x9b\\u2028\\u202e", id="beyond ASCII"),
        pytest.param("\udce9\ud800", None, "\\xe9\\ud800", id="no UTF-8"),
        pytest.param("y" * 5000, 8, "yyyyyyy\u2026", id="too long"),
        pytest.param("\x1b" * 5000, 8, "\\x1b\\x1\u2026", id="too long once escaped"),
    ],
)
def test_a_text_is_shown_on_one_line(text: str, longest: int | None, shown: str) -> None:
    assert printable(text, longest) == shown


def test_runs_of_spaces_and_line_breaks_are_a_space_each() -> None:
    assert printable_line("\n a\t\tb \r\n\x1bc\n", 80) == "a b \\x1bc"
