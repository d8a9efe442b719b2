"""That corrected counters follow from what was recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.counters import right_counters

PLAIN: dict[str, Any] = {"cpu": {"options": None}}
WHOLE: dict[str, Any] = {"cpu": {"options": {"full-pcpus-only": "true"}}}
CPU_OF_POD = "resource_manager_allocations_total{resource_name=cpu,source=pod}"
MEMORY_OF_POD = "resource_manager_allocations_total{resource_name=memory,source=pod}"
OWN_MEMORY = (
    "resource_manager_container_assignments{assignment_type=node_exclusive,resource_name=memory}"
)
ALIGNED = "kubelet_container_aligned_compute_resources_count{boundary=physical_cpu,scope=pod}"
NOT_ALIGNED = (
    "kubelet_container_aligned_compute_resources_failure_count{boundary=physical_cpu,scope=pod}"
)


def in_pool(resource: str) -> str:
    return (
        "resource_manager_container_assignments"
        f"{{assignment_type=pod_shared,resource_name={resource}}}"
    )


def container(name: str, cpu: str = "", memory: str = "1Gi") -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory} if cpu else {}
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}


#: One Guaranteed container and two that state nothing, with a budget for all.
MIXED = {
    "spec": {
        "resources": {"limits": {"cpu": "4", "memory": "4Gi"}},
        "containers": [container("a", "2"), container("b"), container("c")],
    }
}


def admitted(metrics: dict[str, int], **isolation: str) -> dict[str, Any]:
    containers = {name: {"isolation": level} for name, level in isolation.items()}
    pod = {"cpus": "1-4", "memory": [{}], "containers": containers}
    return {"admitted": True, "metrics": metrics, "pod": pod}


def rejected(reason: str, **metrics: int) -> dict[str, Any]:
    return {"admitted": False, "reason": reason, "metrics": metrics}


#: What the kubelet counts of `MIXED` admitted.
IN_BUDGET = {CPU_OF_POD: 3, MEMORY_OF_POD: 3, in_pool("cpu"): 2}


def test_containers_of_the_pods_pool_are_no_exclusive_allocations() -> None:
    answer = admitted(IN_BUDGET, a="container", b="pod", c="pod")
    expected = {CPU_OF_POD: 1, MEMORY_OF_POD: 1, in_pool("cpu"): 2}
    assert right_counters(PLAIN, MIXED, answer) == expected
    answer["pod"]["memory"] = None
    assert right_counters(PLAIN, MIXED, answer) == {**expected, MEMORY_OF_POD: 3}
    # Of a rejected pod those that were in the pool by then are taken off.
    answer = rejected("UnexpectedAdmissionError", **{CPU_OF_POD: 3, in_pool("cpu"): 2})
    assert right_counters(PLAIN, MIXED, answer)[CPU_OF_POD] == 1


@pytest.mark.parametrize("counted", [3, 2, 1])
def test_containers_without_memory_of_their_own_are_taken_off_in_order(counted: int) -> None:
    answer = rejected("TopologyAffinityError", **{OWN_MEMORY: counted})
    assert right_counters(PLAIN, MIXED, answer)[OWN_MEMORY] == 1


def test_a_budget_of_whole_cores_is_aligned_and_a_rejected_one_is_not() -> None:
    errors = {"resource_manager_allocation_errors_total{resource_name=cpu,source=pod}": 1}
    assert right_counters(WHOLE, MIXED, rejected("SMTAlignmentError", **errors))[NOT_ALIGNED] == 1
    empty = right_counters(WHOLE, MIXED, rejected("EmptyPodSharedPoolError", **errors))
    assert empty == errors


@pytest.mark.parametrize("value", ["1", "T", "True", "0", "f", None])
def test_an_option_is_on_however_go_spells_it(value: str | None) -> None:
    config = {"cpu": {"options": {"full-pcpus-only": value}}}
    answer = admitted(IN_BUDGET, a="container", b="pod", c="pod")
    assert (ALIGNED in right_counters(config, MIXED, answer)) is (value in {"1", "T", "True"})


def test_the_counters_of_other_pods_stay_as_they_are() -> None:
    plain = {"spec": {"containers": [container("a", "2")]}}
    metrics = {OWN_MEMORY: 1, "kubelet_topology_manager_admission_requests_total": 1}
    answer = admitted(metrics, a="container")
    answer["pod"].update(cpus=None, memory=None)
    assert right_counters(WHOLE, plain, answer) == metrics
