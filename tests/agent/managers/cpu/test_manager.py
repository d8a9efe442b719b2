from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.cpu.manager import CpuManager, cpus_of, shared_cpus, shared_pool
from agent.managers.decision import Reason, Rejected
from agent.managers.machine import Machine
from agent.managers.policy import Cordon, Policy
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from agent.managers.topology.hint import NO_AFFINITY, Hint
from sysfs.described import regular_host, with_offline
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import container, counted, draft_of, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, PLAIN, SMT, make_rules
from tests.agent.managers.ledgers import with_exclusive
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.pods.model import Resources

RULES = make_rules(scope=CONTAINER)
WHOLE_CORES = make_rules(SMT, scope=CONTAINER, reserved="0,8", full_pcpus_only=True)
MANAGER = CpuManager()


def own(cpus: int) -> Resources:
    return guaranteed(f"cpu={cpus} memory=1Gi")


@pytest.mark.parametrize(
    ("rules", "cpus", "reason", "free", "message"),
    [
        (RULES, 4, Reason.UNEXPECTED, {0: 2, 1: 0}, "not enough CPUs: 4 asked, 2 free"),
        (WHOLE_CORES, 3, Reason.SMT_ALIGNMENT, {0: 6, 1: 8}, "3 CPUs asked, not a multiple"),
    ],
)
def test_a_rejection_says_what_is_free_where_and_takes_nothing(
    rules: EffectivePolicy, cpus: int, reason: Reason, free: dict[int, int], message: str
) -> None:
    other = pod(app("a", own(5)), app("b", own(8)), uid="other")
    ledger = with_pod(rules, other) if rules is RULES else None
    draft = draft_of(rules, pod(app("a", own(cpus))), ledger)
    with pytest.raises(Rejected) as caught:
        MANAGER.allocate(draft, container(draft, "a"), NO_AFFINITY)
    found = caught.value.cause.explain()
    assert (found.reason, found.resource, found.container) == (reason, "cpu", "a")
    assert (found.asked, found.free) == (cpus, free)
    assert message in found.message
    assert cpus_of(draft).containers == {}


# Shows in differences.md: allocations-total
def test_a_budget_is_taken_from_the_hints_node_and_divided() -> None:
    asked = pod(app("a", own(1)), app("b"), of_pod=guaranteed("cpu=4 memory=4Gi"))
    draft = draft_of(make_rules(), asked)
    MANAGER.allocate_pod(draft, Hint(2, preferred=True))
    assert cpus_of(draft).pod == Mask.parse("8-11")
    assert cpus_of(draft).containers == {"a": Mask.of(8), "b": Mask.parse("9-11")}
    assert counted(draft, "resource_manager") == {
        "resource_manager_allocations_total cpu,pod": 1,
        "resource_manager_container_assignments cpu,pod_exclusive": 1,
        "resource_manager_container_assignments cpu,pod_shared": 1,
    }


# Shows in differences.md: aligned-budgets
@pytest.mark.parametrize(("cpus", "failed"), [(4, ""), (3, "failure_"), (18, "failure_")])
def test_a_budget_is_counted_as_made_of_whole_cores_or_not(cpus: int, failed: str) -> None:
    rules = make_rules(SMT, BEST_EFFORT, reserved="0,8", full_pcpus_only=True)
    draft = draft_of(rules, pod(app("a"), of_pod=guaranteed(f"cpu={cpus} memory=4Gi")))
    with pytest.raises(Rejected) if failed else nullcontext():
        MANAGER.allocate_pod(draft, Hint(1, preferred=True))
    name = f"container_aligned_compute_resources_{failed}count pod,physical_cpu"
    assert counted(draft, "aligned").get(name) == 1


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
