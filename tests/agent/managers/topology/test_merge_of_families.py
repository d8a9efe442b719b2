"""Families of hints merge to the result of trying every permutation of the listed hints."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.managers.policy import TopologyManagerPolicy, TopologyPolicy
from agent.managers.topology.hint import Hint, Order, SearchBudget, by_value
from agent.managers.topology.many_nodes import (
    Cover,
    CoverDemand,
    HintFamily,
    Span,
    best_common,
    best_intersection,
    size_order,
)
from agent.managers.topology.merge import reachable_masks
from tests.agent.managers.topology.families import distances_of, hint_families, node_sets, some_of
from tests.agent.managers.topology.merging import merge
from tests.agent.managers.topology.naive_merge import naive_merge

if TYPE_CHECKING:
    from agent.managers.topology.many_nodes import Hints, ProviderHints

#: Permutations that the naive merge tries within a moment.
_FEW = 20_000


@st.composite
def offers(draw: st.DrawFn, nodes: int) -> list[Hints]:
    """Draw the hints of one to four resources: by rules, by rules twice over, or listed."""
    families = draw(st.lists(hint_families(nodes), min_size=1, max_size=3))
    drawn: list[Hints] = [*families]
    if draw(st.booleans()):
        drawn.append(families[0])
    elif draw(st.booleans()):
        hint = st.builds(Hint, st.one_of(st.none(), some_of(nodes)), st.booleans())
        drawn.append(draw(st.lists(hint, min_size=1, max_size=3)))
    return drawn


def listed(hints: Hints) -> list[Hint]:
    return list(hints)


@given(nodes=node_sets(), data=st.data())
@settings(max_examples=400, deadline=None)
def test_rules_merge_as_lists_do(nodes: int, data: st.DataObject) -> None:
    drawn = data.draw(offers(nodes))
    assume(prod(len(listed(hints)) for hints in drawn) <= _FEW)
    policy = TopologyPolicy(
        data.draw(st.sampled_from(TopologyManagerPolicy)),
        prefer_closest_numa_nodes=data.draw(st.booleans()),
    )
    distances = data.draw(distances_of(nodes))
    by_rules: list[ProviderHints] = [{f"r{i}": hints} for i, hints in enumerate(drawn)]
    by_lists: list[ProviderHints] = [{f"r{i}": listed(hints)} for i, hints in enumerate(drawn)]
    work = SearchBudget()
    merged = merge(nodes, distances, policy, by_rules, work)
    assert merged == naive_merge(nodes, distances, policy, by_lists)
    assert not work.exceeded


@given(nodes=node_sets(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_without_any_budget_the_choice_is_one_of_those_that_can_be_made(
    nodes: int, data: st.DataObject
) -> None:
    drawn = data.draw(offers(nodes))
    desired = data.draw(st.integers(1, 4))
    work = SearchBudget(left=0)
    chosen = best_intersection(drawn, nodes, desired, by_value, work)
    reachable = reachable_masks([listed(hints) for hints in drawn], nodes)
    assert chosen in reachable if reachable else chosen is None


@given(nodes=node_sets(), data=st.data(), desired=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_the_best_intersection_is_the_best_that_can_come_out(
    nodes: int, data: st.DataObject, desired: int
) -> None:
    drawn = data.draw(offers(nodes))
    reachable = reachable_masks([listed(hints) for hints in drawn], nodes)
    expected = min(
        reachable, key=lambda mask: (size_order(mask.bit_count(), desired), mask), default=None
    )
    assert best_intersection(drawn, nodes, desired, by_value, SearchBudget()) == expected


def test_a_set_of_the_fewest_nodes_is_preferred_on_any_sockets() -> None:
    anywhere = Cover(0b1111, (CoverDemand.by_node(1, dict.fromkeys(range(4), 1)),))
    family = HintFamily((), anywhere, 1, Span((0b0011, 0b1100), touching=2))
    assert best_common([family], 0b1111, Order(by_value), SearchBudget()) == 0b0001


def capacity(nodes: int, amount: int, need: int, fewest: int) -> HintFamily:
    """Return hints of a resource of which every one of the nodes has the same amount."""
    demand = CoverDemand.by_node(need, dict.fromkeys(range(nodes), amount))
    return HintFamily((), Cover((1 << nodes) - 1, (demand,)), fewest)


def test_sixty_four_nodes_are_no_more_work_than_four() -> None:
    nodes = (1 << 64) - 1
    families = [capacity(64, 10, 25, 3), capacity(64, 7, 20, 3)]
    work = SearchBudget()
    assert best_common(families, nodes, Order(by_value), work) == 0b111
    families[1] = capacity(64, 7, 30, 5)
    assert best_common(families, nodes, Order(by_value), work) is None
    assert best_intersection(families, nodes, 5, by_value, work) == 0b11111
    assert not work.exceeded
    assert SearchBudget().left - work.left < 500


@given(nodes=node_sets(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_sets_on_few_sockets_come_first_where_sockets_count(
    nodes: int, data: st.DataObject
) -> None:
    families = data.draw(st.lists(hint_families(nodes), min_size=1, max_size=3))
    spanned = [family.span for family in families if family.span is not None]

    def key(mask: int) -> tuple[bool, int, int]:
        return not all(span.met_by(mask) for span in spanned), mask.bit_count(), mask

    preferred = (
        mask
        for mask in range(1, nodes + 1)
        if not mask & ~nodes and all(family.prefers(mask) for family in families)
    )
    work = SearchBudget()
    order = Order(by_value, sockets=lambda _: (0,))
    assert best_common(families, nodes, order, work) == min(preferred, key=key, default=None)
    assert not work.exceeded


def uneven(nodes: int, resources: int, desired: int) -> HintFamily:
    """Return hints for amounts that differ on every node, nearly too much work to search."""
    needs = []
    for resource in range(1, resources + 1):
        amounts = {node: pow(node + 7, resource + 2, 1_000_003) for node in range(nodes)}
        most = sum(sorted(amounts.values())[-desired:])
        needs.append(CoverDemand.by_node(most * 8 // 10, amounts))
    return HintFamily((), Cover((1 << nodes) - 1, tuple(needs)), desired)


def test_a_choice_that_takes_too_much_work_is_valid_and_says_so() -> None:
    family, nodes = uneven(40, 5, 20), (1 << 40) - 1
    work = SearchBudget()
    assert best_common([family], nodes, Order(by_value), work) is None
    assert work.exceeded
    chosen = best_intersection([family], nodes, 20, by_value, work)
    assert chosen is not None
    assert family.holds(chosen)


def test_the_desired_number_of_nodes_is_best_then_fewer_then_more() -> None:
    assert sorted(range(1, 6), key=lambda count: size_order(count, 3)) == [3, 2, 1, 4, 5]
