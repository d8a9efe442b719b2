"""Sets of nodes are ordered by distance, and bounds never exceed what they bound."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from agent.managers.topology.distances import Closest, DistanceBound, NodeDistances
from sysfs.mask import iter_bits
from tests.agent.managers.topology.families import distances_of, node_sets


@given(nodes=node_sets(), data=st.data())
def test_a_bound_is_never_above_what_it_bounds_and_exact_for_all_first_nodes(
    nodes: int, data: st.DataObject
) -> None:
    closest = Closest(data.draw(distances_of(nodes)))
    bits = [1 << node for node in iter_bits(nodes)]
    near = NodeDistances(closest, bits)
    first = data.draw(st.integers(0, len(bits)))
    chosen = sum(data.draw(st.sets(st.sampled_from(bits[first:])))) if bits[first:] else 0
    others = sum(data.draw(st.sets(st.sampled_from(bits[:first])))) if first else 0
    bound = near.at_least(chosen, first, others.bit_count())
    assert bound <= closest.total(chosen | others)
    assert near.at_least(chosen, first, first) == closest.total(chosen | sum(bits[:first]))


@given(nodes=node_sets(), data=st.data())
def test_nodes_that_are_alike_can_be_swapped_in_any_set(nodes: int, data: st.DataObject) -> None:
    closest = Closest(data.draw(distances_of(nodes)))
    one, other = (data.draw(st.sampled_from(list(iter_bits(nodes)))) for _ in range(2))
    if closest.alike[one] != closest.alike[other]:
        return
    members = data.draw(st.sets(st.sampled_from(list(iter_bits(nodes)))))
    swapped = {one: other, other: one}
    there = closest.total(sum(1 << node for node in members))
    assert closest.total(sum(1 << swapped.get(node, node) for node in members)) == there


def least(rows: list[list[int]], near: list[int], first: int, more: int) -> int:
    """Return the least that any `more` of the first nodes add, by trying all of them."""
    return min(
        sum(rows[a][b] for a in some for b in some if a <= b) + sum(near[a] for a in some)
        for some in combinations(range(first), more)
    )


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
