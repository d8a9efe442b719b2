from __future__ import annotations

import pytest

from agent.managers.allocation import MemoryBlock
from agent.managers.memory.state import NodeMemory, charge, hugepages_type, initial_memory, release
from sysfs.mask import Mask
from tests.agent.managers.memory.memory_machine import GI, MI, charged, facts_of, node, plain_facts


@pytest.mark.parametrize(
    ("page_bytes", "name"),
    [(64 << 10, "64Ki"), (2 * MI, "2Mi"), (GI, "1Gi"), (1536 << 10, "1536Ki"), (1000, "1000")],
)
def test_huge_page_sizes_are_named_as_kubernetes_names_them(page_bytes: int, name: str) -> None:
    assert hugepages_type(page_bytes) == f"hugepages-{name}"


def test_memory_is_allocatable_less_the_reservation_and_all_huge_pages() -> None:
    facts = facts_of(
        node(0, 16 * GI, {2 * MI: 512, GI: 2}),
        node(1, 8 * GI),
        reserved={0: {"memory": GI, "hugepages-1Gi": GI}},
    )
    assert facts.allocatable[0] == {
        "memory": 16 * GI - GI - GI - 2 * GI,
        "hugepages-2Mi": GI,
        "hugepages-1Gi": GI,
    }
    assert facts.allocatable[1] == {"memory": 8 * GI}
    assert facts.total[0]["hugepages-1Gi"] == 2 * GI
    assert facts.reserved[0] == {"memory": GI, "hugepages-2Mi": 0, "hugepages-1Gi": GI}
    assert facts.overcommitted == {}
    assert facts.types == {"memory", "hugepages-2Mi", "hugepages-1Gi"}


# Shows in differences.md: memory-charges
def test_what_was_charged_to_a_node_out_of_use_moves_to_those_who_still_hold_it() -> None:
    facts = plain_facts(12 * GI, 12 * GI)
    wide, small = Mask.of(0, 1), Mask.of(0)
    long_gone = MemoryBlock("memory", 12 * GI, wide)
    spilled = MemoryBlock("memory", 2 * GI, wide)
    single = MemoryBlock("memory", 5 * GI, small)
    state = charge(facts, charge(facts, initial_memory(facts), long_gone), spilled)
    state = charge(facts, release(facts, state, [long_gone]), single)
    assert charged(state) == {0: 5 * GI, 1: 2 * GI}
    state = release(facts, state, [spilled])
    assert charged(state) == {0: 5 * GI, 1: 0}
    assert release(facts, state, [single]) == initial_memory(facts)


def test_what_moves_between_nodes_never_exceeds_what_they_have() -> None:
    facts = plain_facts(12, 12, 12)
    wide = Mask.of(0, 1, 2)
    state = {
        0: NodeMemory(2, wide, {"memory": 8}),
        1: NodeMemory(2, wide, {"memory": 0}),
        2: NodeMemory(1, wide, {"memory": 8}),
    }
    after = release(facts, state, [MemoryBlock("memory", 2, wide)])
    assert charged(after) == {0: 12, 1: 2, 2: 0}
