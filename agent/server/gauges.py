"""Gauges: what the state is at the moment of a scrape.

In goes a reading of the state (`GaugeInput`), out come samples, and the families of the Prometheus
library. A gauge is computed from the ledger at every scrape, so that it cannot differ from it; what
costs more is made by `agent.server.allocation_samples`.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily

from agent.devices.plugin_limits import CONNECTED
from agent.isolation.resctrl import OCCUPANCY
from agent.managers.allocation import Isolation
from agent.managers.capacity import free_cpus
from agent.managers.metrics import Sample
from agent.managers.node_fit import PODS
from agent.managers.violations import Rule
from agent.server import metrics as names
from agent.server.conditions import ConditionType
from agent.state.checkpoint import policy_summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.isolation.report import LateInterrupt
    from agent.isolation.resctrl import CacheCount
    from agent.managers.ledger import Ledger
    from agent.managers.policy import Policy
    from agent.managers.rules import EffectivePolicy
    from agent.server.allocation_samples import Intrusions


class GaugeInput(Struct, frozen=True):
    """The state of one moment."""

    #: That of the agent.
    version: str
    rules: EffectivePolicy
    ledger: Ledger
    #: The Unix time of the start.
    started: float = 0.0
    #: How many pods are not fully enforced.
    unenforced_pods: int = 0
    #: How many containers were not found, by reason.
    not_found: Mapping[str, int] = MappingProxyType({})
    #: The cgroups that may use exclusive CPUs of a pod they do not belong to, by that pod's uid.
    intrusions: Intrusions = MappingProxyType({})
    #: The interrupts that still come to exclusive CPUs.
    late: tuple[LateInterrupt, ...] = ()
    #: Whether pods can be admitted.
    ready: bool = False
    #: How many conditions `numawarden status` lists, by type.
    conditions: Mapping[str, int] = MappingProxyType({})
    #: How many cgroups another process modifies again after each repair.
    contested: int = 0
    #: How many host-wide settings differ from how the agent found them, by item.
    isolation_settings: Mapping[str, int] = MappingProxyType({})
    cache_counts: tuple[CacheCount, ...] = ()
    #: How many entries the sources of pods have, by state.
    manifests: Mapping[str, int] = MappingProxyType({})
    #: How many allocations the current policy would not make, by rule.
    invalid: Mapping[str, int] = MappingProxyType({})
    #: Unix times, None before the first.
    last_reconcile: float | None = None
    last_publication: float | None = None
    #: In seconds.
    reconcile_period: float = 0.0
    #: How many threads may run on exclusive CPUs of others, by kind; None before the first search.
    intruding: Mapping[str, int] | None = None
    #: The most containers that are exported one by one.
    containers: int = 0
    #: Whether the plugin of each resource of device plugins is connected.
    plugins: Mapping[str, bool] = MappingProxyType({})

    @property
    def offered(self) -> tuple[str, ...]:
        """The resources that pods can ask for and that the node can have too little of."""
        limits = self.rules.allocatable
        return () if limits is None else (*limits.amounts, PODS)


def samples(reading: GaugeInput) -> Iterator[Sample]:
    """Yield the samples of all gauges but those of `AllocationSamples`."""
    yield Sample(names.BUILD_INFO, (reading.version,), 1)
    yield Sample(names.STARTED, (), reading.started)
    yield Sample(names.POLICY_INFO, _policy(reading.rules.policy), 1)
    yield from _inventory(reading)
    for manager in reading.rules.managers:
        yield from manager.samples(reading.rules, reading.ledger)
    yield from _requests(reading)
    yield from _free(reading)
    yield from _service(reading)


def families(reading: GaugeInput, more: Iterable[Sample] = ()) -> Iterator[GaugeMetricFamily]:
    """Yield all gauges as families of the Prometheus library, also those without a sample.

    `more` are samples that were made elsewhere (`AllocationSamples`).
    """
    by_name = {
        metric.name: GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for metric in names.gauges_of(reading.rules.managers)
    }
    for metric, labels, value in chain(samples(reading), more):
        by_name[metric.name].add_metric(labels, value)
    yield from by_name.values()


def _policy(policy: Policy) -> tuple[str, ...]:
    summary = policy_summary(policy)

    def options_on(section: str) -> str:
        prefix = f"{section}."
        options = (key.removeprefix(prefix) for key in summary if key.startswith(prefix))
        return ",".join(option for option in options if summary[prefix + option] == "true")

    return (
        summary["cpuManagerPolicy"],
        options_on("cpuManagerPolicyOptions"),
        summary["memoryManagerPolicy"],
        summary["topologyManagerPolicy"],
        options_on("topologyManagerPolicyOptions"),
        summary["topologyManagerScope"],
        str(policy.pod_level_managers).lower(),
    )


def _inventory(reading: GaugeInput) -> Iterator[Sample]:
    allocations = reading.ledger.allocations.values()
    yield Sample(names.PODS, (), len(allocations))
    isolation = Counter(container.isolation for pod in allocations for container in pod.containers)
    for level in Isolation:
        yield Sample(names.CONTAINERS, (str(level),), isolation[level])


def _requests(reading: GaugeInput) -> Iterator[Sample]:
    limits, requested = reading.rules.allocatable, reading.ledger.requests
    offered = {} if limits is None else {**limits.amounts, PODS: limits.pods}
    for resource, amount in offered.items():
        yield Sample(names.ALLOCATABLE, (resource,), amount)
    for resource in sorted({*offered, *requested} - {PODS}):
        yield Sample(names.REQUESTED, (resource,), requested.get(resource, 0))
    yield Sample(names.REQUESTED, (PODS,), len(reading.ledger.allocations))


def _free(reading: GaugeInput) -> Iterator[Sample]:
    free = free_cpus(reading.rules, reading.ledger)
    yield Sample(names.FREE_CPUS, ("all",), free.free)
    yield Sample(names.FREE_CPUS, ("whole_cores",), free.whole_cores)
    yield Sample(names.FREE_CPUS, ("on_one_node",), free.on_one_node)
    yield Sample(names.CPU_FRAGMENTATION, (), free.fragmentation)


def _caches(reading: GaugeInput) -> Iterator[Sample]:
    allocations = reading.ledger.allocations
    for count in reading.cache_counts:
        pod = allocations.get(count.uid)
        if count.uid and pod is None:
            continue  # the pod ended since the kernel was asked
        owner = ("", "") if pod is None else (pod.namespace, pod.name)
        labels = (count.name, *owner, str(count.cache))
        if count.value is None:
            yield Sample(names.CACHE_UNCOUNTED, (*labels, count.event, count.reason), 1)
        elif count.event == OCCUPANCY:
            yield Sample(names.CACHE_OCCUPANCY, labels, count.value)
        else:
            scope = count.event.removeprefix("mbm_").removesuffix("_bytes")
            yield Sample(names.MEMORY_TRAFFIC, (*labels, scope), count.value)


def _service(reading: GaugeInput) -> Iterator[Sample]:
    yield Sample(names.UNENFORCED_PODS, (), reading.unenforced_pods)
    for absence, count in reading.not_found.items():
        yield Sample(names.CONTAINERS_NOT_FOUND, (absence.replace(" ", "_"),), count)
    for condition in map(str, ConditionType):
        yield Sample(names.CONDITIONS, (condition,), reading.conditions.get(condition, 0))
    yield Sample(names.READY, (), int(reading.ready))
    yield Sample(names.CONTESTED_CGROUPS, (), reading.contested)
    for item, settings in reading.isolation_settings.items():
        yield Sample(names.ISOLATION_SETTINGS, (item,), settings)
    yield from _caches(reading)
    of_managers = (rule for manager in reading.rules.managers for rule in manager.rule_names)
    for rule in map(str, (*Rule, *of_managers)):
        yield Sample(names.INVALID_ALLOCATIONS, (rule,), reading.invalid.get(rule, 0))
    for state, count in reading.manifests.items():
        yield Sample(names.MANIFESTS, (state,), count)
    for resource, connected in reading.plugins.items():
        yield Sample(CONNECTED, (resource,), int(connected))
    yield Sample(names.LAST_RECONCILE, (), reading.last_reconcile or 0)
    yield Sample(names.RECONCILE_PERIOD, (), reading.reconcile_period)
    yield Sample(names.LAST_PUBLICATION, (), reading.last_publication or 0)
    for kind, threads in (reading.intruding or {}).items():
        yield Sample(names.INTRUDING_TASKS, (kind,), threads)
