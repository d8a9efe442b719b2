from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.managers.allocation import MemoryBlock
from agent.tools.kubelet_state.exporting import kubelet_state
from agent.tools.kubelet_state.memory import (
    MemoryNode,
    MemoryState,
    MemoryTable,
    allocatable_bytes,
    memory_problems,
)
from sysfs.mask import Mask
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, GIB, PLAIN, make_rules
from tests.agent.pods.pods import app, guaranteed, pod
from tests.agent.tools.kubelet_state.machines import admitted

if TYPE_CHECKING:
    from agent.managers.rules import EffectivePolicy

RULES: Final = make_rules(scope=CONTAINER)
ONE: Final = pod(app("a", guaranteed("cpu=1 memory=2Gi")), uid="u")
WIDE: Final = pod(app("a", guaranteed("cpu=1 memory=20Gi")), uid="w")


def state(rules: EffectivePolicy = RULES) -> MemoryState:
    """Return a state in which a pod holds 2 GiB on one node."""
    memory = kubelet_state(rules, admitted(rules, ONE)).memory
    assert memory is not None
    return memory


def with_node(base: MemoryState, number: int, node: MemoryNode) -> MemoryState:
    return replace(base, nodes={**base.nodes, number: node})


def with_memory(base: MemoryState, number: int, table: MemoryTable) -> MemoryState:
    node = base.nodes[number]
    return with_node(base, number, replace(node, tables={**node.tables, "memory": table}))


def block_on(node: int, kind: str = "memory") -> MemoryState:
    block = MemoryBlock(kind, 2 * GIB, Mask.of(node))
    return replace(state(), containers={"u": {"a": (block,)}})


def test_a_state_that_adds_up_is_taken() -> None:
    assert memory_problems(RULES, state()) == ()
    assert memory_problems(RULES, MemoryState("Static")) == ()


def test_a_groups_charge_may_be_divided_in_any_way() -> None:
    best = make_rules(topology=BEST_EFFORT, scope=CONTAINER)
    memory = kubelet_state(best, admitted(best, WIDE)).memory
    assert memory is not None
    first, second = (memory.nodes[node].tables["memory"] for node in (0, 1))
    moved = GIB
    other = with_memory(memory, 0, _charged(first, -moved))
    assert memory_problems(best, with_memory(other, 1, _charged(second, moved))) == ()
    (problem,) = memory_problems(best, other)
    assert problem.startswith("nodes 0-1: ")


def _charged(table: MemoryTable, more: int) -> MemoryTable:
    free, reserved = table.free - more, table.reserved + more
    return MemoryTable(table.total, table.systemReserved, table.allocatable, reserved, free)


def _in_use(base: MemoryState) -> int:
    return next(number for number, node in base.nodes.items() if node.assignments)


def test_what_contradicts_the_blocks_is_named() -> None:
    base = state()
    used = _in_use(base)
    node = base.nodes[used]
    (problem,) = memory_problems(RULES, with_node(base, used, replace(node, assignments=2)))
    assert problem == f"node {used} counts 2 assignments, 1 blocks are there"
    (problem,) = memory_problems(RULES, with_node(base, used, replace(node, cells=Mask.of(0, 1))))
    assert problem == f"node {used} serves with cells 0-1, its blocks are on {used}"
    table = _charged(node.tables["memory"], GIB)
    (problem,) = memory_problems(RULES, with_memory(base, used, table))
    assert f"{3 * GIB} bytes of memory are reserved, their blocks sum to {2 * GIB}" in problem


def test_what_contradicts_the_machine_is_named() -> None:
    base = state()
    empty = 1 - _in_use(base)
    table = base.nodes[empty].tables["memory"]
    larger = MemoryTable(table.total + 1, table.systemReserved, table.allocatable, 0, table.free)
    (problem,) = memory_problems(RULES, with_memory(base, empty, larger))
    assert problem.startswith(f"node {empty}: total of memory is ")
    unequal = MemoryTable(table.total, table.systemReserved, table.allocatable, 0, 5)
    (problem,) = memory_problems(RULES, with_memory(base, empty, unequal))
    assert problem.startswith(f"node {empty}: 5 bytes of memory are free")
    more = with_node(base, 2, MemoryNode(0, Mask.of(2), {}))
    assert "machineState has nodes [2]" in " ".join(memory_problems(RULES, more))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (
            block_on(3),
            "container a of pod u holds memory on nodes 3, which this host does not have",
        ),
        (block_on(0, "hugepages-1Gi"), "holds hugepages-1Gi on node 0, which has no such memory"),
        (replace(state(), nodes={}), "machineState is empty although containers hold memory"),
        (replace(state(), policy="None"), "the configuration says memoryManagerPolicy: Static"),
    ],
)
def test_a_block_that_cannot_be_is_named(broken: MemoryState, reason: str) -> None:
    (problem,) = memory_problems(RULES, broken)
    assert reason in problem


def test_budgets_need_the_gate_and_their_containers() -> None:
    base = state()
    budget = replace(base, pods={"u": base.containers["u"]["a"]})
    assert memory_problems(RULES, budget) == ()
    without = make_rules(scope=CONTAINER, managed=False)
    assert "PodLevelResourceManagers" in " ".join(memory_problems(without, budget))
    orphan = replace(budget, containers={})
    assert "counts 1 assignments, 0 blocks are there" in " ".join(memory_problems(RULES, orphan))


def test_a_policy_of_none_holds_nothing() -> None:
    rules = make_rules(PLAIN, memory=False)
    assert memory_problems(rules, MemoryState("None")) == ()
    assert memory_problems(rules, replace(state(), policy="None")) == (
        "pod u has pinned memory under policy None",
    )


def test_reservations_beyond_the_total_come_out_as_in_unsigned_arithmetic() -> None:
    assert allocatable_bytes({"memory": 5, "hugepages-2Mi": 3}, {"memory": 4}) == {
        "memory": (1 << 64) - 2,
        "hugepages-2Mi": 3,
    }
