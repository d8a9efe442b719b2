"""A shared map behaves like a `dict`, except that its versions stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.managers import ledger as shared_map
from agent.managers.ledger import SharedMap, differences

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


def test_differences_name_what_is_not_the_very_same_in_two_versions() -> None:
    first = SharedMap.of({"a": [1], "b": [2], "c": [3]})
    second = first.without("a").with_entry("d", [4]).with_entry("b", [2])
    assert differences(first, second) == ["d", "b", "a"]
    assert differences(second, first) == ["d", "b", "a"]
    assert differences(first, first) == []
    assert differences(dict(first), dict(second)) == ["b", "d", "a"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=200), st.integers(0, 199))
def test_differences_are_those_of_dictionaries(steps: list[tuple[bool, int]], since: int) -> None:
    versions: list[SharedMap[int, object]] = [SharedMap.of({n: object() for n in range(0, 200, 2)})]
    for add, key in steps:
        last = versions[-1]
        if add:
            versions.append(last.with_entry(key, object()))
        elif key in last:
            versions.append(last.without(key))
    old, new = versions[since % len(versions)], versions[-1]
    assert set(differences(old, new)) == set(differences(dict(old), dict(new)))
