from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.managers.decision import NodeDistancesError
from agent.managers.machine import MachineNode
from agent.managers.policy import TopologyManagerPolicy, TopologyPolicy
from agent.managers.topology.hint import Hint
from agent.managers.topology.merge import require_distances
from sysfs.mask import Mask
from tests.agent.managers.topology.merging import merge
from tests.agent.managers.topology.naive_merge import naive_merge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.managers.topology.many_nodes import ProviderHints

BEST_EFFORT = TopologyPolicy(TopologyManagerPolicy.BEST_EFFORT)
RESTRICTED = TopologyPolicy(TopologyManagerPolicy.RESTRICTED)
NONE = TopologyPolicy(TopologyManagerPolicy.NONE)
CLOSEST = TopologyPolicy(TopologyManagerPolicy.BEST_EFFORT, prefer_closest_numa_nodes=True)

TWO_NODES = Mask.of(0, 1)
FLAT = {node: dict.fromkeys(range(8), 10) for node in range(8)}


def yes(*ids: int) -> Hint:
    return Hint(Mask.of(*ids).bits, preferred=True)


def no(*ids: int) -> Hint:
    return Hint(Mask.of(*ids).bits, preferred=False)


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


NODE_SETS = st.sampled_from([(0,), (0, 1), (0, 2), (0, 1, 2), (0, 1, 2, 3), (0, 8, 16, 24)])
POLICIES = st.builds(
    TopologyPolicy,
    st.sampled_from(TopologyManagerPolicy),
    prefer_closest_numa_nodes=st.booleans(),
)


def _masks(ids: Sequence[int]) -> st.SearchStrategy[int]:
    return st.sets(st.sampled_from(ids), min_size=1).map(lambda some: Mask.from_ids(some).bits)


@st.composite
def merges(
    draw: Callable[[st.SearchStrategy[object]], object],
) -> tuple[int, dict[int, dict[int, int]], list[ProviderHints]]:
    ids = draw(NODE_SETS)
    assert isinstance(ids, tuple)
    mask = st.one_of(_masks(ids), _masks(ids), _masks(ids), st.none())
    hints = st.lists(st.builds(Hint, mask, st.booleans()), max_size=6)
    resource = st.one_of(hints, hints, hints, st.none())
    provider = st.dictionaries(st.sampled_from("abc"), resource, max_size=2)
    providers = draw(st.lists(provider, max_size=2))
    assert isinstance(providers, list)
    row = st.fixed_dictionaries({node: st.integers(10, 14) for node in ids})
    distances = draw(st.fixed_dictionaries(dict.fromkeys(ids, row)))
    assert isinstance(distances, dict)
    return Mask.from_ids(ids).bits, distances, providers


@settings(max_examples=100, deadline=None)
@given(merges(), POLICIES)
def test_the_choice_is_that_of_trying_every_permutation(
    case: tuple[int, dict[int, dict[int, int]], list[ProviderHints]], policy: TopologyPolicy
) -> None:
    nodes, distances, providers = case
    assert merge(nodes, distances, policy, providers) == naive_merge(
        nodes, distances, policy, providers
    )
