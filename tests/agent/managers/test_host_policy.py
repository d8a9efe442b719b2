from __future__ import annotations

from agent.managers.memory.state import memory_charge
from agent.managers.policy import Policy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from sysfs.mask import Mask
from tests.agent.managers.hosts import GIB, PLAIN, SMT, make_rules


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
