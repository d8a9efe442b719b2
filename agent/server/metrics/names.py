"""Every metric: its full name, type, labels and meaning. The single source of names.

`agent.managers.decision.Decision.counters` uses `name` and the label values in the order of
`labels`. The `kubelet_` and `resource_manager_` metrics keep the names, types, labels and buckets
of kubelet v1.36 (subsystem `kubelet`; KEP-5526 for `resource_manager_`), so that dashboards carry
over.
"""

from __future__ import annotations

from typing import Final

from agent.managers.decision import (
    DECISION_COUNTERS,
    MetricSpec,
    MetricType,
    Reason,
    _counter,
    out_of,
)
from agent.reconcile.diff import Cause

CAUSES: Final = tuple(str(cause) for cause in Cause)
#: One more reason is added for each other resource at its first rejection.
REASONS: Final = (*map(str, Reason), *map(out_of, ("cpu", "memory", "pods")))
#: The pool of containers without exclusive or pod-level CPUs: the node's shared pool.
SHARED: Final = "shared"


def _gauge(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, MetricType.GAUGE, text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(name, MetricType.HISTOGRAM, text, buckets=buckets)


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

# --- our own: allocations -----------------------------------------------------------------------

BUILD_INFO: Final = _gauge("numawarden_build_info", "Always 1; the version runs here.", "version")
STARTED: Final = _gauge(
    "numawarden_start_timestamp_seconds", "When the agent was started (Unix time)."
)
PODS: Final = _gauge("numawarden_pods", "Pods in the ledger.")
CONTAINERS: Final = _gauge(
    "numawarden_containers",
    "Containers in the ledger by isolation of their CPUs (host, pod, container).",
    "isolation",
)
ASSIGNED_CONTAINERS: Final = _gauge(
    "numawarden_container_assignments",
    "Containers in the ledger by assignment: exclusive from the node or from the pod's budget, the "
    "pod shared pool, or the node's shared pool.",
    "resource_name",
    "assignment_type",
)
CPUS: Final = _gauge(
    "numawarden_cpus",
    "Online CPUs by use: exclusive to a pod, or the node's shared pool.",
    "pool",
)
NODE_CPUS: Final = _gauge(
    "numawarden_node_cpus",
    "Online CPUs of a NUMA node: allocated to pods (held), reserved, or free.",
    "numa_node",
    "state",
)
NODE_MEMORY: Final = _gauge(
    "numawarden_node_memory_bytes",
    "Memory of a NUMA node by type (memory, hugepages-...): allocated to pods (held), reserved, "
    "or free.",
    "numa_node",
    "type",
    "state",
)
UNUSED_BUDGET_CPUS: Final = _gauge(
    "numawarden_unused_budget_cpus",
    "CPUs of pods' budgets that no container of the pod can use.",
)
UNUSED_BUDGET_MEMORY: Final = _gauge(
    "numawarden_unused_budget_memory_bytes",
    "Memory of pods' budgets by type that no container of the pod can use.",
    "type",
)
DEVICES: Final = _gauge(
    "numawarden_devices",
    "Healthy devices of a resource: allocated to pods (held), or free.",
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
    "Admitted pods whose allocation the kernel does not yet enforce in full.",
)
INVALID_ALLOCATIONS: Final = _gauge(
    "numawarden_invalid_allocations",
    "Allocations that the current policy would not make, by violated rule.",
    "rule",
)
PROBLEMS: Final = _gauge(
    "numawarden_problems",
    "Problems that 'numawarden status' lists at present.",
)
CONTESTED_CGROUPS: Final = _gauge(
    "numawarden_contested_cgroups",
    "Cgroups that another writer keeps modifying and whose repair is delayed.",
)
MANIFESTS: Final = _gauge(
    "numawarden_manifests",
    "Files of the manifest directory, and what other sources of pods ask for, by state.",
    "state",
)
LAST_RECONCILE: Final = _gauge(
    "numawarden_reconcile_last_success_timestamp_seconds",
    "When the kernel last agreed with the ledger after a comparison (Unix time).",
)

# --- our own: what happened ---------------------------------------------------------------------

ADMISSIONS: Final = _counter(
    "numawarden_admissions_total",
    "Requests to admit a pod, by outcome; invalid: the manifest is not a valid pod.",
    result=("admitted", "conflict", "failed", "invalid", "rejected", "repeated"),
)
REJECTIONS: Final = _counter(
    "numawarden_rejections_total", "Pods rejected, by reason.", reason=REASONS
)
REMOVALS: Final = _counter("numawarden_removals_total", "Pods removed.")
DRIFT_FOUND: Final = _counter(
    "numawarden_drift_found_total",
    "Settings in the kernel that differed from the ledger, by cause.",
    cause=CAUSES,
)
DRIFT_REPAIRED: Final = _counter(
    "numawarden_drift_repaired_total",
    "Differing settings that were repaired, by cause.",
    cause=CAUSES,
)
REPAIRS_POSTPONED: Final = _counter(
    "numawarden_repairs_postponed_total",
    "Delays before the next repair of a cgroup that another writer keeps modifying.",
)
RECONCILES: Final = _counter(
    "numawarden_reconciles_total",
    "Comparisons of the kernel with the ledger, by outcome.",
    result=("clean", "repaired", "failed"),
)
ENFORCEMENT_FAILURES: Final = _counter(
    "numawarden_enforcement_failures_total",
    "Changes that the kernel or systemd rejected.",
)
CHECKPOINT_FAILURES: Final = _counter(
    "numawarden_checkpoint_failures_total",
    "Saves of the checkpoint that failed; the requested changes were rejected.",
)
HOST_CHANGES: Final = _counter(
    "numawarden_host_changes_total",
    "Changes of the hardware that were noticed and applied.",
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
    REJECTIONS,
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
    INVALID_ALLOCATIONS,
    PROBLEMS,
    CONTESTED_CGROUPS,
    MANIFESTS,
    LAST_RECONCILE,
)
ALL: Final = (*DECISION_COUNTERS, *SERVICE_COUNTERS, *HISTOGRAMS, *GAUGES)
