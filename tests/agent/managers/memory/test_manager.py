from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.managers.admission import admit
from agent.managers.allocation import MemoryBlock
from agent.managers.decision import Reason, Rejected, Rejection
from agent.managers.machine import Machine
from agent.managers.memory.manager import MemoryManager, memory_of
from agent.managers.memory.state import memory_charge
from agent.managers.topology.hint import NO_AFFINITY, Hint
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.drafts import container, counted, draft_of, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, GIB, POD, make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, resources, sidecar

if TYPE_CHECKING:
    from agent.managers.resource_manager import Draft
    from agent.pods.model import Container, Resources

#: Two nodes of 15 GiB allocatable each.
RULES = make_rules(scope=CONTAINER)
PAGED = make_rules(Machine.of(regular_host(hugepages=[(2 << 20, 512)])), scope=CONTAINER)
ON_NODE_0 = Hint(1, preferred=True)
ON_NODE_1 = Hint(2, preferred=True)
ON_BOTH = Hint(3, preferred=False)
MANAGER = MemoryManager()


def own(gib: int) -> Resources:
    return guaranteed(f"cpu=1 memory={gib}Gi")


def budget(gib: int) -> Resources:
    return guaranteed(f"cpu=4 memory={gib}Gi")


def allocate(draft: Draft, hint: Hint = NO_AFFINITY) -> dict[str, list[str]]:
    for one in draft.demand.containers:
        MANAGER.allocate(draft, one, hint)
    return shown(draft)


def shown(draft: Draft) -> dict[str, list[str]]:
    return {
        name: [f"{b.size / GIB:g} GiB {b.type} on {b.nodes}" for b in blocks]
        for name, blocks in memory_of(draft).containers.items()
    }


def rejection(draft: Draft, hint: Hint = NO_AFFINITY) -> Rejection:
    with pytest.raises(Rejected) as caught:
        allocate(draft, hint)
    return caught.value.cause.explain()


class TestHints:
    def test_they_are_the_nodes_with_enough_free_memory(self) -> None:
        ledger = with_pod(RULES, pod(app("a", own(10)), uid="other"))
        draft = draft_of(RULES, pod(app("a", own(6))), ledger)
        assert MANAGER.container_hints(draft, container(draft, "a")) == {"memory": (ON_NODE_1,)}
        assert MANAGER.pod_hints(draft) == {"memory": (ON_NODE_1,)}

    def test_a_pod_that_is_not_guaranteed_has_no_preference(self) -> None:
        draft = draft_of(RULES, pod(app("a", resources("memory=1Gi", "memory=1Gi"))))
        assert MANAGER.container_hints(draft, container(draft, "a")) == {}
        assert MANAGER.pod_hints(draft) == {}

    def test_a_shared_container_of_a_budget_has_no_preference(self) -> None:
        draft = draft_of(RULES, pod(app("a", own(1)), app("b"), of_pod=budget(4)))
        assert MANAGER.container_hints(draft, container(draft, "b")) == {}

    def test_memory_that_no_set_of_nodes_has_means_no_preference(self) -> None:
        draft = draft_of(RULES, pod(app("a", own(31))))
        assert MANAGER.container_hints(draft, container(draft, "a")) == {"memory": None}

    def test_no_set_of_nodes_serves_a_budget_that_leaves_a_container_nothing(self) -> None:
        draft = draft_of(make_rules(), pod(app("a", own(4)), app("b"), of_pod=budget(4)))
        assert MANAGER.pod_hints(draft) == {"memory": ()}

    def test_a_page_size_that_the_machine_lacks_is_a_rejection_naming_it(self) -> None:
        draft = draft_of(PAGED, pod(app("a", guaranteed("cpu=1 memory=1Gi hugepages-1Gi=1Gi"))))
        found = MANAGER.lacks(draft, container(draft, "a"))
        assert found is not None
        assert (found.reason, found.resource) == (Reason.UNEXPECTED, "hugepages-1Gi")
        assert (found.asked, found.container) == (GIB, "a")

    def test_that_is_the_reason_where_the_cpus_fit_nowhere_either(self) -> None:
        asked = pod(app("a", guaranteed("cpu=900 memory=1Gi hugepages-1Gi=1Gi")))
        decision = admit(PAGED, PAGED.empty_ledger(), asked)
        assert decision.rejection is not None
        assert decision.rejection.resource == "hugepages-1Gi"


class TestAllocation:
    def test_it_is_pinned_to_the_hints_nodes(self) -> None:
        draft = draft_of(RULES, pod(app("a", own(2))))
        assert allocate(draft, ON_NODE_1) == {"a": ["2 GiB memory on 1"]}
        assert memory_of(draft).charge[1].reserved["memory"] == 2 * GIB

    def test_without_the_static_policy_nothing_is_pinned_or_counted(self) -> None:
        draft = draft_of(make_rules(memory=False), pod(app("a", own(2))))
        assert allocate(draft) == {}
        assert MANAGER.container_hints(draft, container(draft, "a")) == {}
        assert counted(draft) == {}

    def test_only_a_container_that_got_memory_is_counted_as_having_some(self) -> None:
        draft = draft_of(RULES, pod(app("a", own(1)), app("b"), of_pod=budget(4)))
        allocate(draft)
        assert counted(draft) == {
            "memory_manager_pinning_requests_total": 1,
            "resource_manager_allocations_total memory,node": 1,
            "resource_manager_container_assignments memory,node_exclusive": 1,
        }

    def test_init_memory_is_used_again_and_given_up_to_who_uses_it(self) -> None:
        draft = draft_of(RULES, pod(init("i", own(5)), sidecar("s", own(1)), app("a", own(2))))
        assert allocate(draft, ON_NODE_0) == {
            "i": ["2 GiB memory on 0"],
            "s": ["1 GiB memory on 0"],
            "a": ["2 GiB memory on 0"],
        }
        assert memory_of(draft).charge[0].reserved["memory"] == 5 * GIB

    def test_a_rejection_names_the_scarcest_type_and_is_counted(self) -> None:
        asked = guaranteed("cpu=1 memory=1Gi hugepages-2Mi=3Gi")
        draft = draft_of(PAGED, pod(app("a", asked)))
        found = rejection(draft)
        assert (found.resource, found.asked) == ("hugepages-2Mi", 3 * GIB)
        assert found.free == {0: GIB, 1: GIB}
        assert counted(draft, "errors") == {
            "memory_manager_pinning_errors_total": 1,
            "resource_manager_allocation_errors_total memory,node": 1,
        }


class TestBudget:
    def draft(self, *containers: Container, gib: int = 4) -> Draft:
        return draft_of(make_rules(topology=BEST_EFFORT), pod(*containers, of_pod=budget(gib)))

    def test_it_is_charged_once_and_divided(self) -> None:
        draft = self.draft(app("a", own(1)), app("b"), app("c"))
        MANAGER.allocate_pod(draft, ON_NODE_1)
        assert memory_of(draft).pod == (MemoryBlock("memory", 4 * GIB, Mask.of(1)),)
        assert shown(draft) == {
            "a": ["1 GiB memory on 1"],
            "b": ["3 GiB memory on 1"],
            "c": ["3 GiB memory on 1"],
        }
        assert memory_of(draft).charge[1].reserved["memory"] == 4 * GIB
        assert counted(draft, "resource_manager") == {
            "resource_manager_allocations_total memory,pod": 1,
            "resource_manager_container_assignments memory,pod_exclusive": 1,
            "resource_manager_container_assignments memory,pod_shared": 2,
        }

    def test_an_empty_shared_pool_is_rejected_and_nothing_charged(self) -> None:
        draft = self.draft(app("a", own(4)), app("b"))
        with pytest.raises(Rejected) as caught:
            MANAGER.allocate_pod(draft, ON_NODE_0)
        assert caught.value.cause.explain().reason is Reason.EMPTY_POD_SHARED_POOL
        assert caught.value.cause.explain().resource == "memory"
        assert memory_of(draft).charge == memory_charge(draft.ledger)
        assert counted(draft, "allocation_errors") == {
            "resource_manager_allocation_errors_total memory,pod": 1
        }

    def test_a_budget_that_no_set_of_nodes_has_is_rejected_for_the_pod(self) -> None:
        draft = self.draft(app("a"), gib=31)
        with pytest.raises(Rejected) as caught:
            MANAGER.allocate_pod(draft, ON_BOTH)
        assert caught.value.cause.explain().container is None
        assert caught.value.cause.explain().asked == 31 * GIB


@pytest.mark.parametrize("scope", [CONTAINER, POD])
def test_release_gives_back_what_the_pod_or_its_containers_were_charged(scope: object) -> None:
    rules = make_rules(scope=scope)  # type: ignore[arg-type]  # parametrized by value
    ledger = with_pod(rules, pod(app("a", own(1)), app("b"), of_pod=budget(4)))
    allocation = ledger.allocations["u-1"]
    assert memory_charge(ledger)[0].reserved["memory"] == (4 if scope is POD else 1) * GIB
    assert MANAGER.released(rules, memory_charge(ledger), allocation) == memory_charge(
        rules.empty_ledger()
    )
