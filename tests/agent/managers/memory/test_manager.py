from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.managers.allocation import MemoryBlock
from agent.managers.decision import Reason, Rejected, Rejection
from agent.managers.machine import Machine
from agent.managers.memory.manager import MemoryManager, memory_of
from agent.managers.topology.hint import NO_AFFINITY, Hint
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.managers.drafts import container, counted, draft_of
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, GIB, make_rules
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    from agent.managers.resource_manager import Draft
    from agent.pods.model import Container, Resources

#: Two nodes of 15 GiB allocatable each.
RULES = make_rules(scope=CONTAINER)
PAGED = make_rules(Machine.of(regular_host(hugepages=[(2 << 20, 512)])), scope=CONTAINER)
ON_NODE_1 = Hint(2, preferred=True)
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

    # Shows in differences.md: huge-page-sizes


class TestHints:
    def test_a_page_size_that_the_machine_lacks_is_a_rejection_naming_it(self) -> None:
        draft = draft_of(PAGED, pod(app("a", guaranteed("cpu=1 memory=1Gi hugepages-1Gi=1Gi"))))
        found = MANAGER.lacks(draft, container(draft, "a"))
        assert found is not None
        assert (found.reason, found.resource) == (Reason.UNEXPECTED, "hugepages-1Gi")
        assert (found.asked, found.container) == (GIB, "a")


class TestAllocation:
    # Shows in differences.md: memory-assignments
    def test_only_a_container_that_got_memory_is_counted_as_having_some(self) -> None:
        draft = draft_of(RULES, pod(app("a", own(1)), app("b"), of_pod=budget(4)))
        allocate(draft)
        assert counted(draft) == {
            "memory_manager_pinning_requests_total": 1,
            "resource_manager_allocations_total memory,node": 1,
            "resource_manager_container_assignments memory,node_exclusive": 1,
        }

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

    # Shows in differences.md: allocations-total
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
