"""Covers are upward closed, and the search finds what looking at every set of nodes finds."""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import and_
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.managers.topology.hint import Closest, Order, SearchBudget, by_value
from agent.managers.topology.many_nodes import (
    Cover,
    CoverDemand,
    HintFamily,
    Search,
    Span,
    best_common,
    best_intersection,
)
from tests.agent.managers.topology.families import covers, distances_of, node_sets, subsets

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL = (1 << 64) - 1

#: The example of `agent.managers.topology.many_nodes`.
CPUS = CoverDemand.by_node(8, {0: 4, 1: 4, 2: 8})
MEMORY = CoverDemand.by_node(45, {0: 10, 1: 20, 2: 30})


@pytest.mark.parametrize(
    ("size", "come_out"), [(1, [0b010, 0b100]), (2, [0b011, 0b101, 0b110]), (3, [0b111])]
)
def test_what_comes_out_in_the_example(size: int, come_out: list[int]) -> None:
    covers = [Cover(0b111, (CPUS,)), Cover(0b111, (MEMORY,))]
    assert list(Search(covers, 0b111, SearchBudget(), every=True).sets(size)) == come_out


def test_the_example_merges_to_the_lowest_pair() -> None:
    families = [
        HintFamily((), Cover(0b111, (CPUS,)), 1),
        HintFamily((), Cover(0b111, (MEMORY,)), 2),
    ]
    work = SearchBudget()
    assert best_common(families, 0b111, Order(by_value), work) is None
    desired = max(family.narrowest(work) for family in families)
    assert best_intersection(families, 0b111, desired, by_value, work) == 0b011


@st.composite
def families(draw: st.DrawFn, nodes: int) -> list[Cover]:
    return draw(st.lists(covers(nodes), min_size=1, max_size=3))


def outcomes(drawn: Sequence[Cover], pool: int) -> set[int]:
    """Return what one member of each family intersects to, within a pool, by trying all."""
    members = [[m for m in range(1, cover.domain + 1) if cover.holds(m)] for cover in drawn]
    return {reduce(and_, chosen, pool) for chosen in product(*members)} - {0}


@given(nodes=node_sets(most=4), data=st.data())
@settings(max_examples=300, deadline=None)
def test_all_sets_that_can_come_out_are_found_in_order(nodes: int, data: st.DataObject) -> None:
    drawn = data.draw(families(nodes))
    pool = reduce(and_, [cover.domain for cover in drawn])
    assume(pool)
    every = outcomes(drawn, pool)
    search = Search(drawn, pool, SearchBudget(), every=True)
    for size in range(1, pool.bit_count() + 1):
        expected = sorted(mask for mask in every if mask.bit_count() == size)
        assert list(search.sets(size)) == expected
    assert search.least() <= min(mask.bit_count() for mask in every)
    assert search.greedy(1) in every


@given(nodes=node_sets(most=4), data=st.data())
@settings(max_examples=300, deadline=None)
def test_the_best_is_the_closest_then_the_lowest(nodes: int, data: st.DataObject) -> None:
    drawn = data.draw(families(nodes))
    pool = reduce(and_, [cover.domain for cover in drawn])
    assume(pool)
    every = outcomes(drawn, pool)
    closest = Closest(data.draw(distances_of(nodes)))
    for size in range(1, pool.bit_count() + 2):
        sized = [mask for mask in every if mask.bit_count() == size]
        for order in (by_value, closest):
            found = Search(drawn, pool, SearchBudget()).best(size, order)
            assert found == min(sized, key=order, default=None)


def test_only_the_node_that_has_enough_is_found_without_trying_pairs() -> None:
    work = SearchBudget()
    cover = Cover(
        FULL, (CoverDemand.by_node(9, {node: 9 if node == 40 else 1 for node in range(64)}),)
    )
    assert Search([cover], FULL, work).best(1, by_value) == 1 << 40
    assert SearchBudget().left - work.left < 100


def test_interchangeable_nodes_are_tried_in_one_order_only() -> None:
    """Each demand alone could be met, both cannot: of 12,870 sets one for each mixture is tried."""
    even = CoverDemand.by_node(17, {node: 1 if node % 2 else 3 for node in range(16)})
    odd = CoverDemand.by_node(17, {node: 3 if node % 2 else 1 for node in range(16)})
    work = SearchBudget()
    assert Search([Cover(0xFFFF, (even, odd))], 0xFFFF, work).best(8, by_value) is None
    assert not work.exceeded


def test_without_work_nothing_is_found_and_one_pass_still_gives_a_member() -> None:
    cover = Cover(FULL, (CoverDemand.by_node(9, dict.fromkeys(range(64), 2)),))
    work = SearchBudget(left=3)
    search = Search([cover], FULL, work)
    assert search.best(5, by_value) is None
    assert work.exceeded
    assert search.greedy(5) == 0b11111


def test_nodes_of_a_place_of_several_are_ordered_beside_others() -> None:
    """Nodes with and without such a place were compared as a number with a tuple."""
    drawn = [Cover(15, (CoverDemand(0, ((1, 1),)),), 3), Cover(15, (CoverDemand(1, ((3, 1),)),))]
    search = Search(drawn, 15, SearchBudget(), every=True)
    found = {mask for size in range(1, 5) for mask in search.sets(size)}
    assert found == outcomes(drawn, 15)


@given(nodes=node_sets(), data=st.data())
def test_what_contains_a_member_is_a_member(nodes: int, data: st.DataObject) -> None:
    cover = data.draw(covers(nodes))
    member = data.draw(subsets(nodes))
    larger = (member | data.draw(subsets(nodes))) & cover.domain
    assert cover.holds(larger) or not cover.holds(member & cover.domain) or not larger
    assert cover.is_empty == (not any(map(cover.holds, range(nodes + 1))))


@given(nodes=node_sets(), data=st.data())
def test_common_members_are_those_of_all(nodes: int, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(covers(nodes), min_size=1, max_size=3))
    mask = data.draw(subsets(nodes))
    assert Cover.common(drawn).holds(mask) == all(cover.holds(mask) for cover in drawn)


def test_a_device_on_two_nodes_is_in_reach_of_either_and_counts_once() -> None:
    device = CoverDemand(1, ((0b110, 1),))
    assert [device.amount_of(mask) for mask in (0b001, 0b010, 0b100, 0b110)] == [0, 1, 1, 1]


def test_a_node_that_has_nothing_is_not_a_place() -> None:
    assert CoverDemand.by_node(1, {0: 0, 1: 5}).places == ((0b10, 5),)


def test_required_nodes_are_in_every_member() -> None:
    cover = Cover(0b111, (CoverDemand(1, ((1, 1), (2, 1), (4, 1))),), required=0b100)
    assert [mask for mask in range(8) if cover.holds(mask)] == [0b100, 0b101, 0b110, 0b111]


def test_a_span_is_met_by_exactly_as_many_sockets() -> None:
    span = Span((0b0011, 0b1100), 1)
    assert [span.met_by(mask) for mask in (0b0001, 0b0011, 0b0101, 0b1100)] == [
        True,
        True,
        False,
        True,
    ]
