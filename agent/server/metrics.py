"""The table of the service's metrics: full name, type, labels, meaning, and buckets.

Nothing is counted here (`agent.server.counters`). The metrics of a resource manager stand with the
manager, those of decisions in `agent.managers.metrics`, those of device plugins in
`agent.devices.plugin_limits`; `all_of` returns all of them. The `kubelet_` and `resource_manager_`
metrics keep the names, types, labels and buckets of the kubelet (subsystem `kubelet`; KEP-5526 for
`resource_manager_`), so that dashboards carry over. `docs/metrics.md` is the reference.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

from agent.devices.plugin_limits import (
    ALLOCATION_DURATION,
    CALLS,
    CONNECTED,
    IGNORED_PREFERENCES,
    METHODS,
    REGISTRATIONS,
    CallResult,
)
from agent.managers.decision import Reason, out_of
from agent.managers.metrics import (
    ASSIGNED_CONTAINERS,
    DECISION_COUNTERS,
    MetricSpec,
    MetricType,
    counter,
    gauge,
)
from agent.reconcile.diff import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.managers.resource_manager import ResourceManager


CAUSES: Final = tuple(str(cause) for cause in Cause)
#: The reasons of resizes, which are not those of rejected pods.
_OF_RESIZES: Final = (Reason.INFEASIBLE, Reason.DEFERRED)
#: The known reasons; a rejection for lack of another resource adds one (`out_of`).
REASONS: Final = (
    *(str(reason) for reason in Reason if reason not in _OF_RESIZES),
    *map(out_of, ("cpu", "memory", "pods")),
)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> MetricSpec:
    return MetricSpec(name, MetricType.HISTOGRAM, text, labels, buckets=buckets)


TOPOLOGY_ADMISSION_DURATION: Final = _histogram(
    "kubelet_topology_manager_admission_duration_ms",
    "Time to decide one admission of the topology manager, in milliseconds.",
    tuple(0.05 * 2**power for power in range(15)),
)

_V1: Final = ("v1",)
POD_RESOURCES_REQUESTS: Final = counter(
    "kubelet_pod_resources_endpoint_requests_total",
    "Requests.",
    server_api_version=(*_V1, "v1alpha1"),
)
POD_RESOURCES_LIST: Final = counter(
    "kubelet_pod_resources_endpoint_requests_list",
    "Requests to List.",
    server_api_version=_V1,
)
POD_RESOURCES_GET: Final = counter(
    "kubelet_pod_resources_endpoint_requests_get",
    "Requests to Get.",
    server_api_version=_V1,
)
POD_RESOURCES_GET_ALLOCATABLE: Final = counter(
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    "Requests to GetAllocatableResources.",
    server_api_version=_V1,
)
POD_RESOURCES_GET_ERRORS: Final = counter(
    "kubelet_pod_resources_endpoint_errors_get",
    "Requests to Get for a pod that does not exist.",
    server_api_version=_V1,
)

BUILD_INFO: Final = gauge(
    "numawarden_build_info", "Always 1; labelled with the agent's version.", "version"
)
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
    "What pods may request of the node: cpu in millicores, memory and hugepages-... in bytes.",
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
    "1 - on_one_node / min(all, the most that a node has without pods) of numawarden_free_cpus; "
    "0 on an empty host.",
)
UNENFORCED_PODS: Final = gauge(
    "numawarden_unenforced_pods",
    "Admitted pods whose allocation the kernel does not yet enforce in full.",
)
CONTAINERS_NOT_FOUND: Final = gauge(
    "numawarden_containers_not_found",
    "Containers of admitted pods that have had no process in the pod's cgroup for 60 s: no "
    "container of the pod has started (not_started), or some did (not_found).",
    "reason",
)
INVALID_ALLOCATIONS: Final = gauge(
    "numawarden_invalid_allocations",
    "Allocations that the current policy would not make.",
    "rule",
)
CONDITIONS: Final = gauge(
    "numawarden_conditions",
    "Conditions that 'numawarden status' lists at present.",
    "type",
)
READY: Final = gauge("numawarden_ready", "1 if the agent can admit pods (/readyz), else 0.")
ISOLATION_SETTINGS: Final = gauge(
    "numawarden_isolation_settings",
    "Host-wide settings (agent.isolation) that differ from how the agent found them.",
    "item",
)
_OF_CACHE: Final = ("class", "namespace", "pod", "cache_id")
CACHE_OCCUPANCY: Final = gauge(
    "numawarden_cache_occupancy_bytes",
    "Bytes of an L3 cache that are in use by a class of agent.isolation.resctrl, or by one pod.",
    *_OF_CACHE,
)
MEMORY_TRAFFIC: Final = gauge(
    "numawarden_memory_traffic_bytes",
    "Bytes that a class or pod has moved between an L3 cache and memory: of the cache's own node "
    "(local), or of all nodes (total). The value only rises.",
    *_OF_CACHE,
    "scope",
)
CACHE_UNCOUNTED: Final = gauge(
    "numawarden_cache_uncounted",
    "Always 1; an event of a class or pod that the hardware does not count: no counter is "
    "assigned (unassigned), there is no count now (unavailable), or an error.",
    *_OF_CACHE,
    "event",
    "reason",
)
CONTESTED_CGROUPS: Final = gauge(
    "numawarden_contested_cgroups",
    "Cgroups of which another writer keeps modifying files, so that repairs do not last.",
)
MANIFESTS: Final = gauge(
    "numawarden_manifests",
    "Files of the manifest directory, and what other sources of pods ask for.",
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
    "Always 1; the effective policies, options and scope, and whether budgets of pods are managed.",
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
    "Containers to which a quality applies, by whether their allocation has it.",
    "quality",
    "met",
)
SLOW_PODS: Final = gauge(
    "numawarden_slow_pods",
    "Pods that are slow, by cause; of the causes only those that need no reading of cgroups. "
    "'numawarden show POD' has all.",
    "cause",
)
SHARED_CORES: Final = gauge(
    "numawarden_shared_cores",
    "Physical cores whose threads have different users, one of them a pod or container.",
)
INTRUDING_TASKS: Final = gauge(
    "numawarden_intruding_tasks",
    "Threads that may run on exclusive CPUs of a pod they do not belong to: confined, "
    "unconfined, or of the kernel.",
    "kind",
)
CONTAINER_INFO: Final = gauge(
    "numawarden_container_info",
    "Always 1; the CPUs and memory nodes of a container. A label is empty where the container "
    "shares those of the node.",
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
    "Exclusive CPUs of a container on a NUMA node.",
    "namespace",
    "pod",
    "uid",
    "container",
    "numa_node",
)
CONTAINERS_OMITTED: Final = gauge(
    "numawarden_containers_omitted",
    "Containers beyond agent.metrics.containers.",
)

ADMISSIONS: Final = counter(
    "numawarden_admissions_total",
    "Requests to admit a pod; invalid: the manifest is not a valid pod.",
    result=("admitted", "conflict", "failed", "invalid", "rejected", "repeated"),
)
REJECTIONS: Final = counter("numawarden_rejections_total", "Pods rejected.", reason=REASONS)
RESIZES: Final = counter(
    "numawarden_resizes_total",
    "Requests to give a running pod other amounts of cpu or memory.",
    result=("rejected", "resized"),
)
MOVES: Final = counter(
    "numawarden_moves_total",
    "Running pods that were to have other CPUs or memory nodes.",
    result=("moved", "rejected"),
)
REMOVALS: Final = counter("numawarden_removals_total", "Pods removed.")
DRIFT_FOUND: Final = counter(
    "numawarden_drift_found_total",
    "Settings in the kernel that differed from the ledger.",
    cause=CAUSES,
)
DRIFT_REPAIRED: Final = counter(
    "numawarden_drift_repaired_total",
    "Differing settings that were repaired.",
    cause=CAUSES,
)
REPAIRS_POSTPONED: Final = counter(
    "numawarden_repairs_postponed_total",
    "Delays before the next repair of a cgroup that another writer keeps modifying.",
)
RECONCILES: Final = counter(
    "numawarden_reconciles_total",
    "Comparisons of the kernel with the ledger.",
    result=("clean", "repaired", "failed"),
)
ENFORCEMENT_FAILURES: Final = counter(
    "numawarden_enforcement_failures_total",
    "Changes that the kernel or systemd rejected.",
)
CHECKPOINT_FAILURES: Final = counter(
    "numawarden_checkpoint_failures_total",
    "Saves of the checkpoint that failed; the requested changes were rejected.",
)
HOST_CHANGES: Final = counter(
    "numawarden_host_changes_total",
    "Changes of the hardware that were noticed and applied.",
)
EVENTS_DROPPED: Final = counter(
    "numawarden_watch_events_dropped_total",
    "Events not delivered because a watcher read too slowly.",
)
HISTORY_LOST: Final = counter(
    "numawarden_history_lost_total",
    "Entries missing in the history: docs/history.md has the reasons.",
    reason=("disk", "queue", "size", "torn"),
)

#: The results of a request to the API server (`agent.cluster.kubernetes.request_errors.Outcome`,
#: which is imported only where something is published).
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
TOPOLOGY_PUBLICATIONS: Final = counter(
    "numawarden_node_topology_publications_total",
    "Attempts to publish the NodeResourceTopology (agent.kubernetes.publishTopology).",
    result=_API_RESULTS,
)
#: The requests of a runtime that the agent subscribes to (`agent.cluster.nri.events`).
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
RUNTIME_REQUESTS: Final = counter(
    "numawarden_runtime_requests_total",
    "Requests of the container runtime (NRI).",
    method=_RUNTIME_METHODS,
    result=("answered", "rejected", "late", "failed"),
)
CONTAINERS_NOT_READY: Final = counter(
    "numawarden_containers_not_ready_total",
    "CreateContainer requests that came before the pod was decided (undecided), before the "
    "shared pool was off its CPUs (still_shared), or while a pod that may have ended still had an "
    "allocation (ending). The container was rejected, or runs on shared CPUs (shared).",
    reason=("undecided", "still_shared", "ending"),
    result=("rejected", "shared"),
)
OPT_IN_ANSWERS: Final = counter(
    "numawarden_opt_in_answers_total",
    "Answers to the kubelet about pods that opted in (agent.kubelet.exclusiveResource).",
    result=("admitted", "rejected", "undecided"),
)
POD_EVENTS: Final = counter(
    "numawarden_pod_events_total",
    "Requests to write an Event on a pod of the cluster (agent.kubernetes.events).",
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
    "Time from a request of the container runtime (NRI) to its answer.",
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
    "method",
)

#: The counters that the service increments.
SERVICE_COUNTERS: Final = (
    ADMISSIONS,
    REJECTIONS,
    RESIZES,
    MOVES,
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
#: The counters of device plugins; their labels are resources, known once a plugin has registered.
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
    ISOLATION_SETTINGS,
    CACHE_OCCUPANCY,
    MEMORY_TRAFFIC,
    CACHE_UNCOUNTED,
    MANIFESTS,
    LAST_RECONCILE,
    RECONCILE_PERIOD,
    LAST_PUBLICATION,
    POLICY_INFO,
    VERDICTS,
    SLOW_PODS,
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
    """Yield the samples of counters that are known once a resource is known.

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
    of_managers = (metric for manager in managers for metric in manager.counters)
    return (*DECISION_COUNTERS, *SERVICE_COUNTERS, *PLUGIN_COUNTERS, *of_managers)


def gauges_of(managers: Iterable[ResourceManager]) -> tuple[MetricSpec, ...]:
    """Return all gauges: of the service, and of these managers."""
    return (*GAUGES, *(metric for manager in managers for metric in manager.gauges))


def all_of(managers: Sequence[ResourceManager]) -> tuple[MetricSpec, ...]:
    """Return all metrics of an agent with these resource managers."""
    return (*counters_of(managers), *HISTOGRAMS, *gauges_of(managers))
