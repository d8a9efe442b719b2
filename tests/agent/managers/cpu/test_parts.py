from __future__ import annotations

from msgspec.structs import replace

from agent.managers.cpu.manager import shared_cpus, shared_pool
from agent.managers.machine import Machine
from agent.managers.policy import Cordon, Policy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from sysfs.described import regular_host, with_offline
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import PLAIN, make_rules
from tests.agent.managers.ledgers import with_exclusive
from tests.agent.pods.pods import app, guaranteed, pod

#: The reserved CPU, and node 1.
OFFLINE = Mask.parse("0,8-15")


class TestSharedPool:
    def test_it_has_the_reserved_cpus_and_nobodys_exclusive_ones(self) -> None:
        rules = make_rules()
        ledger = with_pod(rules, pod(app("c1", guaranteed("cpu=3 memory=1Gi"))))
        assert shared_pool(rules, ledger) == Mask.parse("0,4-15")

    def test_strict_reservation_keeps_the_reserved_cpus_out(self) -> None:
        rules = make_rules(strict_cpu_reservation=True)
        assert shared_pool(rules, rules.empty_ledger()) == Mask.parse("1-15")
        assert shared_cpus(rules, rules.empty_ledger()) == Mask.parse("1-15")

    # Shows in differences.md: empty-shared-pool
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

    def test_cordoned_cpus_that_no_pod_has_come_before_those_of_pods(self) -> None:
        """The reserved CPU 0 and all of node 1 are offline, and what is left of node 0 cordoned."""
        online = Machine.of(with_offline(regular_host(cores_per_node=8, threads=1), OFFLINE))
        rules = make_rules(online)
        rules = replace(rules, policy=replace(rules.policy, cordon=Cordon(nodes=Mask.of(0))))
        ledger = with_exclusive(rules.empty_ledger(), Mask.parse("1-2"))
        assert shared_pool(rules, ledger) == EMPTY
        assert shared_cpus(rules, ledger) == Mask.parse("3-7")

    def test_cpus_that_no_pod_has_come_before_reserved_ones_of_pods(self) -> None:
        rules = make_rules(reserved="0-1", strict_cpu_reservation=True)
        rules = replace(rules, policy=replace(rules.policy, cordon=Cordon(Mask.of(2, 9))))
        ledger = with_exclusive(rules.empty_ledger(), PLAIN.cpus.all - Mask.of(9))
        assert shared_cpus(rules, ledger) == Mask.of(9)

    def test_cpus_of_pods_are_shared_only_where_pods_have_all_and_offline_ones_never(self) -> None:
        online = Machine.of(with_offline(regular_host(cores_per_node=8, threads=1), OFFLINE))
        rules = make_rules(online)
        ledger = with_exclusive(rules.empty_ledger(), PLAIN.cpus.all)
        assert shared_cpus(rules, ledger) == Mask.parse("1-7")
