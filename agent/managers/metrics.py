"""The metrics of decisions: counters by name and labels, and how a gauge is described.

Counters of the kubelet have its names; those of KEP-5526 have a later name
(`VersionRules.manager_metrics_name_kubelet`).
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.ledger import Ledger

#: One sample of a counter: its full name and its label values, in the order of the metric.
CounterKey: TypeAlias = tuple[str, tuple[str, ...]]


class MetricType(StrEnum):
    """The metric types of the Prometheus exposition format that are used here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(Struct, frozen=True):
    """One metric family.

    `name` is the full name in the exposition. `domain` holds, label by label, the values that are
    exported as 0 from the start (empty: unknown beforehand), so that a rate shows the first
    increment. `buckets` are the upper bounds of a histogram, in the metric's unit.
    """

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    domain: tuple[tuple[str, ...], ...] = ()
    buckets: tuple[float, ...] = ()
    #: The full name where metrics name the kubelet (`VersionRules`), "" where it is the same.
    later_name: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that the metric can have in the exposition, the oldest first."""
        return (self.name, self.later_name) if self.later_name else (self.name,)

    def initial(self) -> Iterator[tuple[str, ...]]:
        """Yield the label values that exist from the start (one empty tuple without labels)."""
        if len(self.domain) == len(self.labels):
            yield from product(*self.domain)


class Sample(NamedTuple):
    """One value of a gauge with its label values, in the order of the metric's labels."""

    metric: MetricSpec
    labels: tuple[str, ...]
    value: float


def gauge(name: str, text: str, *labels: str) -> MetricSpec:
    """Return a gauge whose label values are not known beforehand."""
    return MetricSpec(name, MetricType.GAUGE, text, labels)


SCOPES: Final = ("container", "pod")
BOUNDARIES: Final = ("numa_node", "physical_cpu", "uncore_cache")
RESOURCES: Final = ("cpu", "memory")
SOURCES: Final = ("node", "pod")
ASSIGNMENT_TYPES: Final = ("node_exclusive", "pod_exclusive", "pod_shared")


def counter(name: str, text: str, later_name: str = "", **labels: tuple[str, ...]) -> MetricSpec:
    """Return a counter with the values of its labels that are known beforehand."""
    known = (tuple(labels), tuple(labels.values()))
    return MetricSpec(name, MetricType.COUNTER, text, *known, later_name=later_name)


CPU_PINNING_REQUESTS: Final = counter(
    "kubelet_cpu_manager_pinning_requests_total",
    "Containers and pods that the CPU manager was asked to pin.",
)
CPU_PINNING_ERRORS: Final = counter(
    "kubelet_cpu_manager_pinning_errors_total",
    "Requests for pinned CPUs that the CPU manager could not serve.",
)
MEMORY_PINNING_REQUESTS: Final = counter(
    "kubelet_memory_manager_pinning_requests_total",
    "Containers and pods that the memory manager was asked to pin.",
)
MEMORY_PINNING_ERRORS: Final = counter(
    "kubelet_memory_manager_pinning_errors_total",
    "Requests for pinned memory that the memory manager could not serve.",
)
TOPOLOGY_ADMISSION_REQUESTS: Final = counter(
    "kubelet_topology_manager_admission_requests_total",
    "Admissions that the topology manager was asked to align.",
)
TOPOLOGY_ADMISSION_ERRORS: Final = counter(
    "kubelet_topology_manager_admission_errors_total",
    "Admissions that the topology manager rejected.",
)
ALIGNED_COUNT: Final = counter(
    "kubelet_container_aligned_compute_resources_count",
    "Allocations that ended up aligned to a boundary of the hardware.",
    scope=SCOPES,
    boundary=BOUNDARIES,
)
ALIGNED_FAILURE_COUNT: Final = counter(
    "kubelet_container_aligned_compute_resources_failure_count",
    "Allocations that should have been aligned to a boundary of the hardware and were not.",
    scope=SCOPES,
    boundary=BOUNDARIES,
)
ALLOCATIONS: Final = counter(
    "resource_manager_allocations_total",
    "Exclusive allocations, by whether they came from the node's pool or from a pod's budget.",
    later_name="kubelet_resource_manager_allocations_total",
    resource_name=RESOURCES,
    source=SOURCES,
)
ALLOCATION_ERRORS: Final = counter(
    "resource_manager_allocation_errors_total",
    "Exclusive allocations that failed, by the pool they were meant to come from.",
    later_name="kubelet_resource_manager_allocation_errors_total",
    resource_name=RESOURCES,
    source=SOURCES,
)
CONTAINER_ASSIGNMENTS: Final = counter(
    "resource_manager_container_assignments",
    "Containers given something exclusive, or their pod's pool, since the start (cumulative).",
    later_name="kubelet_resource_manager_container_assignments_total",
    resource_name=RESOURCES,
    assignment_type=ASSIGNMENT_TYPES,
)
BOUNDED_CHOICES: Final = counter(
    "numawarden_bounded_choices_total",
    "Choices among sets of NUMA nodes that ended at their budget of work: valid, maybe not best.",
)


#: The assignment type of containers without resources of their own or of their pod.
SHARED: Final = "shared"
ASSIGNED_CONTAINERS: Final = gauge(
    "numawarden_container_assignments",
    "Containers in the ledger by assignment.",
    "resource_name",
    "assignment_type",
)


def assignment_samples(
    resource: str,
    ledger: Ledger,
    assignment: Callable[[PodAllocation, ContainerAllocation], str],
) -> Iterator[Sample]:
    """Yield how many containers have each assignment type of a resource."""
    counted = Counter(
        assignment(allocation, container)
        for allocation in ledger.allocations.values()
        for container in allocation.containers
    )
    for kind in (*ASSIGNMENT_TYPES, SHARED):
        yield Sample(ASSIGNED_CONTAINERS, (resource, kind), counted[kind])


#: The counters that decisions increment.
DECISION_COUNTERS: Final = (
    CPU_PINNING_REQUESTS,
    CPU_PINNING_ERRORS,
    MEMORY_PINNING_REQUESTS,
    MEMORY_PINNING_ERRORS,
    TOPOLOGY_ADMISSION_REQUESTS,
    TOPOLOGY_ADMISSION_ERRORS,
    ALIGNED_COUNT,
    ALIGNED_FAILURE_COUNT,
    ALLOCATIONS,
    ALLOCATION_ERRORS,
    CONTAINER_ASSIGNMENTS,
    BOUNDED_CHOICES,
)
