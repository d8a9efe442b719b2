from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.parsing.nodes import Number, Unclear
from agent.parsing.scalars import resolve


@pytest.mark.parametrize("text", ["", "~", "null", "Null", "NULL"])
def test_nothing_is_null(text: str) -> None:
    assert resolve(text) is None


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("TRUE", True)])
def test_only_true_and_false_are_booleans(text: str, value: bool) -> None:  # noqa: FBT001 (data)
    assert resolve(text) is value


@pytest.mark.parametrize("text", ["0", "-1", "+2", "10", "0.5", ".5", "5.", "1e3", "1.5E-3", "0e1"])
def test_plain_decimal_numbers_keep_their_text(text: str) -> None:
    assert resolve(text) == Number(text)


@pytest.mark.parametrize(
    "text",
    ["on", "Off", "YES", "no", "010", "-07", "00", "0_1", "0x1F", "0o17", "0b1", "1_000", "12:30",
     "1:2:3", "190:20:30.15", ".inf", "-.INF", ".nan", "2026-11-20", "2026-1-2 10:00:00"],
)  # fmt: skip
def test_what_yaml_versions_read_differently_is_unclear(text: str) -> None:
    value = resolve(text)
    assert isinstance(value, Unclear)
    assert value.text == text
    assert value.reason


@pytest.mark.parametrize("text", ["y", "n", "500m", "4Gi", "v1", "0-3", "1.2.3.4", "a:b", "-", "."])
def test_anything_else_is_a_text(text: str) -> None:
    assert resolve(text) == text


@pytest.mark.parametrize("text", ["9" * 128, "0" * 128])
def test_a_number_may_have_128_characters(text: str) -> None:
    assert isinstance(resolve(text), Number | Unclear)


@pytest.mark.parametrize("text", ["9" * 129, "0" * 129, "1:" * 99 + "1", "0x" + "f" * 200])
def test_no_number_is_longer_than_128_characters(text: str) -> None:
    assert resolve(text) == text


@given(st.text())
def test_every_text_has_a_reading(text: str) -> None:
    value = resolve(text)
    if isinstance(value, Number | Unclear):
        assert value.text == text
