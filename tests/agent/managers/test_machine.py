from __future__ import annotations

import pytest

from agent.managers.cpu.topology import CpuTopologyError
from agent.managers.machine import Machine
from agent.managers.memory.state import memory_charge
from agent.managers.policy import Policy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from sysfs.described import regular_host, with_memory_only_nodes, with_offline
from sysfs.mask import Mask
from tests.agent.managers.hosts import GIB, PLAIN, SMT, make_rules

MIB = 1 << 20
HOST = regular_host(cores_per_node=2, hugepages=[(2 * MIB, 8)])


def test_it_has_the_nodes_memory_pages_and_distances_of_the_host() -> None:
    node = Machine.of(HOST).nodes[1]
    assert (node.id, node.memory_bytes, node.hugepages) == (1, 16 * GIB, {2 * MIB: 8})
    assert node.distances == {0: 21, 1: 10}


def test_memory_only_nodes_are_nodes_without_cpus() -> None:
    machine = Machine.of(with_memory_only_nodes(HOST, [64 * GIB]))
    assert machine.node_mask == Mask.of(0, 1, 2)
    assert [node.id for node in machine.cpus.nodes] == [0, 1]


def test_offline_cpus_do_not_exist() -> None:
    assert Machine.of(with_offline(HOST, Mask.of(3))).cpus.all == HOST.online - Mask.of(3)


def test_a_host_without_online_cpus_is_rejected() -> None:
    with pytest.raises(CpuTopologyError):
        Machine.of(with_offline(HOST, HOST.online))


def test_assignable_is_what_is_online_and_not_reserved() -> None:
    assert make_rules(reserved="0,3").assignable_cpus == Mask.parse("1-2,4-15")


def test_siblings_of_reserved_cpus_are_out_of_reach_for_whole_cores() -> None:
    assert make_rules(SMT, reserved="1").closed_physical_cpus == Mask.of(1, 9)


def test_memory_is_charged_only_by_the_static_policy() -> None:
    assert memory_charge(make_rules(memory=False).empty_ledger()) == {}
    ledger = make_rules().empty_ledger()
    assert {node: charge.reserved["memory"] for node, charge in memory_charge(ledger).items()} == {
        0: 0,
        1: 0,
    }
    assert make_rules().memory.allocatable[0]["memory"] == 15 * GIB


def test_without_policies_nothing_is_static() -> None:
    rules = EffectivePolicy(PLAIN, Policy(), MANAGERS)
    assert (rules.static_cpus, rules.static_memory) == (False, False)
    assert (make_rules().static_cpus, make_rules().static_memory) == (True, True)
