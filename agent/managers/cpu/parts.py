"""The parts of the CPU manager: what pods demand, what drafts and ledgers have, what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocations.allocation import Isolation
from agent.managers.allocations.demand import NOT_GUARANTEED, ResourceDemand
from agent.managers.allocations.from_parts import PodPart
from agent.managers.allocations.unused_budget import unused_budget
from agent.managers.assessment.violation import ADMIT_AGAIN, Rule, Violation
from agent.managers.decision import SHARED, Sample, assignment_samples, gauge
from agent.managers.policy import CpuManagerPolicy
from agent.pods.model import CPU
from agent.pods.quantity import MAX_INT64, ZERO
from agent.pods.requests import exclusive_cpu_requests, pod_exclusive_cpu_requests
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation
    from agent.managers.allocations.demand import PodRequest
    from agent.managers.allocations.ledger import Ledger, Taken
    from agent.managers.draft import Draft
    from agent.managers.host_policy import HostPolicy


SHARED_POOL_MILLICORES: Final = gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "Size of the node's shared CPU pool, in millicores.",
)
EXCLUSIVE_CPU_COUNT: Final = gauge(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "CPUs that are allocated exclusively at present.",
)
ALLOCATION_PER_NUMA: Final = gauge(
    "kubelet_cpu_manager_allocation_per_numa",
    "CPUs that are allocated exclusively at present, by NUMA node.",
    "numa_node",
)
CPUS: Final = gauge(
    "numawarden_cpus",
    "Online CPUs by use: exclusive to a pod, or the node's shared pool.",
    "pool",
)
NODE_CPUS: Final = gauge(
    "numawarden_node_cpus",
    "Online CPUs of a NUMA node: allocated, reserved, cordoned, or free.",
    "numa_node",
    "state",
)
CORDONED_CPUS: Final = gauge(
    "numawarden_cordoned_cpus",
    "Online CPUs that are cordoned: still allocated exclusively to a pod, or idle.",
    "state",
)
UNUSED_BUDGET_CPUS: Final = gauge(
    "numawarden_unused_budget_cpus",
    "CPUs of pods' budgets that no container of the pod can use.",
)
#: The gauges of CPUs.
CPU_GAUGES: Final = (
    SHARED_POOL_MILLICORES,
    EXCLUSIVE_CPU_COUNT,
    ALLOCATION_PER_NUMA,
    CPUS,
    NODE_CPUS,
    CORDONED_CPUS,
    UNUSED_BUDGET_CPUS,
)


class CpuDraft(PodPart):
    """The free CPUs for the pod under admission, and what it has.

    `containers` are masks by name, `pod` the mask of the budget. `reusable` are CPUs of standard
    init containers of this pod, which a later container of the pod may get.
    """

    free: Mask = EMPTY
    reusable: Mask = EMPTY

    @property
    def available(self) -> Mask:
        """All CPUs that the next container of the pod may get."""
        return self.free | self.reusable


def cpus_of(draft: Draft) -> CpuDraft:
    """Return the CPU manager's part of a draft."""
    part: CpuDraft = draft.parts[CPU]
    return part


def cpu_demand(request: PodRequest) -> ResourceDemand:
    """Return the whole CPUs that a pod and its containers request, 0 for what shares CPUs.

    In pod scope, the containers of a pod-level budget that is not a whole number get no exclusive
    CPUs (KEP-5526).
    """
    qos, pod_level = request.qos, request.pod_level
    counts = tuple(
        [exclusive_cpu_requests(each, qos, pod_level=pod_level) for each in request.containers]
    )
    of_pod = pod_exclusive_cpu_requests(request.pod, qos, counts, pod_level=pod_level)
    of_pod = min(of_pod, MAX_INT64)
    active = _why_none(request) is None and not (request.from_budget and not of_pod)
    exclusive = tuple([active and count > 0 for count in counts])
    return ResourceDemand(of_pod, counts, active, exclusive, CpuReasons(request, of_pod, counts))


def _why_none(request: PodRequest) -> str | None:
    """Return why no container of the pod may have exclusive CPUs, None when some may."""
    kind = request.policy.cpu.policy
    if kind is not CpuManagerPolicy.STATIC:
        return f"cpuManagerPolicy is {kind}; exclusive CPUs need static"
    return request.why_none()


class CpuReasons(Struct, frozen=True):
    """Why each container may have exclusive CPUs or not; `counts` are the CPUs they request."""

    request: PodRequest
    of_pod: int
    counts: tuple[int, ...]

    def __getitem__(self, place: int) -> str:
        """Return the reason of the container at a place."""
        request, container = self.request, self.request.containers[place]
        none = _why_none(request)
        if none is not None:
            return none
        if request.lacks_guarantee(container):
            return NOT_GUARANTEED
        if request.from_budget and not self.of_pod:
            return "the pod's cpu budget is not a positive whole number; pod scope divides no other"
        if self.counts[place]:
            return f"Guaranteed with a whole number of CPUs ({self.counts[place]})"
        asked = container.resources.requests.get(CPU, ZERO)
        return f"its cpu request {asked} is not a positive whole number"


# --- what is allocated --------------------------------------------------------------------------


def exclusive_cpus(ledger: Ledger) -> Mask:
    """Return all CPUs that are allocated exclusively."""
    taken: Taken[Mask] | None = ledger.parts.get(CPU)
    return EMPTY if taken is None else taken.ids


def shared_pool(rules: HostPolicy, ledger: Ledger) -> Mask:
    """Return the node's shared pool (the kubelet's default CPU set).

    All online CPUs that are neither allocated exclusively nor cordoned. Reserved CPUs are in the
    pool unless `strict-cpu-reservation` keeps them for the system (KEP-4540); then the pool can be
    empty.
    """
    pool = rules.machine.cpus.all - exclusive_cpus(ledger) - rules.cordoned_cpus
    if rules.policy.cpu.options.strict_cpu_reservation:
        pool -= rules.policy.cpu.reserved
    return pool


def uncordoned_shared_cpus(rules: HostPolicy, ledger: Ledger) -> Mask:
    """Return the CPUs of containers without exclusive CPUs, as far as these are not cordoned.

    The shared pool, or the online reserved CPUs if `strict-cpu-reservation` has left the pool
    empty. A cordon, or an admission beside a cordon, that would leave none is rejected.
    """
    reserved = rules.policy.cpu.reserved & _unallocated(rules, ledger)
    return shared_pool(rules, ledger) or reserved - rules.cordoned_cpus


def _unallocated(rules: HostPolicy, ledger: Ledger) -> Mask:
    """Return the online CPUs that no pod has exclusively, reserved and cordoned ones too."""
    return rules.machine.cpus.all - exclusive_cpus(ledger)


def shared_cpus(rules: HostPolicy, ledger: Ledger) -> Mask:
    """Return the online CPUs on which containers without exclusive CPUs run; never empty.

    The shared pool, or the reserved CPUs if `strict-cpu-reservation` has left the pool empty: the
    kernel reads an empty `cpuset.cpus`, and one whose CPUs are all offline, as "all of the
    parent's", which would let these containers run on exclusive CPUs. Where neither is left (CPUs
    went offline beside a cordon, or others are reserved now), the reserved and then all other CPUs
    that no pod has; CPUs of pods only where pods have all that are online, the reserved ones first
    (`Rule.SHARED_POOL` is then violated).
    """
    free = _unallocated(rules, ledger)
    reserved = rules.policy.cpu.reserved & rules.machine.cpus.all
    return (
        uncordoned_shared_cpus(rules, ledger)
        or reserved & free
        or free
        or reserved
        or rules.machine.cpus.all
    )


def cpu_violations(
    rules: HostPolicy, ledger: Ledger, offline: Mask
) -> Callable[[PodAllocation], Iterator[Violation]]:
    """Return a function that yields the violations of one allocation after the other."""
    exposed = shared_cpus(rules, ledger) & exclusive_cpus(ledger)
    earlier = EMPTY

    def check(allocation: PodAllocation) -> Iterator[Violation]:
        nonlocal earlier
        cpus = allocation.exclusive_cpus
        yield from _of_host_and_policy(rules, allocation, offline) if cpus else ()
        if twice := cpus & earlier:
            message = f"has CPUs {twice}, which another pod has as well"
            rule, remedy = Rule.CPU_ALLOCATED_TWICE, "remove one of the pods"
            yield Violation.of(allocation, rule, message, remedy)
        earlier |= cpus
        if cpus & exposed:
            message = f"has CPUs {cpus & exposed}, but no CPUs are left for the node's shared pool"
            remedy = "remove a pod with exclusive CPUs, or set more CPUs online"
            yield Violation.of(allocation, Rule.SHARED_POOL, message, remedy)

    return check


def _of_host_and_policy(
    rules: HostPolicy, allocation: PodAllocation, offline: Mask
) -> Iterator[Violation]:
    cpus, online = allocation.exclusive_cpus, rules.machine.cpus.all
    if missing := cpus - online - offline:
        message = f"has CPUs {missing}, which this host no longer has"
        yield Violation.of(allocation, Rule.CPU_MISSING, message)
    if lost := (cpus & offline) - online:
        remedy = f"set them online again, or {ADMIT_AGAIN}"
        message = f"has CPUs {lost}, which are offline"
        yield Violation.of(allocation, Rule.CPU_OFFLINE, message, remedy)
    if not rules.static_cpus:
        message = f"has exclusive CPUs {cpus}, policy none allocates none"
        remedy = "the CPUs are free again when the pod is removed"
        yield Violation.of(allocation, Rule.CPU_POLICY, message, remedy)
        return
    if reserved := cpus & rules.policy.cpu.reserved:
        message = f"has CPUs {reserved}, which are now reserved"
        remedy = f"reserve others, or {ADMIT_AGAIN}"
        yield Violation.of(allocation, Rule.RESERVED_CPUS, message, remedy)
    others = rules.machine.cpus.cores_of(cpus) - cpus
    if others and rules.policy.cpu.options.full_pcpus_only:
        message = f"has CPUs {cpus}, but not their siblings {others}"
        yield Violation.of(allocation, Rule.FULL_PCPUS_ONLY, message)


def nodes_of_cpus(rules: HostPolicy, cpus: Mask) -> Mask:
    """Return the nodes of CPUs; with `align-by-socket`, all nodes of a socket count as one."""
    topology = rules.machine.cpus
    nodes = topology.nodes_of(cpus)
    if rules.policy.cpu.options.align_by_socket and len(nodes) > 1:
        of_socket = topology.cpus_in_sockets_of(Mask.of(nodes.lowest))
        return EMPTY if cpus & topology.all <= of_socket else nodes
    return nodes


def cpu_samples(rules: HostPolicy, ledger: Ledger) -> Iterator[Sample]:
    """Yield the samples of the gauges of CPUs."""
    exclusive, shared = exclusive_cpus(ledger), shared_pool(rules, ledger)
    yield Sample(SHARED_POOL_MILLICORES, (), len(shared) * 1000)
    yield Sample(EXCLUSIVE_CPU_COUNT, (), len(exclusive))
    yield Sample(CPUS, ("exclusive",), len(exclusive))
    yield Sample(CPUS, ("shared",), len(shared))
    draining = rules.cordoned_cpus & exclusive
    yield Sample(CORDONED_CPUS, ("allocated",), len(draining))
    yield Sample(CORDONED_CPUS, ("idle",), len(rules.cordoned_cpus - draining))
    for node in rules.machine.nodes:
        cpus = rules.machine.cpus.cpus_in_nodes(Mask.of(node.id))
        allocated = cpus & exclusive
        reserved = (cpus & rules.policy.cpu.reserved) - allocated
        cordoned = (cpus & rules.cordoned_cpus) - allocated - reserved
        labels = (str(node.id),)
        yield Sample(ALLOCATION_PER_NUMA, labels, len(allocated))
        yield Sample(NODE_CPUS, (*labels, "allocated"), len(allocated))
        yield Sample(NODE_CPUS, (*labels, "reserved"), len(reserved))
        yield Sample(NODE_CPUS, (*labels, "cordoned"), len(cordoned))
        yield Sample(NODE_CPUS, (*labels, "free"), len(cpus - allocated - reserved - cordoned))
    yield from assignment_samples(CPU, ledger, _assignment)
    unused = (each for one in ledger.allocations.values() for each in unused_budget(one))
    idle = sum(each.unused for each in unused if each.resource == CPU)
    yield Sample(UNUSED_BUDGET_CPUS, (), idle)


def _assignment(allocation: PodAllocation, container: ContainerAllocation) -> str:
    match container.isolation:
        case Isolation.HOST:
            return SHARED
        case Isolation.POD:
            return "pod_shared"
        case Isolation.CONTAINER:
            return "node_exclusive" if allocation.cpus is None else "pod_exclusive"
