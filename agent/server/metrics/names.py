"""The service's metrics: full name, type, labels and meaning; those of managers stand with them.

`agent.managers.decision.Decision.counters` uses `name` and the label values in the order of
`labels`. The `kubelet_` and `resource_manager_` metrics keep the names, types, labels and buckets
of kubelet v1.36 (subsystem `kubelet`; KEP-5526 for `resource_manager_`), so that dashboards carry
over.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

from agent.devices.plugins.metrics import (
    ALLOCATION_DURATION,
    CALLS,
    CONNECTED,
    IGNORED_PREFERENCES,
    METHODS,
    REGISTRATIONS,
    CallResult,
)
from agent.managers.decision import (
    ASSIGNED_CONTAINERS,
    DECISION_COUNTERS,
    MetricSpec,
    MetricType,
    Reason,
    _counter,
    gauge,
    out_of,
)
from agent.reconcile.diff import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.managers.resource_manager import ResourceManager

CAUSES: Final = tuple(str(cause) for cause in Cause)
#: One more reason is added for each other resource at its first rejection.
REASONS: Final = (*map(str, Reason), *map(out_of, ("cpu", "memory", "pods")))


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> MetricSpec:
    return MetricSpec(name, MetricType.HISTOGRAM, text, labels, buckets=buckets)


# --- the kubelet's histogram -------------------------------------------------------------------

TOPOLOGY_ADMISSION_DURATION: Final = _histogram(
    "kubelet_topology_manager_admission_duration_ms",
    "Time to decide one admission that the topology manager was asked to align, in milliseconds.",
    tuple(0.05 * 2**power for power in range(15)),
)

# --- the kubelet's counters of the podresources API ---------------------------------------------

_V1: Final = ("v1",)
POD_RESOURCES_REQUESTS: Final = _counter(
    "kubelet_pod_resources_endpoint_requests_total",
    "Requests to the podresources API, by its version.",
    server_api_version=(*_V1, "v1alpha1"),
)
POD_RESOURCES_LIST: Final = _counter(
    "kubelet_pod_resources_endpoint_requests_list",
    "Requests to List of the podresources API, by its version.",
    server_api_version=_V1,
)
POD_RESOURCES_GET: Final = _counter(
    "kubelet_pod_resources_endpoint_requests_get",
    "Requests to Get of the podresources API, by its version.",
    server_api_version=_V1,
)
POD_RESOURCES_GET_ALLOCATABLE: Final = _counter(
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    "Requests to GetAllocatableResources of the podresources API, by its version.",
    server_api_version=_V1,
)
POD_RESOURCES_GET_ERRORS: Final = _counter(
    "kubelet_pod_resources_endpoint_errors_get",
    "Requests to Get of the podresources API for a pod that does not exist, by its version.",
    server_api_version=_V1,
)

# --- our own: allocations -----------------------------------------------------------------------

BUILD_INFO: Final = gauge("numawarden_build_info", "Always 1; the version runs here.", "version")
STARTED: Final = gauge(
    "numawarden_start_timestamp_seconds", "When the agent was started (Unix time)."
)
PODS: Final = gauge("numawarden_pods", "Pods in the ledger.")
CONTAINERS: Final = gauge(
    "numawarden_containers",
    "Containers in the ledger by isolation of their CPUs (host, pod, container).",
    "isolation",
)
ALLOCATABLE: Final = gauge(
    "numawarden_allocatable",
    "What pods may request of the node: cpu in millicores, memory and hugepages-... in bytes, "
    "pods and devices as numbers.",
    "resource",
)
REQUESTED: Final = gauge(
    "numawarden_requested",
    "What the pods in the ledger request together, in the units of numawarden_allocatable.",
    "resource",
)
FREE_CPUS: Final = gauge(
    "numawarden_free_cpus",
    "CPUs that may still be allocated exclusively: all of them, those in cores that are free as a "
    "whole (whole_cores), and the most that one NUMA node has (on_one_node).",
    "measure",
)
CPU_FRAGMENTATION: Final = gauge(
    "numawarden_cpu_fragmentation_ratio",
    "Share of the free CPUs that one request on one NUMA node cannot get of what would fit a node: "
    "1 - on_one_node / min(all, the most that a node has without pods); 0 on an empty host.",
)
UNENFORCED_PODS: Final = gauge(
    "numawarden_unenforced_pods",
    "Admitted pods whose allocation the kernel does not yet enforce in full.",
)
CONTAINERS_NOT_FOUND: Final = gauge(
    "numawarden_containers_not_found",
    "Containers of admitted pods without processes in a cgroup of their pod for 60 s, by reason: "
    "none of the pod was ever there (not_started), or ended or outside of the pod (not_found).",
    "reason",
)
INVALID_ALLOCATIONS: Final = gauge(
    "numawarden_invalid_allocations",
    "Allocations that the current policy would not make, by violated rule.",
    "rule",
)
CONDITIONS: Final = gauge(
    "numawarden_conditions",
    "Conditions that 'numawarden status' lists at present, by type.",
    "type",
)
READY: Final = gauge("numawarden_ready", "1 if the agent can admit pods (/readyz), else 0.")
CONTESTED_CGROUPS: Final = gauge(
    "numawarden_contested_cgroups",
    "Cgroups that another writer keeps modifying and whose repair is delayed.",
)
MANIFESTS: Final = gauge(
    "numawarden_manifests",
    "Files of the manifest directory, and what other sources of pods ask for, by state.",
    "state",
)
LAST_RECONCILE: Final = gauge(
    "numawarden_reconcile_last_success_timestamp_seconds",
    "When the kernel last agreed with the ledger after a comparison (Unix time); 0 before.",
)
RECONCILE_PERIOD: Final = gauge(
    "numawarden_reconcile_period_seconds",
    "Longest time between two comparisons of the kernel with the ledger, as configured.",
)
LAST_PUBLICATION: Final = gauge(
    "numawarden_node_topology_last_success_timestamp_seconds",
    "When the NodeResourceTopology was last published (Unix time); 0 before, and where it is not.",
)
POLICY_INFO: Final = gauge(
    "numawarden_policy_info",
    "Always 1; the effective policies, the options that are on, the scope, and whether budgets of "
    "pods are managed.",
    "cpu_manager_policy",
    "cpu_manager_policy_options",
    "memory_manager_policy",
    "topology_manager_policy",
    "topology_manager_policy_options",
    "topology_manager_scope",
    "pod_level_resource_managers",
)
VERDICTS: Final = gauge(
    "numawarden_container_verdicts",
    "Containers to which a quality applies (exclusive, aligned, whole-cores, near-device), by "
    "whether their allocation has it.",
    "quality",
    "met",
)
SHARED_CORES: Final = gauge(
    "numawarden_shared_cores",
    "Physical cores whose threads have different users, one of them a pod or container.",
)
INTRUDING_TASKS: Final = gauge(
    "numawarden_intruding_tasks",
    "Threads that may run on exclusive CPUs of a pod they do not belong to: confined to some CPUs, "
    "unconfined, or of the kernel.",
    "kind",
)
CONTAINER_INFO: Final = gauge(
    "numawarden_container_info",
    "Always 1; the CPUs and memory nodes of a container, empty where they are not its own or its "
    "pod's (agent.metrics.containers).",
    "namespace",
    "pod",
    "uid",
    "container",
    "isolation",
    "cpus",
    "memory_nodes",
)
CONTAINER_CPUS: Final = gauge(
    "numawarden_container_exclusive_cpus",
    "Exclusive CPUs of a container on a NUMA node (agent.metrics.containers).",
    "namespace",
    "pod",
    "uid",
    "container",
    "numa_node",
)
CONTAINERS_OMITTED: Final = gauge(
    "numawarden_containers_omitted",
    "Containers beyond agent.metrics.containers, which are not exported one by one.",
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
HISTORY_LOST: Final = _counter(
    "numawarden_history_lost_total",
    "Entries missing in the history, by reason: too many waited (queue), not written (disk), too "
    "large (size), cut off by a crash (torn).",
    reason=("disk", "queue", "size", "torn"),
)

#: What becomes of a request to the API server (`agent.kubernetes.api_server.Outcome`, which is
#: imported only where something is published).
_API_RESULTS: Final = (
    "done",
    "credentials",
    "forbidden",
    "not_found",
    "not_served",
    "conflict",
    "rejected",
    "tls",
    "timeout",
    "unavailable",
)
TOPOLOGY_PUBLICATIONS: Final = _counter(
    "numawarden_node_topology_publications_total",
    "Attempts to publish the NodeResourceTopology, by outcome (agent.kubernetes.publishTopology).",
    result=_API_RESULTS,
)
#: The requests of a runtime that are subscribed to (`agent.runtimes.nri.messages`).
_RUNTIME_METHODS: Final = (
    "Synchronize",
    "RunPodSandbox",
    "UpdatePodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "CreateContainer",
    "PostStartContainer",
    "UpdateContainer",
    "StopContainer",
    "RemoveContainer",
)
RUNTIME_REQUESTS: Final = _counter(
    "numawarden_runtime_requests_total",
    "Requests of the container runtime (NRI), by method and result; late and failed ones were "
    "answered as if the agent had nothing to say.",
    method=_RUNTIME_METHODS,
    result=("answered", "rejected", "late", "failed"),
)
CONTAINERS_NOT_READY: Final = _counter(
    "numawarden_containers_not_ready_total",
    "CreateContainer requests that came before the pod was decided (undecided), before its CPUs "
    "had left the shared pool (still_shared), or while a pod that may have ended had an allocation "
    "(ending): the kubelet was to try again (rejected), or the container started in the shared "
    "pool (shared).",
    reason=("undecided", "still_shared", "ending"),
    result=("rejected", "shared"),
)
OPT_IN_ANSWERS: Final = _counter(
    "numawarden_opt_in_answers_total",
    "Answers to the kubelet about pods that opted in (agent.kubelet.exclusiveResource), by result; "
    "undecided pods pass, and are decided when their containers are created.",
    result=("admitted", "rejected", "undecided"),
)
POD_EVENTS: Final = _counter(
    "numawarden_pod_events_total",
    "Requests to write an Event on a pod of the cluster, by outcome (agent.kubernetes.events).",
    result=_API_RESULTS,
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

RUNTIME_REQUEST_DURATION: Final = _histogram(
    "numawarden_runtime_request_duration_seconds",
    "Time from a request of the container runtime (NRI) to its answer, by method; the container of "
    "a CreateContainer waits for that, and the runtime asks for no other meanwhile.",
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
    "method",
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
    HISTORY_LOST,
    TOPOLOGY_PUBLICATIONS,
    POD_EVENTS,
    RUNTIME_REQUESTS,
    CONTAINERS_NOT_READY,
    OPT_IN_ANSWERS,
    POD_RESOURCES_REQUESTS,
    POD_RESOURCES_LIST,
    POD_RESOURCES_GET,
    POD_RESOURCES_GET_ALLOCATABLE,
    POD_RESOURCES_GET_ERRORS,
)
#: The counters of device plugins; their labels are resources, known once a plugin registered.
PLUGIN_COUNTERS: Final = (REGISTRATIONS, CALLS, IGNORED_PREFERENCES)
HISTOGRAMS: Final = (
    TOPOLOGY_ADMISSION_DURATION,
    RUNTIME_REQUEST_DURATION,
    ADMISSION_DURATION,
    RECONCILE_DURATION,
    ALLOCATION_DURATION,
)
GAUGES: Final = (
    BUILD_INFO,
    STARTED,
    PODS,
    CONTAINERS,
    ASSIGNED_CONTAINERS,
    ALLOCATABLE,
    FREE_CPUS,
    CPU_FRAGMENTATION,
    REQUESTED,
    UNENFORCED_PODS,
    CONTAINERS_NOT_FOUND,
    INVALID_ALLOCATIONS,
    CONDITIONS,
    READY,
    CONTESTED_CGROUPS,
    MANIFESTS,
    LAST_RECONCILE,
    RECONCILE_PERIOD,
    LAST_PUBLICATION,
    POLICY_INFO,
    VERDICTS,
    SHARED_CORES,
    INTRUDING_TASKS,
    CONTAINER_INFO,
    CONTAINER_CPUS,
    CONTAINERS_OMITTED,
    CONNECTED,
)


def expected(
    offered: Iterable[str], plugins: Iterable[str]
) -> Iterator[tuple[MetricSpec, tuple[str, ...]]]:
    """Yield the counters' label values that become known with a resource, each with its metric.

    `offered` are the resources that pods can ask for, `plugins` those of device plugins.
    """
    for resource in offered:
        yield REJECTIONS, (out_of(resource),)
    for resource in plugins:
        yield REGISTRATIONS, (resource,)
        yield IGNORED_PREFERENCES, (resource,)
        for method, result in product(METHODS, CallResult):
            yield CALLS, (resource, method, str(result))


def counters_of(managers: Iterable[ResourceManager]) -> tuple[MetricSpec, ...]:
    """Return all counters: of decisions, the service, device plugins and these managers."""
    own = (metric for manager in managers for metric in manager.counters)
    return (*DECISION_COUNTERS, *SERVICE_COUNTERS, *PLUGIN_COUNTERS, *own)


def gauges_of(managers: Iterable[ResourceManager]) -> tuple[MetricSpec, ...]:
    """Return all gauges: those of every manager and of the service, and of these managers."""
    return (*GAUGES, *(metric for manager in managers for metric in manager.gauges))


def all_of(managers: Sequence[ResourceManager]) -> tuple[MetricSpec, ...]:
    """Return all metrics of an agent with these resource managers."""
    return (*counters_of(managers), *HISTOGRAMS, *gauges_of(managers))
