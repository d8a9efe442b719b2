from __future__ import annotations

from agent.managers.cpu.parts import shared_cpus, shared_pool
from agent.managers.effective_policy import EffectivePolicy
from agent.managers.policy import Policy
from agent.managers.registry import MANAGERS
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import PLAIN, make_rules
from tests.agent.managers.ledgers import with_exclusive
from tests.agent.pods.pods import app, guaranteed, pod


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
