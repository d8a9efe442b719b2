from __future__ import annotations

import pytest

from agent.tools.kubelet_state.format import (
    fnv1a_32,
    go_json,
    go_map,
    go_slice,
    go_struct,
)


@pytest.mark.parametrize(
    ("text", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)]
)
def test_the_hash_is_that_of_the_published_test_vectors(text: str, value: int) -> None:
    assert fnv1a_32(text) == value


def test_a_map_is_sorted_and_a_nil_map_is_not_an_empty_one() -> None:
    assert go_map({"b": "2", "a": "1"}) == "map[a:1 b:2]"
    assert go_map({}) == "map[]"
    assert go_map(None) == "<nil>"


def test_a_nil_slice_is_not_an_empty_one() -> None:
    assert [go_slice([0, 1]), go_slice([]), go_slice(None)] == ["[0 1]", "[]", "<nil>"]


def test_fields_of_a_struct_carry_their_types() -> None:
    assert go_struct([("A", "int", "1"), ("B", "string", "x")]) == "{A:(int)1 B:(string)x}"


def test_json_escapes_what_html_would_read() -> None:
    assert go_json({"a": "<&>\u2028é"}) == '{"a":"\\u003c\\u0026\\u003e\\u2028é"}'.encode()
