from __future__ import annotations

from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.managers.allocation import MemoryBlock
from agent.managers.errors import (
    CannotExtendHintError,
    HintViolatesGroupsError,
    MemoryAssignmentError,
    NotPreferredDefaultHintError,
    NotPreferredExtensionError,
    UnknownMemoryTypeError,
)
from agent.managers.memory.assignment import assign, memory_hints, reusable_after, shrink_reused
from agent.managers.memory.state import free_memory, initial_memory, release
from agent.managers.topology.hint import NO_AFFINITY, Hint, masks_by_size
from sysfs.mask import Mask
from tests.agent.managers.memory.memory_machine import (
    GI,
    MI,
    bits,
    facts_of,
    node,
    plain_facts,
    total_charge,
    total_size,
)
from tests.agent.managers.topology.families import no, yes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.memory.assignment import Reusable
    from agent.managers.memory.state import MemoryFacts, NodeMemory

TWO = plain_facts(4 * GI, 4 * GI)
FOUR = plain_facts(4 * GI, 4 * GI, 4 * GI, 4 * GI)
ANYWHERE = Hint(None, preferred=True)


def test_a_hint_without_room_is_extended_by_the_best_mask_around_it() -> None:
    _, state = assign(FOUR, initial_memory(FOUR), {"memory": 6 * GI}, yes(1, 2))
    blocks, _ = assign(FOUR, state, {"memory": 2 * GI}, no(1))
    assert blocks[0].nodes == Mask.of(1, 2)
    blocks, _ = assign(FOUR, initial_memory(FOUR), {"memory": 6 * GI}, yes(3))
    assert blocks[0].nodes == Mask.of(0, 3)


def test_a_hint_that_cannot_be_extended_is_rejected() -> None:
    _, state = assign(TWO, initial_memory(TWO), {"memory": 4 * GI}, yes(0))
    with pytest.raises(CannotExtendHintError) as caught:
        assign(TWO, state, {"memory": GI}, yes(0))
    assert caught.value.nodes == bits(0)
    assert "failed to find NUMA nodes to extend the current topology hint" in str(caught.value)
    assert "free: node 0 0 B, node 1 4 GiB" in str(caught.value)


def test_a_preferred_hint_is_not_extended_to_an_unpreferred_one() -> None:
    facts = plain_facts(4 * GI, 4 * GI, 8 * GI)
    with pytest.raises(NotPreferredExtensionError):
        assign(facts, initial_memory(facts), {"memory": 6 * GI}, yes(0))
    blocks, _ = assign(facts, initial_memory(facts), {"memory": 6 * GI}, no(0))
    assert blocks[0].nodes == Mask.of(0, 1)


# Shows in differences.md: init-memory
def test_a_preferred_hint_with_room_that_an_init_container_left_is_kept() -> None:
    facts = plain_facts(4 * GI, 4 * GI, 8 * GI)
    _, state = assign(facts, initial_memory(facts), {"memory": 6 * GI}, yes(0, 1))
    left = {(bits(0, 1), "memory"): 6 * GI}
    blocks, after = assign(facts, state, {"memory": 7 * GI}, yes(0, 1), left)
    assert blocks == (MemoryBlock("memory", 7 * GI, Mask.of(0, 1)),)
    assert total_charge(after) == {"memory": 7 * GI}
    with pytest.raises(NotPreferredExtensionError):
        assign(facts, state, {"memory": 7 * GI}, yes(0), left)


def test_an_alignment_called_preferred_needs_a_preferred_default() -> None:
    facts = plain_facts(4 * GI, 2 * GI, 2 * GI)
    _, state = assign(facts, initial_memory(facts), {"memory": 2 * GI}, yes(0))
    with pytest.raises(NotPreferredDefaultHintError):
        assign(facts, state, {"memory": 3 * GI}, ANYWHERE)
    blocks, _ = assign(facts, state, {"memory": 3 * GI}, NO_AFFINITY)
    assert blocks[0].nodes == Mask.of(1, 2)


def test_several_nodes_never_serve_together_when_one_serves_alone() -> None:
    _, state = assign(TWO, initial_memory(TWO), {"memory": GI}, yes(0))
    with pytest.raises(HintViolatesGroupsError):
        assign(TWO, state, {"memory": GI}, no(0, 1))
    _, grouped = assign(FOUR, initial_memory(FOUR), {"memory": 5 * GI}, yes(0, 1))
    with pytest.raises(HintViolatesGroupsError):
        assign(FOUR, grouped, {"memory": GI}, no(1, 2))
    blocks, _ = assign(FOUR, grouped, {"memory": GI}, no(0, 1))
    assert blocks[0].nodes == Mask.of(0, 1)


def test_a_single_node_with_room_is_taken_out_of_its_group_as_in_the_kubelet() -> None:
    group, state = assign(FOUR, initial_memory(FOUR), {"memory": 5 * GI}, yes(0, 1))
    single, state = assign(FOUR, state, {"memory": GI}, no(1))
    assert single[0].nodes == Mask.of(1)
    assert (state[0].cells, state[1].cells) == (Mask.of(0, 1), Mask.of(1))
    assert release(FOUR, state, [*group, *single]) == initial_memory(FOUR)


def test_init_containers_offer_the_largest_and_apps_use_it_up() -> None:
    key = (bits(0), "memory")
    offered = reusable_after({}, [MemoryBlock("memory", 3, Mask.of(0))], standard_init=True)
    offered = reusable_after(offered, [MemoryBlock("memory", 2, Mask.of(0))], standard_init=True)
    assert offered == {key: 3}
    left = reusable_after(offered, [MemoryBlock("memory", 2, Mask.of(0))], standard_init=False)
    assert left == {key: 1}
    elsewhere = [MemoryBlock("memory", 1, Mask.of(1))]
    assert reusable_after(left, elsewhere, standard_init=False) == left


def test_blocks_of_init_containers_shrink_by_what_is_used_again() -> None:
    first, second = MemoryBlock("memory", 3, Mask.of(0)), MemoryBlock("memory", 2, Mask.of(0))
    pages = MemoryBlock("hugepages-2Mi", 4, Mask.of(0))
    elsewhere = (MemoryBlock("memory", 2, Mask.of(1)),)
    earlier = {"first": (first, pages), "second": (second,), "elsewhere": elsewhere}
    assert shrink_reused(earlier, [MemoryBlock("memory", 4, Mask.of(0))]) == {
        "first": (MemoryBlock("memory", 0, Mask.of(0)), pages),
        "second": (MemoryBlock("memory", 1, Mask.of(0)),),
        "elsewhere": elsewhere,
    }


SIZES = st.integers(0, 12)
REQUESTS = st.one_of(
    st.fixed_dictionaries({"memory": SIZES}),
    st.fixed_dictionaries(
        {"memory": SIZES, "hugepages-1Gi": st.integers(0, 3).map(lambda n: n * GI)}
    ),
)
MACHINES = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 2)), min_size=1, max_size=4).map(
    lambda nodes: facts_of(
        *(
            node(number, pages * GI + size, {GI: pages} if pages else {})
            for number, (size, pages) in enumerate(nodes)
        )
    )
)


# Shows in differences.md: memory-charges
@given(st.data(), MACHINES)
def test_memory_is_never_given_twice_and_all_of_it_comes_back(
    data: st.DataObject, facts: MemoryFacts
) -> None:
    state: Mapping[int, NodeMemory] = initial_memory(facts)
    allocated: list[tuple[MemoryBlock, ...]] = []
    release_next = st.booleans()
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(release_next) and allocated:
            state = release(
                facts, state, allocated.pop(data.draw(st.integers(0, len(allocated) - 1)))
            )
        else:
            requests = data.draw(REQUESTS)
            nodes = st.one_of(st.none(), st.sampled_from(masks_by_size(facts.mask.bits)))
            hint = Hint(data.draw(nodes), data.draw(st.booleans(), label="preferred"))
            try:
                blocks, state = assign(facts, state, requests, hint)
            except (MemoryAssignmentError, UnknownMemoryTypeError):
                continue
            allocated.append(blocks)
        for name in facts.types:
            assert all(free >= 0 for free in free_memory(facts, state, name).values())
        given_out = total_size([block for blocks in allocated for block in blocks])
        assert _positive(total_charge(state)) == _positive(given_out)
    for blocks in allocated:
        state = release(facts, state, blocks)
    assert state == initial_memory(facts)


def naive_hints(
    facts: MemoryFacts,
    state: Mapping[int, NodeMemory],
    requests: Mapping[str, int],
    reusable: Reusable,
) -> list[Hint]:
    """Return every mask that can serve the requests; preferred are those of the least size."""
    least = len(facts.nodes)
    found: list[Mask] = []
    for size in range(1, len(facts.nodes) + 1):
        for members in combinations(facts.nodes, size):
            if any(_allocatable(facts, members, name) < asked for name, asked in requests.items()):
                continue
            least = min(least, size)
            mask = Mask.of(*members)
            if _is_open(state, mask) and all(
                _free(facts, state, members, name) + reusable.get((mask.bits, name), 0) >= asked
                for name, asked in requests.items()
            ):
                found.append(mask)
    return [Hint(mask.bits, len(mask) == least) for mask in found]


def _allocatable(facts: MemoryFacts, members: tuple[int, ...], name: str) -> int:
    return sum(facts.allocatable[node].get(name, 0) for node in members)


def _free(
    facts: MemoryFacts, state: Mapping[int, NodeMemory], members: tuple[int, ...], name: str
) -> int:
    used = sum(state[node].reserved.get(name, 0) for node in members)
    return _allocatable(facts, members, name) - used


def _is_open(state: Mapping[int, NodeMemory], mask: Mask) -> bool:
    if len(mask) == 1:
        return len(state[mask.lowest].cells) == 1
    return all(state[node].assignments == 0 or state[node].cells == mask for node in mask)


@given(st.data(), MACHINES, REQUESTS)
def test_hints_are_those_of_looking_at_every_mask(
    data: st.DataObject, facts: MemoryFacts, requests: dict[str, int]
) -> None:
    assume(requests.keys() <= facts.types)
    state: Mapping[int, NodeMemory] = initial_memory(facts)
    reusable: dict[tuple[int, str], int] = {}
    for nodes in data.draw(st.lists(st.sampled_from(masks_by_size(facts.mask.bits)), max_size=4)):
        with suppress(MemoryAssignmentError):
            size = data.draw(st.integers(0, 12))
            blocks, state = assign(facts, state, {"memory": size}, Hint(nodes, preferred=False))
            if data.draw(st.booleans(), label="left by an init container"):
                reusable = {(blocks[0].nodes.bits, "memory"): size}
    offered = memory_hints(facts, state, requests, reusable)
    assert list(offered.get("memory") or ()) == naive_hints(facts, state, requests, reusable)


@given(st.data(), st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1, max_size=5))
def test_blocks_of_a_pod_always_sum_up_to_its_charge(
    data: st.DataObject, containers: list[tuple[bool, int]]
) -> None:
    facts = plain_facts(10, 10, 10)
    state: Mapping[int, NodeMemory] = initial_memory(facts)
    reusable: dict[tuple[int, str], int] = {}
    blocks: dict[str, tuple[MemoryBlock, ...]] = {}
    inits: list[str] = []
    for number, (standard_init, size) in enumerate(containers):
        offered = memory_hints(facts, state, {"memory": size}, reusable).get("memory")
        if not offered:
            continue
        hint = data.draw(st.sampled_from(list(offered)))
        try:
            got, state = assign(facts, state, {"memory": size}, hint, reusable)
        except MemoryAssignmentError:
            continue
        blocks.update(shrink_reused({name: blocks[name] for name in inits}, got))
        blocks[str(number)] = got
        reusable = reusable_after(reusable, got, standard_init=standard_init)
        if standard_init:
            inits.append(str(number))
        allocated = [block for part in blocks.values() for block in part]
        assert total_charge(state) == total_size(allocated)


def _positive(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size}


def test_nodes_that_cannot_be_joined_are_named() -> None:
    _, state = assign(FOUR, initial_memory(FOUR), {"memory": GI}, yes(0))
    _, state = assign(FOUR, state, {"memory": 6 * GI}, yes(2, 3))
    with pytest.raises(CannotExtendHintError) as caught:
        assign(FOUR, state, {"memory": 4 * GI}, no(0))
    assert (
        "on NUMA nodes 0: node 0 with memory of pods of one node and the group of nodes 2-3 cannot "
        "be joined to other nodes"
    ) in str(caught.value)


# Shows in differences.md: memory-hints
def test_no_mask_left_means_no_preference_rather_than_impossible() -> None:
    assert memory_hints(TWO, initial_memory(TWO), {"memory": 9 * GI}) == {"memory": None}


def test_all_memory_types_share_one_list() -> None:
    facts = facts_of(node(0, 8 * GI, {GI: 1}), node(1, 8 * GI, {GI: 4}))
    hints = memory_hints(facts, initial_memory(facts), {"memory": GI, "hugepages-1Gi": 2 * GI})
    assert hints == {"memory": (yes(1), no(0, 1)), "hugepages-1Gi": (yes(1), no(0, 1))}


# Shows in differences.md: huge-page-sizes
def test_a_page_size_of_one_node_only_is_found_there() -> None:
    facts = facts_of(node(0, 8 * GI, {2 * MI: 64}), node(1, 8 * GI))
    hints = memory_hints(facts, initial_memory(facts), {"memory": GI, "hugepages-2Mi": 64 * MI})
    assert hints["memory"] == (yes(0), no(0, 1))


def test_a_page_size_that_the_machine_lacks_is_rejected_by_name() -> None:
    facts = facts_of(node(0, 8 * GI, {2 * MI: 64}))
    with pytest.raises(UnknownMemoryTypeError, match="1 GiB of hugepages-1Gi asked") as caught:
        memory_hints(facts, initial_memory(facts), {"hugepages-1Gi": GI})
    assert caught.value.known == ("hugepages-2Mi", "memory")
