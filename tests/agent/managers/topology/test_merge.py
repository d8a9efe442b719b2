from __future__ import annotations

from functools import reduce
from itertools import product
from operator import and_
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.managers.errors import NodeDistancesError
from agent.managers.machine import MachineNode
from agent.managers.policy import TopologyManagerPolicy, TopologyPolicy
from agent.managers.topology.hint import Hint, Order, SearchBudget, by_value, masks_by_size
from agent.managers.topology.merge import (
    _Counting,
    best_reachable,
    intersections,
    reachable_masks,
    require_distances,
)
from sysfs.mask import Mask
from tests.agent.managers.topology.families import distances_of, no, node_sets, some_of, yes
from tests.agent.managers.topology.merging import merge
from tests.agent.managers.topology.naive_merge import naive_merge

if TYPE_CHECKING:
    from agent.managers.topology.many_nodes import ProviderHints

EIGHT = Mask.of(*range(8)).bits
SPARSE = Mask.of(0, 8, 16, 24, 32).bits


def _pairwise(first: set[int], second: set[int]) -> set[int]:
    return {one & other for one in first for other in second}


def _subsets(nodes: int) -> st.SearchStrategy[set[int]]:
    return st.sets(st.sampled_from(masks_by_size(nodes)), min_size=1, max_size=60)


@settings(max_examples=60)
@given(st.data(), st.sampled_from([EIGHT, SPARSE]))
def test_counting_finds_the_intersections_of_all_pairs(data: st.DataObject, nodes: int) -> None:
    first, second = data.draw(_subsets(nodes)), data.draw(_subsets(nodes))
    expected = _pairwise(first, second)
    assert _Counting.over(nodes).intersections(first, second) == expected
    assert intersections(first, second, nodes) == expected


@settings(max_examples=60)
@given(st.lists(_subsets(Mask.of(0, 1, 2, 3).bits), min_size=1, max_size=4))
def test_reachable_masks_are_the_intersections_of_all_permutations(lists: list[set[int]]) -> None:
    small = [sorted(masks)[:6] for masks in lists]
    hints = [[Hint(mask, preferred=False) for mask in masks] for masks in small]
    expected = {reduce(and_, chosen) for chosen in product(*small)} - {0}
    assert reachable_masks(hints, Mask.of(0, 1, 2, 3).bits) == expected


def test_masks_are_seen_within_the_machine_only() -> None:
    outside = [Hint(Mask.of(0, 9).bits, preferred=False)]
    assert reachable_masks([outside], EIGHT) == {1}


class TestSocketsOfWhatIsNotPreferred:
    """Nodes 0 and 1 are on one socket, 2 and 3 on another."""

    NODES = Mask.of(0, 1, 2, 3).bits

    def best(self, *memory: tuple[int, ...]) -> Mask:
        """Return the choice where CPUs fit on every pair of nodes and memory on these sets."""

        def sockets(nodes: int) -> tuple[int, ...]:
            return (sum(1 for socket in (0b0011, 0b1100) if socket & nodes),)

        pairs = [mask for mask in masks_by_size(self.NODES) if mask.bit_count() == 2]
        cpus = [Hint(mask, preferred=False) for mask in pairs if mask != 0b0011]
        places = [Hint(Mask.of(*ids).bits, preferred=False) for ids in memory]
        order = Order(by_value, sockets)
        best = best_reachable([cpus, places], self.NODES, order, SearchBudget())
        assert best is not None
        return Mask(best)

    def test_one_socket_is_better_where_every_resource_has_room(self) -> None:
        assert self.best((0, 2), (2, 3)) == Mask.of(2, 3)

    def test_a_socket_without_room_for_some_resource_is_not(self) -> None:
        """Memory would have to extend the nodes, which may be in a group already."""
        assert self.best((1, 2), (1, 2, 3)) == Mask.of(1, 2)


BEST_EFFORT = TopologyPolicy(TopologyManagerPolicy.BEST_EFFORT)
RESTRICTED = TopologyPolicy(TopologyManagerPolicy.RESTRICTED)
CLOSEST = TopologyPolicy(TopologyManagerPolicy.BEST_EFFORT, prefer_closest_numa_nodes=True)

TWO_NODES = Mask.of(0, 1)
FLAT = {node: dict.fromkeys(range(8), 10) for node in range(8)}


# Shows in differences.md: merged-preference
def test_an_intersection_of_different_preferred_masks_is_not_preferred() -> None:
    providers: list[ProviderHints] = [{"cpu": (yes(0, 1),)}, {"memory": (yes(1),)}]
    assert merge(TWO_NODES, FLAT, RESTRICTED, providers) == (no(1), False)


# Shows in differences.md: narrowest-hint
def test_unpreferred_masks_are_as_wide_as_the_most_demanding_resource_needs() -> None:
    nodes = Mask.of(0, 1, 2, 3)
    providers: list[ProviderHints] = [
        {"cpu": (no(0), no(1, 2), no(0, 1, 2, 3))},
        {"memory": (no(1, 2), no(0, 1, 2, 3))},
    ]
    assert merge(nodes, FLAT, BEST_EFFORT, providers) == (no(1, 2), True)


def test_missing_distances_are_named_when_they_are_needed() -> None:
    nodes = [MachineNode(0, 0, {}, {0: 10}), MachineNode(3, 0, {}, {0: 20, 3: 10})]
    require_distances(nodes, BEST_EFFORT)
    with pytest.raises(NodeDistancesError, match="NUMA nodes 0;") as caught:
        require_distances(nodes, CLOSEST)
    assert caught.value.nodes == (0,)


@given(
    nodes=node_sets(most=4),
    data=st.data(),
    named=st.sampled_from(TopologyManagerPolicy),
    closest=st.booleans(),
)
def test_the_choice_is_that_of_trying_every_permutation(
    nodes: int, data: st.DataObject, named: TopologyManagerPolicy, *, closest: bool
) -> None:
    some = some_of(nodes)
    hints = st.lists(st.builds(Hint, st.one_of(some, some, st.none()), st.booleans()), max_size=6)
    resource = st.one_of(hints, hints, hints, st.none())
    provider = st.dictionaries(st.sampled_from("abc"), resource, max_size=2)
    providers: list[ProviderHints] = data.draw(st.lists(provider, max_size=2))
    distances = data.draw(distances_of(nodes))
    policy = TopologyPolicy(named, prefer_closest_numa_nodes=closest)
    expected = naive_merge(nodes, distances, policy, providers)
    assert merge(nodes, distances, policy, providers) == expected
