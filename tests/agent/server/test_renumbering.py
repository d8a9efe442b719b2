from __future__ import annotations

from msgspec.structs import replace

from agent.managers.memory.state import memory_charge
from agent.managers.registry import MANAGERS
from agent.server.restart import node_moves, renumbered
from agent.state.checkpoint import HostFacts, NodeFacts
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import app, guaranteed, pod

LOW, HIGH, GIB = Mask.parse("0-7"), Mask.parse("8-15"), 1 << 30


def host(*nodes: tuple[int, Mask]) -> HostFacts:
    return HostFacts(LOW | HIGH, EMPTY, tuple(NodeFacts(node, cpus, GIB) for node, cpus in nodes))


def test_nodes_that_swapped_numbers_are_known_by_their_cpus() -> None:
    assert node_moves(host((0, LOW), (1, HIGH)), host((0, HIGH), (1, LOW))) == {0: 1, 1: 0}


def test_the_same_numbers_are_no_move_whatever_memory_they_have() -> None:
    before = host((0, LOW), (1, HIGH))
    larger = tuple(replace(node, memory_bytes=2 * GIB) for node in before.nodes)
    assert node_moves(before, replace(before, nodes=larger)) == {}


def test_a_node_that_is_not_found_again_makes_it_another_machine() -> None:
    before = host((0, LOW), (1, HIGH))
    assert node_moves(before, host((1, LOW), (2, Mask.parse("8-14")))) == {}
    assert node_moves(before, host((1, LOW))) == {}


def test_nodes_without_cpus_keep_their_number_or_are_lost() -> None:
    before = host((0, LOW), (1, HIGH), (2, EMPTY))
    assert node_moves(before, host((1, LOW), (0, HIGH), (2, EMPTY))) == {0: 1, 1: 0, 2: 2}
    assert node_moves(before, host((1, LOW), (0, HIGH), (3, EMPTY))) == {}


def test_memory_hints_and_charges_follow_their_node_and_come_back() -> None:
    ledger = with_pod(make_rules(), pod(app("c1", guaranteed("cpu=2 memory=1Gi"))))
    moved = renumbered(MANAGERS, ledger, {0: 1, 1: 0})
    (before,), (after,) = ledger.allocations.values(), moved.allocations.values()
    assert before.containers[0].mems == Mask.of(0)
    assert after.containers[0].mems == Mask.of(1)
    assert after.containers[0].hint.nodes == 0b10
    assert after.containers[0].cpus == before.containers[0].cpus
    assert memory_charge(moved)[1].reserved == memory_charge(ledger)[0].reserved
    assert memory_charge(moved)[1].cells == Mask.of(1)
    assert renumbered(MANAGERS, moved, {0: 1, 1: 0}) == ledger
