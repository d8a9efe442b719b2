"""Gauges, computed from the ledger at every scrape so that they cannot differ from it."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily

from agent.devices.plugins.metrics import CONNECTED
from agent.managers.allocations.allocation import Isolation
from agent.managers.assessment.violation import Rule
from agent.managers.decision import Sample
from agent.managers.node_fit import PODS
from agent.managers.trials.capacity import free_cpus
from agent.server.conditions import ConditionType
from agent.server.metrics import names
from agent.state.checkpoint import policy_summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.allocations.ledger import Ledger
    from agent.managers.effective_policy import EffectivePolicy
    from agent.managers.policy import Policy


class GaugeInput(Struct, frozen=True):
    """The state of one moment.

    `ready`: pods can be admitted. `conditions` counts those of `numawarden status` by type.
    `reconcile_period` is seconds. `intruding` counts threads by kind, None before they were looked
    for. `containers` is how many containers are exported one by one at most.

    `manifests` counts files by state, `invalid` what `agent.managers.assessment.validity` finds by
    rule; `last_reconcile` and `last_publication` are Unix times, None before the first. `plugins`
    says of each resource of device plugins whether its plugin is connected.
    """

    version: str
    rules: EffectivePolicy
    ledger: Ledger
    started: float = 0.0
    unenforced_pods: int = 0
    not_found: Mapping[str, int] = MappingProxyType({})
    ready: bool = False
    conditions: Mapping[str, int] = MappingProxyType({})
    contested: int = 0
    manifests: Mapping[str, int] = MappingProxyType({})
    invalid: Mapping[str, int] = MappingProxyType({})
    last_reconcile: float | None = None
    last_publication: float | None = None
    reconcile_period: float = 0.0
    intruding: Mapping[str, int] | None = None
    containers: int = 0
    plugins: Mapping[str, bool] = MappingProxyType({})

    @property
    def offered(self) -> tuple[str, ...]:
        """The resources that pods can ask for and that the node can have too little of."""
        limits = self.rules.allocatable
        return () if limits is None else (*limits.amounts, PODS)


def samples(reading: GaugeInput) -> Iterator[Sample]:
    """Yield every gauge's samples."""
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
    """Yield every gauge as Prometheus' library wants it, those without samples too.

    `more` are samples that were made elsewhere (`agent.server.metrics.allocations`).
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

    def on(section: str) -> str:
        prefix = f"{section}."
        options = (key.removeprefix(prefix) for key in summary if key.startswith(prefix))
        return ",".join(option for option in options if summary[prefix + option] == "true")

    return (
        summary["cpuManagerPolicy"],
        on("cpuManagerPolicyOptions"),
        summary["memoryManagerPolicy"],
        summary["topologyManagerPolicy"],
        on("topologyManagerPolicyOptions"),
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


def _service(reading: GaugeInput) -> Iterator[Sample]:
    yield Sample(names.UNENFORCED_PODS, (), reading.unenforced_pods)
    for absence, count in reading.not_found.items():
        yield Sample(names.CONTAINERS_NOT_FOUND, (absence.replace(" ", "_"),), count)
    for condition in map(str, ConditionType):
        yield Sample(names.CONDITIONS, (condition,), reading.conditions.get(condition, 0))
    yield Sample(names.READY, (), int(reading.ready))
    yield Sample(names.CONTESTED_CGROUPS, (), reading.contested)
    for rule in (
        *Rule,
        *(each for manager in reading.rules.managers for each in manager.rule_names),
    ):
        yield Sample(names.INVALID_ALLOCATIONS, (str(rule),), reading.invalid.get(str(rule), 0))
    for state, count in reading.manifests.items():
        yield Sample(names.MANIFESTS, (state,), count)
    for resource, connected in reading.plugins.items():
        yield Sample(CONNECTED, (resource,), int(connected))
    yield Sample(names.LAST_RECONCILE, (), reading.last_reconcile or 0)
    yield Sample(names.RECONCILE_PERIOD, (), reading.reconcile_period)
    yield Sample(names.LAST_PUBLICATION, (), reading.last_publication or 0)
    for kind, threads in (reading.intruding or {}).items():
        yield Sample(names.INTRUDING_TASKS, (kind,), threads)
