"""Gauges, computed from the ledger at every scrape so that they cannot differ from it."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily

from agent.managers.allocations.demand import NOT_GUARANTEED
from agent.managers.allocations.ledger import Isolation
from agent.managers.allocations.unused_budget import unused_budget
from agent.managers.decision import ASSIGNMENT_TYPES, RESOURCES, MetricSpec
from agent.managers.node_fit import PODS
from agent.managers.validity import Rule
from agent.pods.model import CPU, MEMORY
from agent.server.metrics import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.allocations.ledger import ContainerAllocation, Ledger, PodAllocation
    from agent.managers.effective_policy import EffectivePolicy
    from sysfs.host import Host, Node
    from sysfs.mask import Mask


class GaugeInput(Struct, frozen=True):
    """The state of one moment.

    `manifests` counts files by state, `invalid` what `agent.managers.validity` finds by rule;
    `last_reconcile` is Unix time, None before the first.
    """

    version: str
    host: Host
    rules: EffectivePolicy
    ledger: Ledger
    shared_pool: Mask
    started: float = 0.0
    unenforced_pods: int = 0
    problems: int = 0
    contested: int = 0
    manifests: Mapping[str, int] = MappingProxyType({})
    invalid: Mapping[str, int] = MappingProxyType({})
    last_reconcile: float | None = None


class Sample(NamedTuple):
    """One value of a gauge with its label values, in the order of the metric's labels."""

    metric: MetricSpec
    labels: tuple[str, ...]
    value: float


def samples(reading: GaugeInput) -> Iterator[Sample]:
    """Yield every gauge's samples."""
    yield Sample(names.BUILD_INFO, (reading.version,), 1)
    yield Sample(names.STARTED, (), reading.started)
    yield from _kubelet_cpu(reading)
    yield from _inventory(reading)
    for node in reading.host.nodes:
        yield from _node_cpus(node, reading)
        yield from _node_memory(node, reading)
    yield from _unused_budgets(reading)
    yield from _devices(reading)
    yield from _requests(reading)
    yield from _service(reading)


def families(reading: GaugeInput) -> Iterator[GaugeMetricFamily]:
    """Yield every gauge as Prometheus' library wants it; those without samples too."""
    by_name = {
        metric.name: GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for metric in names.GAUGES
    }
    for metric, labels, value in samples(reading):
        by_name[metric.name].add_metric(labels, value)
    yield from by_name.values()


def _kubelet_cpu(reading: GaugeInput) -> Iterator[Sample]:
    exclusive = reading.ledger.exclusive_cpus
    yield Sample(names.SHARED_POOL_MILLICORES, (), len(reading.shared_pool) * 1000)
    yield Sample(names.EXCLUSIVE_CPU_COUNT, (), len(exclusive))
    for node in reading.host.nodes:
        yield Sample(names.ALLOCATION_PER_NUMA, (str(node.id),), len(node.cpus & exclusive))


def _inventory(reading: GaugeInput) -> Iterator[Sample]:
    allocations = reading.ledger.allocations.values()
    yield Sample(names.PODS, (), len(allocations))
    isolation = Counter(container.isolation for pod in allocations for container in pod.containers)
    for level in Isolation:
        yield Sample(names.CONTAINERS, (str(level),), isolation[level])
    yield from _assignments(reading.ledger)
    yield Sample(names.CPUS, ("exclusive",), len(reading.ledger.exclusive_cpus))
    yield Sample(names.CPUS, ("shared",), len(reading.shared_pool))


def _assignments(ledger: Ledger) -> Iterator[Sample]:
    counted = Counter(
        allocated
        for allocation in ledger.allocations.values()
        for container in allocation.containers
        for allocated in (
            (CPU, _cpus_of(allocation, container)),
            (MEMORY, _memory_of(allocation, container)),
        )
    )
    for resource in RESOURCES:
        for kind in (*ASSIGNMENT_TYPES, names.SHARED):
            yield Sample(names.ASSIGNED_CONTAINERS, (resource, kind), counted[resource, kind])


def _cpus_of(allocation: PodAllocation, container: ContainerAllocation) -> str:
    match container.isolation:
        case Isolation.HOST:
            return names.SHARED
        case Isolation.POD:
            return "pod_shared"
        case Isolation.CONTAINER:
            return "node_exclusive" if allocation.cpus is None else "pod_exclusive"


def _memory_of(allocation: PodAllocation, container: ContainerAllocation) -> str:
    """Return the assignment type of a container's memory.

    Within a budget only a Guaranteed container has exclusive memory, as much as its limit. All
    other containers share the rest.
    """
    if not any(block.size for block in container.memory):
        return names.SHARED
    if not allocation.memory:
        return "node_exclusive"
    if container.isolation is Isolation.CONTAINER:
        return "pod_exclusive"
    size = sum(block.size for block in container.memory if block.type == MEMORY)
    own = size == container.limits.get(MEMORY) and container.why != NOT_GUARANTEED
    return "pod_exclusive" if own else "pod_shared"


def _node_cpus(node: Node, reading: GaugeInput) -> Iterator[Sample]:
    allocated = node.cpus & reading.ledger.exclusive_cpus
    reserved = (node.cpus & reading.rules.policy.cpu.reserved) - allocated
    for state, cpus in (("held", allocated), ("reserved", reserved)):
        yield Sample(names.NODE_CPUS, (str(node.id), state), len(cpus))
    yield Sample(names.NODE_CPUS, (str(node.id), "free"), len(node.cpus - allocated - reserved))


def _node_memory(node: Node, reading: GaugeInput) -> Iterator[Sample]:
    facts = reading.rules.memory
    charged = reading.ledger.memory.get(node.id)
    held_by_type: Mapping[str, int] = charged.reserved if charged is not None else {}
    for type_name, total in _usable(facts.total[node.id]):
        if type_name == MEMORY and node.memory_bytes is None:
            continue
        allocated = held_by_type.get(type_name, 0)
        reserved = facts.reserved[node.id].get(type_name, 0)
        labels = (str(node.id), type_name)
        yield Sample(names.NODE_MEMORY, (*labels, "held"), allocated)
        yield Sample(names.NODE_MEMORY, (*labels, "reserved"), reserved)
        yield Sample(names.NODE_MEMORY, (*labels, "free"), max(0, total - allocated - reserved))


def _usable(total: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the bytes by memory type; MemTotal includes the huge page pools, here separate."""
    pools = sum(size for type_name, size in total.items() if type_name != MEMORY)
    for type_name, size in total.items():
        yield type_name, size - pools if type_name == MEMORY else size


def _unused_budgets(reading: GaugeInput) -> Iterator[Sample]:
    unused = Counter[str]()
    for pod in reading.ledger.allocations.values():
        for found in unused_budget(pod):
            unused[found.resource] += found.unused
    yield Sample(names.UNUSED_BUDGET_CPUS, (), unused.pop(CPU, 0))
    for type_name in sorted({MEMORY, *unused}):
        yield Sample(names.UNUSED_BUDGET_MEMORY, (type_name,), unused[type_name])


def _devices(reading: GaugeInput) -> Iterator[Sample]:
    for resource, devices in reading.rules.policy.devices.items():
        allocated = reading.ledger.devices.get(resource, frozenset())
        free = [device for device in devices if device.healthy and device.id not in allocated]
        yield Sample(names.DEVICES, (resource, "held"), len(allocated))
        yield Sample(names.DEVICES, (resource, "free"), len(free))


def _requests(reading: GaugeInput) -> Iterator[Sample]:
    limits, requested = reading.rules.allocatable, reading.ledger.requests
    offered = {} if limits is None else {**limits.amounts, PODS: limits.pods}
    for resource, amount in offered.items():
        yield Sample(names.ALLOCATABLE, (resource,), amount)
    for resource in sorted({*offered, *requested} - {PODS}):
        yield Sample(names.REQUESTED, (resource,), requested.get(resource, 0))
    yield Sample(names.REQUESTED, (PODS,), len(reading.ledger.allocations))


def _service(reading: GaugeInput) -> Iterator[Sample]:
    yield Sample(names.UNENFORCED_PODS, (), reading.unenforced_pods)
    yield Sample(names.PROBLEMS, (), reading.problems)
    yield Sample(names.CONTESTED_CGROUPS, (), reading.contested)
    for rule in Rule:
        yield Sample(names.INVALID_ALLOCATIONS, (str(rule),), reading.invalid.get(str(rule), 0))
    for state, count in reading.manifests.items():
        yield Sample(names.MANIFESTS, (state,), count)
    if reading.last_reconcile is not None:
        yield Sample(names.LAST_RECONCILE, (), reading.last_reconcile)
