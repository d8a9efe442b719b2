from __future__ import annotations

from agent.managers.cpu.parts import cpus_of, shared_cpus, shared_pool
from agent.managers.effective_policy import EffectivePolicy
from agent.managers.memory.parts import memory_of
from agent.managers.memory.state import memory_charge
from agent.managers.policy import Policy
from agent.managers.registry import MANAGERS
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import draft_of, with_pod
from tests.agent.managers.hosts import GIB, PLAIN, SMT, make_rules
from tests.agent.managers.ledgers import with_exclusive
from tests.agent.pods.pods import app, guaranteed, pod


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


class TestSharedPool:
    def test_it_has_the_reserved_cpus_and_nobodys_exclusive_ones(self) -> None:
        rules = make_rules()
        ledger = with_pod(rules, pod(app("c1", guaranteed("cpu=3 memory=1Gi"))))
        assert shared_pool(rules, ledger) == Mask.parse("0,4-15")

    def test_strict_reservation_keeps_the_reserved_cpus_out(self) -> None:
        rules = make_rules(strict_cpu_reservation=True)
        assert shared_pool(rules, rules.empty_ledger()) == Mask.parse("1-15")
        assert shared_cpus(rules, rules.empty_ledger()) == Mask.parse("1-15")

    def test_containers_run_on_the_reserved_cpus_when_it_is_empty(self) -> None:
        rules = make_rules(strict_cpu_reservation=True)
        ledger = with_exclusive(rules.empty_ledger(), Mask.parse("1-15"))
        assert shared_pool(rules, ledger) == EMPTY
        assert shared_cpus(rules, ledger) == Mask.of(0)

    def test_containers_run_anywhere_when_nothing_is_reserved_either(self) -> None:
        rules = EffectivePolicy(PLAIN, Policy(), MANAGERS)
        ledger = with_exclusive(rules.empty_ledger(), PLAIN.cpus.all)
        assert shared_pool(rules, ledger) == EMPTY
        assert shared_cpus(rules, ledger) == PLAIN.cpus.all


class TestDraft:
    RULES = make_rules()
    OTHER = pod(app("c1", guaranteed("cpu=3 memory=1Gi")), uid="other")

    def test_it_starts_with_what_is_free_and_is_not_reserved(self) -> None:
        ledger = with_pod(self.RULES, self.OTHER)
        draft = draft_of(self.RULES, pod(app("c1")), ledger)
        cpus = cpus_of(draft)
        assert cpus.free == Mask.parse("4-15")
        assert memory_of(draft).charge == memory_charge(ledger)
        assert (cpus.reusable, cpus.pod, cpus.containers) == (EMPTY, None, {})

    def test_counters_add_up_by_name_and_labels(self) -> None:
        draft = draft_of(self.RULES, pod(app("c1")))
        draft.count("requests")
        draft.count("requests", by=2)
        draft.count("requests", "cpu")
        assert draft.counters == {("requests", ()): 3, ("requests", ("cpu",)): 1}
