"""The bound on distances is never too high, and exact where nodes lie in nested groups."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from agent.managers.topology.hint import Closest, DistanceBound
from tests.agent.managers.topology.families import distances_of


def least(rows: list[list[int]], near: list[int], first: int, more: int) -> int:
    """Return the least that any `more` of the first nodes add, by trying all of them."""
    return min(
        sum(rows[a][b] for a in some for b in some if a <= b) + sum(near[a] for a in some)
        for some in combinations(range(first), more)
    )


@given(data=st.data(), size=st.integers(1, 6))
def test_no_choice_is_closer_than_the_bound(data: st.DataObject, size: int) -> None:
    there = Closest(data.draw(distances_of((1 << size) - 1))).there_and_back
    rows = [[there[one][other] for other in range(size)] for one in range(size)]
    near = data.draw(st.lists(st.integers(0, 60), min_size=size, max_size=size))
    first = data.draw(st.integers(0, size))
    more = data.draw(st.integers(0, first))
    assert DistanceBound(rows).at_least(near, first, more) <= least(rows, near, first, more)


@given(data=st.data(), size=st.integers(1, 6))
def test_nested_groups_are_computed_exactly(data: st.DataObject, size: int) -> None:
    gap = st.sampled_from([24, 42, 60])
    gaps = data.draw(st.lists(gap, min_size=size - 1, max_size=size - 1))
    rows = [[10] * size for _ in range(size)]
    for one, other in combinations(range(size), 2):
        rows[one][other] = rows[other][one] = max(gaps[one:other])
    first = data.draw(st.integers(0, size))
    more = data.draw(st.integers(0, first))
    chosen = range(first, size)
    near = [sum(rows[at][one] for one in chosen) for at in range(size)]
    assert DistanceBound(rows).at_least(near, first, more) == least(rows, near, first, more)


def test_a_remainder_is_put_together() -> None:
    rows = [
        [10 if a == b else 24 if a // 4 == b // 4 else 42 for b in range(12)] for a in range(12)
    ]
    five = 5 * 10 + 6 * 24 + 4 * 42
    assert DistanceBound(rows).at_least([0] * 12, 12, 5) == five


def test_the_least_total_of_the_example() -> None:
    rows = [[10 if a == b else 24 if a // 3 == b // 3 else 42 for b in range(6)] for a in range(6)]
    assert DistanceBound(rows).at_least([0] * 6, 6, 4) == 238
