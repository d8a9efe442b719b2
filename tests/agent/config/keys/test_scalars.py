from __future__ import annotations

import pytest

from agent.config.keys.scalars import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("1m30s", 90), ("1h", 3600), ("500ms", 0.5), ("0", 0), ("2us", 2e-6)],
)  # fmt: skip
def test_go_durations_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "10 s", "-1s", "1d", "1s2", "x1s", "1.s", "٣s", "1s" * 99, "1e3s"]
)
def test_anything_else_is_none(text: str) -> None:
    assert seconds_of(text) is None
