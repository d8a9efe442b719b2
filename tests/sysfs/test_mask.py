from __future__ import annotations

import copy
import pickle
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysfs.mask import EMPTY, MAX_ID, Mask, iter_bits

if TYPE_CHECKING:
    from collections.abc import Callable

ids = st.sets(st.integers(0, 300))


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", set()),
        ("\n", set()),
        ("0", {0}),
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        (" 7,1-2 ", {1, 2, 7}),
        ("5-5", {5}),
        ("1,1-2", {1, 2}),
        ("65535", {65535}),
    ],
)
def test_the_kernels_list_format_is_read(text: str, members: set[int]) -> None:
    assert set(Mask.parse(text)) == members


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("3-1", "'3-1' runs backwards"),
        ("1,,2", "''"),
        ("1,", "''"),
        ("-1", "'-1'"),
        ("1-", "'1-'"),
        ("+1", "'+1'"),
        ("0x1", "'0x1'"),
        ("1 2", "'1 2'"),
        ("1-2-3", "'1-2-3'"),
        ("65536", "above 65535"),
        ("0-99999999999", "above 65535"),
        ("٣", "'٣'"),
        ("²", "'²'"),
        ("a", "'a'"),
    ],
)
def test_anything_else_is_rejected_and_quoted(text: str, quoted: str) -> None:
    with pytest.raises(ValueError, match=re.escape(quoted)):
        Mask.parse(text)


@pytest.mark.parametrize("text", ["9" * 5000, "0" * 5000, "0-" + "9" * 5000])
def test_thousands_of_digits_are_rejected_in_a_short_message(text: str) -> None:
    with pytest.raises(ValueError, match="names an id above") as rejected:
        Mask.parse(text)
    assert len(str(rejected.value)) < 100


@given(ids)
def test_text_is_the_shortest_list_and_reads_back(members: set[int]) -> None:
    mask = Mask.from_ids(members)
    text = str(mask)
    assert Mask.parse(text) == mask
    runs = sum(member - 1 not in members for member in members)
    assert len([part for part in text.split(",") if part]) == runs


@given(ids, ids)
def test_set_algebra_is_that_of_sets(left: set[int], right: set[int]) -> None:
    one, two = Mask.from_ids(left), Mask.from_ids(right)
    assert set(one & two) == left & right
    assert set(one | two) == left | right
    assert set(one - two) == left - right
    assert (one <= two, one < two, one >= two, one > two) == (
        left <= right,
        left < right,
        left >= right,
        left > right,
    )
    assert (one == two) is (left == right)
    assert one.isdisjoint(two) is left.isdisjoint(right)
    assert (hash(one) == hash(two)) or left != right


@given(ids)
def test_a_mask_is_a_sized_iterable_container(members: set[int]) -> None:
    mask = Mask.from_ids(members)
    assert list(mask) == sorted(members)
    assert len(mask) == len(members)
    assert bool(mask) is bool(members)
    assert all((member in mask) is (member in members) for member in range(-2, 302))
    assert list(iter_bits(mask.bits)) == sorted(members)
    assert not members or (mask.lowest, mask.highest) == (min(members), max(members))


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: EMPTY.lowest, "no lowest"),
        (lambda: EMPTY.highest, "no highest"),
        (lambda: Mask.of(-1), "negative"),
        (lambda: Mask(-1), "negative"),
    ],
)
def test_what_no_mask_has_is_rejected(act: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        act()


def test_a_mask_cannot_be_changed() -> None:
    mask = Mask.of(1)
    with pytest.raises(AttributeError, match="immutable"):
        mask.bits = 4
    with pytest.raises(AttributeError, match="immutable"):
        del mask.bits
    assert mask == Mask.of(1)


@given(ids)
def test_a_mask_survives_copying_and_pickling(members: set[int]) -> None:
    mask = Mask.from_ids(members)
    assert pickle.loads(pickle.dumps(mask)) == mask  # noqa: S301  # our own bytes
    assert copy.deepcopy(mask) == mask


def test_a_mask_shows_its_list_and_equals_nothing_but_masks() -> None:
    assert repr(Mask.of(0, 1, 5)) == "Mask('0-1,5')"
    assert Mask.of(MAX_ID).highest == MAX_ID
    assert Mask.of(1) not in (2, {1})
