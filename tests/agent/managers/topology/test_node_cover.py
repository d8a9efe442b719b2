"""Families of sets with required amounts are upward closed and have common members."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.managers.topology.many_nodes import Cover, CoverDemand, Span
from tests.agent.managers.topology.families import covers, node_sets, subsets


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
    cover = Cover(0b111, (CoverDemand(1, ((1, 1), (2, 1), (4, 1))),)).containing(0b100)
    assert [mask for mask in range(8) if cover.holds(mask)] == [0b100, 0b101, 0b110, 0b111]


def test_a_span_is_met_by_exactly_as_many_sockets() -> None:
    span = Span((0b0011, 0b1100), 1)
    assert [span.met_by(mask) for mask in (0b0001, 0b0011, 0b0101, 0b1100)] == [
        True,
        True,
        False,
        True,
    ]
