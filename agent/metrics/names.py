"""Every metric: its full name, type, labels and meaning. The single source of names.

`agent.decision.Decision.counters` uses `name` and the label values in the order of `labels`.
The `kubelet_` and `resource_manager_` metrics keep the names, types, labels and buckets of kubelet
v1.36 (subsystem `kubelet`; KEP-5526 for `resource_manager_`), so that dashboards carry over.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.decision import Reason, out_of
from cgroupfs.diagnose import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator


class MetricType(StrEnum):
    """The metric types of the Prometheus exposition format that are used here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(Struct, frozen=True):
    """One metric family.

    `name` is the full name in the exposition. `domain` holds, label by label, the values that are
    exported as 0 before anything happened (empty: unknown beforehand), so that a rate over the
    first increment is seen. `buckets` are the upper bounds of a histogram, in the metric's unit.
    """

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    domain: tuple[tuple[str, ...], ...] = ()
    buckets: tuple[float, ...] = ()

    def initial(self) -> Iterator[tuple[str, ...]]:
        """Yield the label values that exist from the start (one empty tuple without labels)."""
        if len(self.domain) == len(self.labels):
            yield from product(*self.domain)


SCOPES: Final = ("container", "pod")
BOUNDARIES: Final = ("numa_node", "physical_cpu", "uncore_cache")
RESOURCES: Final = ("cpu", "memory")
SOURCES: Final = ("node", "pod")
ASSIGNMENT_TYPES: Final = ("node_exclusive", "pod_exclusive", "pod_shared")
CAUSES: Final = tuple(str(cause) for cause in Cause)
#: There is one more for every other resource that a host may lack, as soon as it is lacking.
REASONS: Final = (*map(str, Reason), *map(out_of, ("cpu", "memory", "pods")))
#: What a container without anything of those runs on: the node's pool.
SHARED: Final = "shared"


def _counter(name: str, text: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(name, MetricType.COUNTER, text, tuple(labels), tuple(labels.values()))


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricType.GAUGE, text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, MetricType.HISTOGRAM, text, buckets=buckets)


# --- the kubelet's counters: incremented by decisions -------------------------------------------

CPU_PINNING_REQUESTS: Final = _counter(
    "kubelet_cpu_manager_pinning_requests_total",
    "Containers and pods that the CPU manager was asked to pin.",
)
CPU_PINNING_ERRORS: Final = _counter(
    "kubelet_cpu_manager_pinning_errors_total",
    "Requests for pinned CPUs that the CPU manager could not serve.",
)
MEMORY_PINNING_REQUESTS: Final = _counter(
    "kubelet_memory_manager_pinning_requests_total",
    "Containers and pods that the memory manager was asked to pin.",
)
MEMORY_PINNING_ERRORS: Final = _counter(
    "kubelet_memory_manager_pinning_errors_total",
    "Requests for pinned memory that the memory manager could not serve.",
)
TOPOLOGY_ADMISSION_REQUESTS: Final = _counter(
    "kubelet_topology_manager_admission_requests_total",
    "Admissions that the topology manager was asked to align.",
)
TOPOLOGY_ADMISSION_ERRORS: Final = _counter(
    "kubelet_topology_manager_admission_errors_total",
    "Admissions that the topology manager refused.",
)
ALIGNED_COUNT: Final = _counter(
    "kubelet_container_aligned_compute_resources_count",
    "Allocations that ended up aligned to a boundary of the hardware.",
    scope=SCOPES,
    boundary=BOUNDARIES,
)
ALIGNED_FAILURE_COUNT: Final = _counter(
    "kubelet_container_aligned_compute_resources_failure_count",
    "Allocations that should have been aligned to a boundary of the hardware and were not.",
    scope=SCOPES,
    boundary=BOUNDARIES,
)
ALLOCATIONS: Final = _counter(
    "resource_manager_allocations_total",
    "Exclusive allocations, by whether they came from the node's pool or from a pod's budget.",
    resource_name=RESOURCES,
    source=SOURCES,
)
ALLOCATION_ERRORS: Final = _counter(
    "resource_manager_allocation_errors_total",
    "Exclusive allocations that failed, by the pool they were meant to come from.",
    resource_name=RESOURCES,
    source=SOURCES,
)
CONTAINER_ASSIGNMENTS: Final = _counter(
    "resource_manager_container_assignments",
    "Containers given something exclusive, or their pod's pool, since the start (cumulative).",
    resource_name=RESOURCES,
    assignment_type=ASSIGNMENT_TYPES,
)

BOUNDED_CHOICES: Final = _counter(
    "numawarden_bounded_choices_total",
    "Choices among sets of NUMA nodes that ended at their budget of work: valid, maybe not best.",
)

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

# --- the kubelet's histogram and gauges ---------------------------------------------------------

TOPOLOGY_ADMISSION_DURATION: Final = _histogram(
    "kubelet_topology_manager_admission_duration_ms",
    "Time to decide one admission, in milliseconds.",
    tuple(0.05 * 2**power for power in range(15)),
)
SHARED_POOL_MILLICORES: Final = _gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "Size of the node's shared CPU pool, in millicores.",
)
EXCLUSIVE_CPU_COUNT: Final = _gauge(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "CPUs that are allocated exclusively at present.",
)
ALLOCATION_PER_NUMA: Final = _gauge(
    "kubelet_cpu_manager_allocation_per_numa",
    "CPUs that are allocated exclusively at present, by NUMA node.",
    "numa_node",
)

# --- our own: what is held now ------------------------------------------------------------------

BUILD_INFO: Final = _gauge("numawarden_build_info", "Always 1; the version runs here.", "version")
STARTED: Final = _gauge(
    "numawarden_start_timestamp_seconds", "When the agent was started (Unix time)."
)
PODS: Final = _gauge("numawarden_pods", "Pods in the ledger.")
CONTAINERS: Final = _gauge(
    "numawarden_containers",
    "Containers in the ledger, by with whom they share their CPUs (host, pod, container).",
    "isolation",
)
ASSIGNED_CONTAINERS: Final = _gauge(
    "numawarden_container_assignments",
    "Containers in the ledger by what they hold: something exclusive of the node or of their pod's "
    "budget, their pod's pool, or the node's.",
    "resource_name",
    "assignment_type",
)
CPUS: Final = _gauge(
    "numawarden_cpus",
    "Online CPUs by what they are used for: exclusive to a pod, or the node's shared pool.",
    "pool",
)
NODE_CPUS: Final = _gauge(
    "numawarden_node_cpus",
    "Online CPUs of a NUMA node: held by pods, reserved, or free to be given exclusively.",
    "numa_node",
    "state",
)
NODE_MEMORY: Final = _gauge(
    "numawarden_node_memory_bytes",
    "Memory of a NUMA node by type (memory, hugepages-...): held by pods, reserved, or free.",
    "numa_node",
    "type",
    "state",
)
UNUSED_BUDGET_CPUS: Final = _gauge(
    "numawarden_unused_budget_cpus",
    "CPUs of pods' budgets that no container of their pod can use for good.",
)
UNUSED_BUDGET_MEMORY: Final = _gauge(
    "numawarden_unused_budget_memory_bytes",
    "Memory of pods' budgets by type that no container of their pod can use for good.",
    "type",
)
DEVICES: Final = _gauge(
    "numawarden_devices",
    "Healthy devices of a resource: held by pods, or free.",
    "resource",
    "state",
)
ALLOCATABLE: Final = _gauge(
    "numawarden_allocatable",
    "What pods may request of the node: cpu in millicores, memory and hugepages-... in bytes, "
    "pods and devices as numbers.",
    "resource",
)
REQUESTED: Final = _gauge(
    "numawarden_requested",
    "What the pods in the ledger request together, in the units of numawarden_allocatable.",
    "resource",
)
UNENFORCED_PODS: Final = _gauge(
    "numawarden_unenforced_pods",
    "Admitted pods whose grant the kernel does not yet honour in full.",
)
INVALID_GRANTS: Final = _gauge(
    "numawarden_invalid_grants",
    "Findings on held grants that the rules in force would not give, by rule.",
    "rule",
)
PROBLEMS: Final = _gauge(
    "numawarden_problems",
    "Problems that 'numawarden status' lists at present.",
)
CONTESTED_CGROUPS: Final = _gauge(
    "numawarden_contested_cgroups",
    "Cgroups that somebody else rewrites again and again, waiting for their next repair.",
)
MANIFESTS: Final = _gauge(
    "numawarden_manifests",
    "Files of the manifest directory by what became of them.",
    "state",
)
LAST_RECONCILE: Final = _gauge(
    "numawarden_reconcile_last_success_timestamp_seconds",
    "When the kernel was last found or made to agree with the ledger (Unix time).",
)

# --- our own: what happened ---------------------------------------------------------------------

ADMISSIONS: Final = _counter(
    "numawarden_admissions_total",
    "Requests to admit a pod, by outcome; invalid: the manifest is no pod.",
    result=("admitted", "conflict", "failed", "invalid", "refused", "repeated"),
)
REFUSALS: Final = _counter("numawarden_refusals_total", "Pods refused, by reason.", reason=REASONS)
REMOVALS: Final = _counter("numawarden_removals_total", "Pods removed.")
DRIFT_FOUND: Final = _counter(
    "numawarden_drift_found_total",
    "Settings in the kernel that differed from the ledger, by cause.",
    cause=CAUSES,
)
DRIFT_REPAIRED: Final = _counter(
    "numawarden_drift_repaired_total",
    "Differing settings that were put right, by cause.",
    cause=CAUSES,
)
REPAIRS_POSTPONED: Final = _counter(
    "numawarden_repairs_postponed_total",
    "Pauses before the next repair of a cgroup that somebody else rewrites again and again.",
)
RECONCILES: Final = _counter(
    "numawarden_reconciles_total",
    "Comparisons of the kernel with the ledger, by outcome.",
    result=("clean", "repaired", "failed"),
)
ENFORCEMENT_FAILURES: Final = _counter(
    "numawarden_enforcement_failures_total",
    "Changes that the kernel or systemd refused.",
)
CHECKPOINT_FAILURES: Final = _counter(
    "numawarden_checkpoint_failures_total",
    "Saves of the checkpoint that failed; what asked for them was refused.",
)
HOST_CHANGES: Final = _counter(
    "numawarden_host_changes_total",
    "Changes of the hardware that were noticed and taken over.",
)
EVENTS_DROPPED: Final = _counter(
    "numawarden_watch_events_dropped_total",
    "Events not delivered because a watcher read too slowly.",
)

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

ADMISSION_DURATION: Final = _histogram(
    "numawarden_admission_duration_seconds",
    "Time from a request to its answer: decided, saved, enforced and verified.",
    _SECONDS,
)
RECONCILE_DURATION: Final = _histogram(
    "numawarden_reconcile_duration_seconds",
    "Time to compare the kernel with the ledger and to repair what differs.",
    _SECONDS,
)

#: The counters that the service increments.
SERVICE_COUNTERS: Final = (
    ADMISSIONS,
    REFUSALS,
    REMOVALS,
    DRIFT_FOUND,
    DRIFT_REPAIRED,
    REPAIRS_POSTPONED,
    RECONCILES,
    ENFORCEMENT_FAILURES,
    CHECKPOINT_FAILURES,
    HOST_CHANGES,
    EVENTS_DROPPED,
)
HISTOGRAMS: Final = (TOPOLOGY_ADMISSION_DURATION, ADMISSION_DURATION, RECONCILE_DURATION)
GAUGES: Final = (
    SHARED_POOL_MILLICORES,
    EXCLUSIVE_CPU_COUNT,
    ALLOCATION_PER_NUMA,
    BUILD_INFO,
    STARTED,
    PODS,
    CONTAINERS,
    ASSIGNED_CONTAINERS,
    CPUS,
    NODE_CPUS,
    NODE_MEMORY,
    UNUSED_BUDGET_CPUS,
    UNUSED_BUDGET_MEMORY,
    DEVICES,
    ALLOCATABLE,
    REQUESTED,
    UNENFORCED_PODS,
    INVALID_GRANTS,
    PROBLEMS,
    CONTESTED_CGROUPS,
    MANIFESTS,
    LAST_RECONCILE,
)
ALL: Final = (*DECISION_COUNTERS, *SERVICE_COUNTERS, *HISTOGRAMS, *GAUGES)
