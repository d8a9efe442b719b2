"""The search finds what looking at every set of nodes finds, in ascending order."""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import and_
from typing import TYPE_CHECKING

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.managers.topology.hint import Closest, SearchBudget, by_value
from agent.managers.topology.many_nodes import Cover, CoverDemand, Search
from tests.agent.managers.topology.families import covers, distances_of, node_sets

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL = (1 << 64) - 1


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
