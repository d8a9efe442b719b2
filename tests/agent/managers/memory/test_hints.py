from __future__ import annotations

import pytest

from agent.managers.decision import UnknownMemoryTypeError
from agent.managers.memory.assignment import memory_hints
from agent.managers.memory.state import initial_memory
from agent.managers.topology.hint import Hint
from tests.agent.managers.memory.memory_machine import GI, MI, bits, facts_of, node, plain_facts

TWO = plain_facts(4 * GI, 4 * GI)


def yes(*ids: int) -> Hint:
    return Hint(bits(*ids), preferred=True)


def no(*ids: int) -> Hint:
    return Hint(bits(*ids), preferred=False)


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
