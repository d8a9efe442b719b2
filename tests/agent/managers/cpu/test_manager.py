from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from agent.managers.cpu.manager import CpuManager, cpus_of
from agent.managers.decision import Reason, Rejected, Rejection
from agent.managers.topology.hint import NO_AFFINITY, Hint
from sysfs.mask import Mask
from tests.agent.managers.drafts import counted, draft_of, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.resource_manager import Draft
    from agent.pods.model import Resources

RULES = make_rules(scope=CONTAINER)
WHOLE_CORES = make_rules(SMT, scope=CONTAINER, reserved="0,8", full_pcpus_only=True)
ON_NODE_0 = Hint(1, preferred=True)
ON_NODE_1 = Hint(2, preferred=True)
MANAGER = CpuManager()


def own(cpus: int) -> Resources:
    return guaranteed(f"cpu={cpus} memory=1Gi")


def allocate(draft: Draft, hint: Hint = NO_AFFINITY) -> dict[str, str]:
    for one in draft.demand.containers:
        MANAGER.allocate(draft, one, hint)
    return {name: str(cpus) for name, cpus in cpus_of(draft).containers.items()}


def rejection(draft: Draft) -> Rejection:
    with pytest.raises(Rejected) as caught:
        allocate(draft)
    return caught.value.cause.explain()


class TestAllocation:
    def test_too_few_free_cpus_are_a_rejection_with_what_is_free_where(self) -> None:
        ledger = with_pod(RULES, pod(app("a", own(5)), app("b", own(8)), uid="other"))
        found = rejection(draft_of(RULES, pod(app("a", own(4))), ledger))
        assert (found.reason, found.resource, found.container) == (Reason.UNEXPECTED, "cpu", "a")
        assert (found.asked, found.free) == (4, {0: 2, 1: 0})
        assert found.message == "not enough CPUs: 4 asked, 2 free"


class TestWholeCores:
    def test_half_a_core_is_rejected_before_anything_is_taken(self) -> None:
        draft = draft_of(WHOLE_CORES, pod(app("a", own(3))))
        found = rejection(draft)
        assert (found.reason, found.asked, found.free) == (Reason.SMT_ALIGNMENT, 3, {0: 6, 1: 8})
        assert cpus_of(draft).containers == {}


class TestBudget:
    BUDGET = guaranteed("cpu=4 memory=4Gi")

    # Shows in differences.md: allocations-total
    def test_it_is_taken_from_the_hints_node_and_divided(self) -> None:
        asked = pod(app("a", own(1)), app("b"), of_pod=self.BUDGET)
        draft = draft_of(make_rules(), asked)
        MANAGER.allocate_pod(draft, ON_NODE_1)
        assert cpus_of(draft).pod == Mask.parse("8-11")
        assert cpus_of(draft).containers == {"a": Mask.of(8), "b": Mask.parse("9-11")}
        assert counted(draft, "resource_manager") == {
            "resource_manager_allocations_total cpu,pod": 1,
            "resource_manager_container_assignments cpu,pod_exclusive": 1,
            "resource_manager_container_assignments cpu,pod_shared": 1,
        }

    # Shows in differences.md: aligned-budgets
    @pytest.mark.parametrize(
        ("cpus", "name"),
        [
            (4, "container_aligned_compute_resources_count pod,physical_cpu"),
            (3, "container_aligned_compute_resources_failure_count pod,physical_cpu"),
            (18, "container_aligned_compute_resources_failure_count pod,physical_cpu"),
        ],
    )
    def test_a_budget_is_counted_as_made_of_whole_cores_or_not(self, cpus: int, name: str) -> None:
        rules = make_rules(SMT, BEST_EFFORT, reserved="0,8", full_pcpus_only=True)
        asked = pod(app("a"), of_pod=guaranteed(f"cpu={cpus} memory=4Gi"))
        draft = draft_of(rules, asked)
        with nullcontext() if cpus == 4 else pytest.raises(Rejected):
            MANAGER.allocate_pod(draft, ON_NODE_0)
        assert counted(draft, "aligned").get(name) == 1
