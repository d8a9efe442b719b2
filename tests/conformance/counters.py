"""What the counters of a recorded admission would be if they said what their text says.

KEP-5526 counts *exclusive* allocations, and containers by what they were given; the kubelet counts
shared containers and containers without memory as well. KEP-2625 counts what is aligned to whole
cores; the kubelet leaves budgets out. The right numbers follow from the recorded answer and the
recorded pod alone. Our own code is not asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.conformance.effective import asked_memory, containers_of, is_guaranteed

if TYPE_CHECKING:
    from collections.abc import Mapping

    Document = Mapping[str, Any]

_ALLOCATIONS: Final = "resource_manager_allocations_total{{resource_name={},source=pod}}"
_ERRORS: Final = "resource_manager_allocation_errors_total{{resource_name={},source=pod}}"
_ASSIGNMENTS: Final = (
    "resource_manager_container_assignments{{assignment_type={},resource_name={}}}"
)
_ALIGNED: Final = (
    "kubelet_container_aligned_compute_resources_{}{{boundary=physical_cpu,scope=pod}}"
)


def right_counters(config: Document, pod: Document, answer: Document) -> dict[str, int]:
    """Return the counters of a recorded admission with the kubelet's deviations taken out.

    `pod` is the recorded pod, `config` the recorded configuration in force.
    """
    theirs: dict[str, int] = dict(answer["metrics"])
    right = dict(theirs)
    for resource, shared in _sharing(pod, answer).items():
        _add(right, _ALLOCATIONS.format(resource), -shared)
    _add(right, _ASSIGNMENTS.format("node_exclusive", "memory"), -_without_memory(pod, theirs))
    if is_on((config["cpu"].get("options") or {}).get("full-pcpus-only")):
        taken = theirs.get(_ALLOCATIONS.format("cpu"), 0) > 0
        _add(right, _ALIGNED.format("count"), int(taken))
        _add(right, _ALIGNED.format("failure_count"), int(_budget_failed(theirs, answer)))
    return right


def is_on(value: str | None) -> bool:
    """Return whether an option is on: the kubelet reads it as Go's `strconv.ParseBool` does."""
    return value in {"1", "t", "T", "true", "TRUE", "True"}


def _add(counters: dict[str, int], name: str, by: int) -> None:
    if by:
        counters[name] = counters.get(name, 0) + by


def _sharing(pod: Document, answer: Document) -> dict[str, int]:
    """Return how many containers got the pod's shared pool, by resource.

    Read off the recorded allocation; of a rejected pod there is none, so there it is the kubelet's
    own count of containers in the pool, from before it rejected.
    """
    if not answer["admitted"]:
        name = "pod_shared"
        counted = answer["metrics"]
        return {each: counted.get(_ASSIGNMENTS.format(name, each), 0) for each in ("cpu", "memory")}
    allocation, stated = answer["pod"], {one["name"]: one for one in containers_of(pod)}
    in_pool = [each["isolation"] == "pod" for each in allocation["containers"].values()]
    unpinned = [not is_guaranteed(stated[name]) for name in allocation["containers"]]
    return {
        "cpu": sum(in_pool) if allocation["cpus"] else 0,
        "memory": sum(unpinned) if allocation["memory"] else 0,
    }


def _without_memory(pod: Document, theirs: Mapping[str, int]) -> int:
    """Return how many of the containers that the kubelet counted have no memory of their own.

    It counts them in the order of admission, until one is rejected.
    """
    counted = theirs.get(_ASSIGNMENTS.format("node_exclusive", "memory"), 0)
    has_budget = bool(pod["spec"].get("resources"))
    return sum(
        1 for one in containers_of(pod)[:counted] if not asked_memory(one, of_budget=has_budget)
    )


def _budget_failed(theirs: Mapping[str, int], answer: Document) -> bool:
    """Return whether a budget of CPUs was rejected because whole cores or CPUs were missing."""
    if answer["admitted"] or answer["reason"] == "EmptyPodSharedPoolError":
        return False
    return theirs.get(_ERRORS.format("cpu"), 0) > 0
