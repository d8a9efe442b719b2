from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.managers.allocation import MemoryBlock
from agent.managers.decision import Reason, Rejected
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

PAGED = make_rules(Machine.of(regular_host(hugepages=[(2 << 20, 512)])), scope=CONTAINER)
MANAGER = MemoryManager()
OWN = guaranteed("cpu=1 memory=1Gi")
BUDGET = guaranteed("cpu=4 memory=4Gi")


def shown(draft: Draft) -> dict[str, list[str]]:
    return {
        name: [f"{b.size / GIB:g} GiB {b.type} on {b.nodes}" for b in blocks]
        for name, blocks in memory_of(draft).containers.items()
    }


# Shows in differences.md: huge-page-sizes
def test_a_page_size_that_the_machine_lacks_is_a_rejection_naming_it() -> None:
    draft = draft_of(PAGED, pod(app("a", guaranteed("cpu=1 memory=1Gi hugepages-1Gi=1Gi"))))
    found = MANAGER.lacks(draft, container(draft, "a"))
    assert found is not None
    assert (found.reason, found.resource) == (Reason.UNEXPECTED, "hugepages-1Gi")
    assert (found.asked, found.container) == (GIB, "a")


# Shows in differences.md: memory-assignments
def test_only_a_container_that_got_memory_is_counted_as_having_some() -> None:
    asked = pod(app("a", OWN), app("b"), of_pod=BUDGET)
    draft = draft_of(make_rules(scope=CONTAINER), asked)
    for one in draft.demand.containers:
        MANAGER.allocate(draft, one, NO_AFFINITY)
    assert counted(draft) == {
        "memory_manager_pinning_requests_total": 1,
        "resource_manager_allocations_total memory,node": 1,
        "resource_manager_container_assignments memory,node_exclusive": 1,
    }


def test_a_rejection_names_the_scarcest_type_and_is_counted() -> None:
    draft = draft_of(PAGED, pod(app("a", guaranteed("cpu=1 memory=1Gi hugepages-2Mi=3Gi"))))
    with pytest.raises(Rejected) as caught:
        MANAGER.allocate(draft, container(draft, "a"), NO_AFFINITY)
    found = caught.value.cause.explain()
    assert (found.resource, found.asked) == ("hugepages-2Mi", 3 * GIB)
    assert found.free == {0: GIB, 1: GIB}
    assert counted(draft, "errors") == {
        "memory_manager_pinning_errors_total": 1,
        "resource_manager_allocation_errors_total memory,node": 1,
    }


# Shows in differences.md: allocations-total
def test_a_budget_is_charged_once_and_divided() -> None:
    asked = pod(app("a", OWN), app("b"), app("c"), of_pod=BUDGET)
    draft = draft_of(make_rules(topology=BEST_EFFORT), asked)
    MANAGER.allocate_pod(draft, Hint(2, preferred=True))
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
