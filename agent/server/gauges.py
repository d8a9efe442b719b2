"""All metrics in Prometheus' text format: counters, histograms, and gauges.

Gauges are computed from the ledger at every scrape, so that they cannot differ from it. What single
containers have (`AllocationSamples`) follows from the policy, the ledger and what intrudes, and
costs more than other gauges: it is made when one of these is another, not at every scrape, and a
pod is judged once. With 4,096 CPUs a verdict takes 0.2 ms, which would be a third of a second for
1,500 pods, in which no other request is answered.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from agent.api.map import owners_of
from agent.api.map_warnings import shared_by
from agent.config.agent import METRIC_NAMES
from agent.devices.plugin_limits import ALLOCATION_DURATION, CONNECTED
from agent.isolation.resctrl import OCCUPANCY
from agent.managers.allocation import Isolation
from agent.managers.capacity import free_cpus
from agent.managers.metrics import Sample
from agent.managers.node_fit import PODS
from agent.managers.quality import verdict
from agent.managers.violations import Rule
from agent.pods.model import Quality
from agent.server import metrics as names
from agent.server.conditions import ConditionType
from agent.server.metrics import TOTAL, Counters, Histogram, UnknownCounterError
from agent.state.checkpoint import policy_summary
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from agent.isolation.resctrl import CacheCount
    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.metrics import MetricSpec
    from agent.managers.policy import Policy
    from agent.managers.quality import Intrusion, Judgement
    from agent.managers.resource_manager import ResourceManager
    from agent.managers.rules import EffectivePolicy
    from agent.managers.versions import KubernetesVersion

    #: What may use exclusive CPUs of other pods, by the uid of these pods.
    _Intrusions: TypeAlias = Mapping[str, tuple[Intrusion, ...]]


#: The longest list of CPUs or nodes in a label, in characters. On a host with thousands of CPUs,
#: half of a container's core each, it would be tens of kilobytes in every series.
LONGEST_LIST: Final = 256


class AllocationSamples:
    """Samples of verdicts, shared cores, and containers one by one, kept until these change."""

    def __init__(self) -> None:
        self._of: tuple[EffectivePolicy, Ledger, _Intrusions] | None = None
        self._made: tuple[Sample, ...] = ()
        #: The allocations that were judged under the policy, by uid, each with what intruded.
        self._judged: dict[
            str, tuple[PodAllocation, tuple[Intrusion, ...], tuple[Judgement, ...]]
        ] = {}

    def samples(
        self,
        rules: EffectivePolicy,
        ledger: Ledger,
        containers: int,
        intrusions: _Intrusions = MappingProxyType({}),
    ) -> tuple[Sample, ...]:
        """Return the samples, made again if the policy, the ledger or an intrusion is another one.

        `containers` is how many containers are exported one by one at most, in the order of
        admission.
        """
        of = self._of
        if of is None or of[0] is not rules or of[1] is not ledger or of[2] != intrusions:
            if of is not None and of[0] is not rules:
                self._judged.clear()
            made = chain(
                self._verdicts(rules, ledger, intrusions),
                (Sample(names.SHARED_CORES, (), shared_cores(rules, ledger)),),
                _each(rules, ledger, containers),
            )
            self._of, self._made = (rules, ledger, intrusions), tuple(made)
        return self._made

    def _verdicts(
        self, rules: EffectivePolicy, ledger: Ledger, intrusions: _Intrusions
    ) -> Iterator[Sample]:
        before, self._judged = self._judged, {}
        for uid, allocation in ledger.allocations.items():
            known, intruding = before.get(uid), intrusions.get(uid, ())
            if known is None or known[0] is not allocation or known[1] != intruding:
                known = allocation, intruding, verdict(rules, allocation, intruding)
            self._judged[uid] = known
        counted = Counter(
            (judgement.quality, judgement.met)
            for _, _, judgements in self._judged.values()
            for judgement in judgements
        )
        for quality in Quality:
            for met in (True, False):
                labels = (str(quality), str(met).lower())
                yield Sample(names.VERDICTS, labels, counted[quality, met])


def shared_cores(rules: EffectivePolicy, ledger: Ledger) -> int:
    """Return the number of physical cores whose online threads have different users.

    One user at least is a pod or a container (as on the map). A core of which some threads are
    reserved and the others are in the node's shared pool is not counted.
    """
    owners = owners_of(ledger.allocations.values())
    return sum(
        shared_by(owners.get(cpu, ()) for cpu in Mask(core.cpus))
        for core in rules.machine.cpus.cores
    )


def _each(rules: EffectivePolicy, ledger: Ledger, most: int) -> Iterator[Sample]:
    """Yield the samples of single containers, and how many containers have none."""
    if not most:
        return
    containers = [
        (allocation, container)
        for allocation in ledger.allocations.values()
        for container in allocation.containers
    ]
    for allocation, container in islice(containers, most):
        yield from _one(rules, allocation, container)
    yield Sample(names.CONTAINERS_OMITTED, (), max(len(containers) - most, 0))


def _one(
    rules: EffectivePolicy, allocation: PodAllocation, container: ContainerAllocation
) -> Iterator[Sample]:
    subject = (allocation.namespace, allocation.name, allocation.uid, container.name)
    what = (str(container.isolation), _listed(container.cpus), _listed(container.mems))
    yield Sample(names.CONTAINER_INFO, (*subject, *what), 1)
    if container.isolation is Isolation.CONTAINER and container.cpus:
        for node in rules.machine.cpus.nodes:
            if cpus := node.cpus & container.cpus.bits:
                labels = (*subject, str(node.id))
                yield Sample(names.CONTAINER_CPUS, labels, cpus.bit_count())


def _listed(ids: Mask | None) -> str:
    """Return ids as a list of a bounded length: `0-3,8`, what is cut ends in `...`."""
    text = "" if ids is None else str(ids)
    if len(text) <= LONGEST_LIST:
        return text
    whole = text[: LONGEST_LIST - 3].rpartition(",")[0]
    return f"{whole},..."


class GaugeInput(Struct, frozen=True):
    """The state of one moment.

    `intrusions` is what may use exclusive CPUs of other pods, by the uid of these pods.
    `ready`: pods can be admitted. `conditions` counts those of `numawarden status` by type.
    `reconcile_period` is seconds. `intruding` counts threads by kind, None before they were looked
    for. `containers` is how many containers are exported one by one at most.

    `manifests` counts files by state, `invalid` what `agent.managers.quality` finds by
    rule; `last_reconcile` and `last_publication` are Unix times, None before the first. `plugins`
    says of each resource of device plugins whether its plugin is connected.
    """

    version: str
    rules: EffectivePolicy
    ledger: Ledger
    started: float = 0.0
    unenforced_pods: int = 0
    not_found: Mapping[str, int] = MappingProxyType({})
    intrusions: _Intrusions = MappingProxyType({})
    ready: bool = False
    conditions: Mapping[str, int] = MappingProxyType({})
    contested: int = 0
    isolation_settings: Mapping[str, int] = MappingProxyType({})
    cache_counts: tuple[CacheCount, ...] = ()
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


def _caches(reading: GaugeInput) -> Iterator[Sample]:
    allocations = reading.ledger.allocations
    for each in reading.cache_counts:
        pod = allocations.get(each.uid)
        if each.uid and pod is None:
            continue  # it ended since the kernel was asked
        of = ("", "") if pod is None else (pod.namespace, pod.name)
        labels = (each.name, *of, str(each.cache))
        if each.value is None:
            yield Sample(names.CACHE_UNCOUNTED, (*labels, each.event, each.reason), 1)
        elif each.event == OCCUPANCY:
            yield Sample(names.CACHE_OCCUPANCY, labels, each.value)
        else:
            scope = each.event.removeprefix("mbm_").removesuffix("_bytes")
            yield Sample(names.MEMORY_TRAFFIC, (*labels, scope), each.value)


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


#: The classic text format: OpenMetrics demands `_total` of every counter, the kubelet's lack it.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All metrics; what is counted is counted here, gauges are made of a reading of the state."""

    def __init__(
        self,
        managers: Sequence[ResourceManager],
        versions: Collection[KubernetesVersion] = METRIC_NAMES,
    ) -> None:
        self._allocations = AllocationSamples()
        self.counters = Counters(managers, versions)
        self._true_names = tuple(_true_names(names.counters_of(managers)))
        self.decision_duration = Histogram(names.TOPOLOGY_ADMISSION_DURATION)
        self.admission_duration = Histogram(names.ADMISSION_DURATION)
        self.reconcile_duration = Histogram(names.RECONCILE_DURATION)
        self.plugin_allocation_duration = Histogram(ALLOCATION_DURATION)
        self.runtime_request_duration = Histogram(names.RUNTIME_REQUEST_DURATION)
        self._process = ProcessCollector(registry=None)

    def add(self, metric: MetricSpec, *labels: str) -> None:
        """Increment a counter, for device plugins; raises `UnknownCounterError`."""
        self.counters.add(metric, *labels)

    def observe(self, metric: MetricSpec, seconds: float, *labels: str) -> None:
        """Add an observation of device plugins to their histogram; raises `UnknownCounterError`."""
        if metric is not ALLOCATION_DURATION:
            raise UnknownCounterError(metric.name, labels)
        self.plugin_allocation_duration.observe(seconds, *labels)

    def _families(self, reading: GaugeInput) -> Iterator[Metric]:
        self._expect(reading)
        yield from self.counters.families()
        yield self.decision_duration.family()
        yield self.admission_duration.family()
        yield self.reconcile_duration.family()
        yield self.plugin_allocation_duration.family()
        yield self.runtime_request_duration.family()
        more = self._allocations.samples(
            reading.rules, reading.ledger, reading.containers, reading.intrusions
        )
        yield from families(reading, more)
        yield from self._process.collect()

    def _expect(self, reading: GaugeInput) -> None:
        """Start what is counted by resource at 0, so that a rate shows the first increment."""
        for metric, labels in names.expected(reading.offered, reading.plugins):
            self.counters.expect(metric, labels)
        for resource in reading.plugins:
            self.plugin_allocation_duration.expect(resource)

    def render(self, reading: GaugeInput) -> bytes:
        """Return all metrics in the classic text format."""
        text = generate_latest(_Collected(self._families(reading)))
        for written, true in self._true_names:
            text = text.replace(written, true)
        return text


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _true_names(counters: Iterable[MetricSpec]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the suffix that the library writes into the comments of every counter, and without."""
    for metric in counters:
        if not metric.name.endswith(TOTAL):
            for line in ("HELP", "TYPE"):
                name = f"# {line} {metric.name}"
                yield f"{name}{TOTAL} ".encode(), f"{name} ".encode()
