"""A shared map is told from a `dict` by nothing but that its versions stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import shared_map
from agent.shared_map import SharedMap

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = st.integers(0, 9)
CHANGES = st.lists(st.tuples(st.booleans(), KEYS, st.integers()), max_size=40)


@pytest.fixture(autouse=True)
def _few_changes() -> Iterator[None]:
    """Let a new base be made often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_map, "_MOST_CHANGES", 4)
        yield


@given(changes=CHANGES)
def test_every_version_is_the_dict_of_its_time(changes: list[tuple[bool, int, int]]) -> None:
    plain: dict[int, int] = {}
    version: SharedMap[int, int] = SharedMap()
    history = [(version, dict(plain))]
    for put, key, value in changes:
        if put:
            plain[key] = value
            version = version.with_entry(key, value)
        elif key in plain:
            del plain[key]
            version = version.without(key)
        history.append((version, dict(plain)))
    for known, expected in history:
        assert list(known.items()) == list(expected.items())
        assert len(known) == len(expected)
        assert known == expected
        assert [key in known for key in range(10)] == [key in expected for key in range(10)]


def test_what_is_not_there_cannot_be_taken_away() -> None:
    version = SharedMap.of({1: 2})
    with pytest.raises(KeyError):
        version.without(2)
    with pytest.raises(KeyError):
        version.without(1)[1]
    with pytest.raises(KeyError):
        version.without(1).without(1)


def test_a_version_is_taken_as_it_is() -> None:
    version = SharedMap.of({1: 2})
    assert SharedMap.of(version) is version
    assert repr(version) == "SharedMap({1: 2})"
