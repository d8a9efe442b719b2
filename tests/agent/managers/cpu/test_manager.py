from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.cpu.manager import CpuManager, aligned_cpus, cpus_of
from agent.managers.decision import Reason, Rejected, Rejection
from agent.managers.machine import Machine
from agent.managers.policy import CpuPolicy
from agent.managers.topology.hint import NO_AFFINITY, Hint
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.drafts import container, counted, draft_of, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, SMT, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from agent.managers.resource_manager import Draft
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Resources

RULES = make_rules(scope=CONTAINER)
WHOLE_CORES = make_rules(SMT, scope=CONTAINER, reserved="0,8", full_pcpus_only=True)
ON_NODE_0 = Hint(1, preferred=True)
ON_NODE_1 = Hint(2, preferred=True)
ON_BOTH = Hint(3, preferred=False)
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


def without_cpu_manager() -> EffectivePolicy:
    return replace(RULES, policy=replace(RULES.policy, cpu=CpuPolicy()))


class TestHints:
    def test_they_are_the_nodes_with_enough_free_cpus(self) -> None:
        ledger = with_pod(RULES, pod(app("a", own(6)), uid="other"))
        draft = draft_of(RULES, pod(app("a", own(4))), ledger)
        offered = {"cpu": [ON_NODE_1, ON_BOTH]}
        assert MANAGER.container_hints(draft, container(draft, "a")) == offered
        assert MANAGER.pod_hints(draft) == offered

    @pytest.mark.parametrize("asked", [resources("cpu=2"), guaranteed("cpu=500m memory=1Gi")])
    def test_a_container_that_shares_has_no_preference(self, asked: Resources) -> None:
        draft = draft_of(RULES, pod(app("a", asked)))
        assert MANAGER.container_hints(draft, container(draft, "a")) == {}
        assert MANAGER.pod_hints(draft) == {}

    def test_policy_none_has_no_preference(self) -> None:
        draft = draft_of(without_cpu_manager(), pod(app("a", own(2))))
        assert MANAGER.container_hints(draft, container(draft, "a")) == {}
        assert MANAGER.pod_hints(draft) == {}

    def test_no_set_of_nodes_serves_a_budget_that_leaves_a_container_nothing(self) -> None:
        asked = pod(app("a", own(4)), app("b"), of_pod=guaranteed("cpu=4 memory=4Gi"))
        assert MANAGER.pod_hints(draft_of(make_rules(), asked)) == {"cpu": ()}


class TestAllocation:
    def test_the_hints_nodes_serve_first_then_any(self) -> None:
        draft = draft_of(RULES, pod(app("a", own(2)), app("b", own(7))))
        assert allocate(draft, ON_NODE_1) == {"a": "8-9", "b": "1,10-15"}
        assert cpus_of(draft).free == Mask.parse("2-7")

    def test_policy_none_gives_none_and_counts_nothing(self) -> None:
        draft = draft_of(without_cpu_manager(), pod(app("a", own(2))))
        assert allocate(draft) == {}
        assert counted(draft) == {}

    def test_init_cpus_are_used_again_sidecars_keep_theirs(self) -> None:
        draft = draft_of(RULES, pod(init("i", own(2)), sidecar("s", own(1)), app("a", own(2))))
        assert allocate(draft) == {"i": "1-2", "s": "1", "a": "2-3"}

    def test_too_few_free_cpus_are_a_rejection_with_what_is_free_where(self) -> None:
        ledger = with_pod(RULES, pod(app("a", own(5)), app("b", own(8)), uid="other"))
        found = rejection(draft_of(RULES, pod(app("a", own(4))), ledger))
        assert (found.reason, found.resource, found.container) == (Reason.UNEXPECTED, "cpu", "a")
        assert (found.asked, found.free) == (4, {0: 2, 1: 0})
        assert found.message == "not enough CPUs: 4 asked, 2 free"


class TestAlignment:
    MACHINE = Machine.of(regular_host(packages=2, nodes_per_package=2, cores_per_node=2, threads=1))

    def test_cpus_of_the_nodes_are_aligned(self) -> None:
        draft = draft_of(make_rules(self.MACHINE), pod(app("a")))
        assert aligned_cpus(draft, 1, Mask.parse("1-7")) == Mask.of(1)

    def test_align_by_socket_takes_the_nodes_whole_sockets(self) -> None:
        draft = draft_of(make_rules(self.MACHINE, align_by_socket=True), pod(app("a")))
        assert aligned_cpus(draft, 1, Mask.parse("1-7")) == Mask.parse("1-3")


class TestWholeCores:
    def test_half_a_core_is_rejected_before_anything_is_taken(self) -> None:
        draft = draft_of(WHOLE_CORES, pod(app("a", own(3))))
        found = rejection(draft)
        assert (found.reason, found.asked, found.free) == (Reason.SMT_ALIGNMENT, 3, {0: 6, 1: 8})
        assert cpus_of(draft).containers == {}

    def test_reserved_cores_do_not_count_as_free(self) -> None:
        ledger = with_pod(WHOLE_CORES, pod(app("a", own(6)), app("b", own(6)), uid="other"))
        found = rejection(draft_of(WHOLE_CORES, pod(app("a", own(4))), ledger))
        assert sum(found.free.values()) == 2

    def test_a_rejection_is_counted_as_not_aligned(self) -> None:
        draft = draft_of(WHOLE_CORES, pod(app("a", own(3))))
        rejection(draft)
        assert counted(draft) == {
            "cpu_manager_pinning_requests_total": 1,
            "cpu_manager_pinning_errors_total": 1,
            "resource_manager_allocation_errors_total cpu,node": 1,
            "container_aligned_compute_resources_failure_count container,physical_cpu": 1,
        }


class TestBudget:
    BUDGET = guaranteed("cpu=4 memory=4Gi")

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

    def test_a_fractional_budget_is_not_taken(self) -> None:
        asked = pod(app("a", own(1)), of_pod=guaranteed("cpu=2500m memory=4Gi"))
        draft = draft_of(make_rules(), asked)
        MANAGER.allocate_pod(draft, ON_NODE_0)
        assert (cpus_of(draft).pod, cpus_of(draft).containers) == (None, {})

    def test_an_empty_shared_pool_is_rejected_and_counted(self) -> None:
        asked = pod(app("a", own(4)), app("b"), of_pod=self.BUDGET)
        draft = draft_of(make_rules(topology=BEST_EFFORT), asked)
        with pytest.raises(Rejected) as caught:
            MANAGER.allocate_pod(draft, ON_NODE_0)
        assert caught.value.cause.explain().reason is Reason.EMPTY_POD_SHARED_POOL
        assert counted(draft) == {
            "cpu_manager_pinning_errors_total": 1,
            "resource_manager_allocation_errors_total cpu,pod": 1,
        }

    def test_only_the_budget_must_be_whole_cores(self) -> None:
        rules = make_rules(SMT, reserved="0,8", full_pcpus_only=True)
        odd_slice = pod(app("a", own(1)), app("b"), of_pod=self.BUDGET)
        draft = draft_of(rules, odd_slice)
        MANAGER.allocate_pod(draft, ON_NODE_1)
        assert len(cpus_of(draft).containers["a"]) == 1
        odd_budget = pod(app("a"), of_pod=guaranteed("cpu=3 memory=4Gi"))
        with pytest.raises(Rejected) as caught:
            MANAGER.allocate_pod(draft_of(rules, odd_budget), ON_NODE_1)
        assert caught.value.cause.explain().reason is Reason.SMT_ALIGNMENT
        assert caught.value.cause.explain().container is None

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

    def test_an_empty_pool_says_nothing_about_whole_cores(self) -> None:
        rules = make_rules(SMT, BEST_EFFORT, reserved="0,8", full_pcpus_only=True)
        asked = pod(app("a", own(4)), app("b"), of_pod=self.BUDGET)
        draft = draft_of(rules, asked)
        with pytest.raises(Rejected):
            MANAGER.allocate_pod(draft, ON_NODE_0)
        assert counted(draft, "aligned") == {}
