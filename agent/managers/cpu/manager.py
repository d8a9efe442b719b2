"""The CPU manager's static policy: exclusive CPUs for containers and pods (KEP-3570, KEP-5526).

What pods demand, what drafts and ledgers have, and what is left for the shared pool stand before
the manager that decides with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocation import BUDGET, Isolation
from agent.managers.amounts import cpus_text
from agent.managers.cpu.hints import cpu_hint_family, cpu_hints, fits_in_whole_cores
from agent.managers.cpu.pod_level import CpuPart, apart_budget, divide_cpus, empty_pool_problem
from agent.managers.cpu.resizing import divided_again, evenly, kept_cpus, nearest
from agent.managers.cpu.sockets import SocketOrder, on_fewer_sockets
from agent.managers.cpu.take import NotEnoughCpusError, take_by_topology
from agent.managers.cpu.uneven_hosts import unbroken
from agent.managers.decision import Reason, Rejected, Rejection, reject_if
from agent.managers.demand import NOT_GUARANTEED, PodPart, ResourceDemand
from agent.managers.ledger import Taken
from agent.managers.metrics import (
    ALIGNED_COUNT,
    ALIGNED_FAILURE_COUNT,
    ALLOCATION_ERRORS,
    ALLOCATIONS,
    CONTAINER_ASSIGNMENTS,
    CPU_PINNING_ERRORS,
    CPU_PINNING_REQUESTS,
    SHARED,
    Sample,
    assignment_samples,
    gauge,
)
from agent.managers.policy import CpuManagerPolicy, IsolationMode
from agent.managers.pools import emptied, last_of_pools, pool_rejection, pool_violations
from agent.managers.resource_manager import ResourceManager
from agent.managers.sharing import unused_budget
from agent.managers.topology.merge import STRICT
from agent.managers.violations import ADMIT_AGAIN, Rule, Violation
from agent.pods.model import (
    CPU,
    EXCLUSIVE,
    IDLE_SIBLINGS,
    POOL,
    SMT,
    ContainerKind,
    isolation_annotation,
)
from agent.pods.quantity import MAX_INT64, ZERO
from agent.pods.requests import (
    exclusive_cpu_requests,
    named_container_fault,
    pod_exclusive_cpu_requests,
)
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent.managers.allocation import ContainerAllocation, PodAllocation, PodSets
    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.demand import ContainerDemand, PodDemand, PodRequest
    from agent.managers.host import HostPolicy
    from agent.managers.ledger import Ledger
    from agent.managers.resource_manager import Draft, Held
    from agent.managers.topology.hint import Hint
    from agent.managers.topology.many_nodes import ProviderHints


SHARED_POOL_MILLICORES: Final = gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "Size of the node's shared CPU pool without reserved CPUs, in millicores; 0 under none.",
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
IDLE_SIBLING_CPUS: Final = gauge(
    "numawarden_idle_sibling_cpus",
    "Sibling threads that stay idle for the sake of pods (agent.isolation.smt); they count as "
    "exclusive, too.",
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
    IDLE_SIBLING_CPUS,
    UNUSED_BUDGET_CPUS,
)


class CpuDraft(PodPart, kw_only=True):
    """The free CPUs for the pod under admission, and what it has.

    `containers` are masks by name, `pod` the mask of the budget. `reusable` are CPUs of standard
    init containers of this pod, which a later container of the pod may get. Where siblings are to
    stay idle (`whole`), `topology` and all these sets have the first thread of each core alone, so
    that a CPU stands for a whole core; else `topology` has all CPUs of the host. `kept` are the
    CPUs that containers of a running pod keep, by name, and `BUDGET` those of its budget; None for
    a pod that is to be admitted. `left` are those of its standard init containers that no other
    container has: its app containers, which never run beside them, may grow into them.
    """

    topology: CpuTopology
    free: Mask
    whole: bool = False
    reusable: Mask = EMPTY
    kept: Mapping[str, Mask] | None = None
    left: Mask = EMPTY

    def reuse(self, container: ContainerDemand | None) -> None:
        """Have a container of a running pod (None: the pod as a whole) use again what it keeps."""
        if self.kept is None:
            return
        if container is None:
            self.reusable = Mask.union(self.kept.values())
            return
        left = self.left if container.kind is ContainerKind.APP else EMPTY
        self.reusable = self.kept.get(container.name, EMPTY) | left

    @property
    def available(self) -> Mask:
        """All CPUs that the next container of the pod may get."""
        return self.free | self.reusable


def cpus_of(draft: Draft) -> CpuDraft:
    """Return the CPU manager's part of a draft."""
    part: CpuDraft = draft.parts[CPU]
    return part


def keeps_siblings_idle(rules: HostPolicy, demand: PodDemand) -> bool:
    """Return whether a pod's exclusive CPUs are whole cores with one thread in use."""
    mode = rules.policy.cpu.idle_siblings
    if mode is IsolationMode.ASKED:
        return demand.asked.isolation.get(SMT) == IDLE_SIBLINGS
    return mode is IsolationMode.ALWAYS


def with_idle_siblings(
    rules: HostPolicy, ledger: Ledger, allocation: PodAllocation, demand: PodDemand
) -> PodAllocation:
    """Return an allocation that was not decided here with the free siblings that are to stay idle.

    Others have the rest, which `cpu_violations` names.
    """
    if not keeps_siblings_idle(rules, demand):
        return allocation
    siblings = rules.machine.cpus.cores_of(allocation.exclusive_cpus)
    return replace(allocation, idle=siblings & (rules.open_cpus - exclusive_cpus(ledger)))


def cpu_demand(request: PodRequest) -> ResourceDemand:
    """Return the whole CPUs that a pod and its containers request, 0 for what shares CPUs.

    In pod scope, the containers of a pod-level budget that is not a whole number get no exclusive
    CPUs (KEP-5526).
    """
    qos, pod_level, names = request.qos, request.pod_level, request.named
    counts = tuple(
        [
            exclusive_cpu_requests(each, qos, pod_level=pod_level, named=each.name in names)
            for each in request.containers
        ]
    )
    of_pod = pod_exclusive_cpu_requests(request.pod, qos, counts, pod_level=pod_level)
    of_pod = min(of_pod, MAX_INT64)
    unserved = _why_none(request, named=bool(names)) is not None
    active = not unserved and not (request.from_budget and not of_pod)
    exclusive = tuple([active and count > 0 for count in counts])
    return ResourceDemand(of_pod, counts, active, exclusive, CpuReasons(request, of_pod, counts))


def _why_none(request: PodRequest, *, named: bool) -> str | None:
    """Return why no container of the pod, or no `named` one, may have exclusive CPUs, or None."""
    kind = request.policy.cpu.policy
    if kind is not CpuManagerPolicy.STATIC:
        return f"cpuManagerPolicy is {kind}; exclusive CPUs need static"
    return None if named else request.why_none()


class CpuReasons(Struct, frozen=True):
    """Why each container may have exclusive CPUs or not; `counts` are the CPUs they request."""

    request: PodRequest
    of_pod: int
    counts: tuple[int, ...]

    def __getitem__(self, place: int) -> str:
        """Return the reason of the container at a place."""
        request, container = self.request, self.request.containers[place]
        named = container.name in request.named
        none = _why_none(request, named=named)
        fault = named_container_fault(container)
        if none is not None:
            budget = request.pod_level or request.unmanaged
            nameable = fault is None and not budget and _why_none(request, named=True) is None
            return f"{none}, or the annotation {EXCLUSIVE}" if nameable else none
        if named:
            return fault or f"named by {EXCLUSIVE}, with whole CPUs ({self.counts[place]})"
        if request.lacks_guarantee(container):
            return NOT_GUARANTEED
        if request.from_budget and not self.of_pod:
            return "the pod's cpu budget is not a positive whole number; pod scope divides no other"
        if self.counts[place]:
            return f"Guaranteed with a whole number of CPUs ({self.counts[place]})"
        asked = container.resources.requests.get(CPU, ZERO)
        return f"its cpu request {asked} is not a positive whole number"


def exclusive_cpus(ledger: Ledger) -> Mask:
    """Return all CPUs that are allocated exclusively."""
    taken: Taken[Mask] | None = ledger.parts.get(CPU)
    return EMPTY if taken is None else taken.ids


def idle_siblings(ledger: Ledger) -> Mask:
    """Return all CPUs that stay idle beside those that pods use."""
    bits = 0
    for allocation in ledger.allocations.values():
        bits |= allocation.idle.bits
    return Mask(bits)


def shared_pool(rules: HostPolicy, ledger: Ledger) -> Mask:
    """Return the node's shared pool (the kubelet's default CPU set).

    All online CPUs that are neither allocated exclusively nor cordoned, without those of isolcpus
    where these are for exclusive use (`agent.isolatedCPUs`). Reserved CPUs are in the
    pool unless `strict-cpu-reservation` keeps them for the system (KEP-4540); then the pool can be
    empty.
    """
    pool = rules.machine.cpus.all - exclusive_cpus(ledger) - rules.cordoned_cpus
    pool -= rules.policy.cpu.unshared
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
    went offline or are withheld beside a cordon, or others are reserved now), the reserved and then
    all other CPUs that no pod has; CPUs of pods only where pods have all that are online, the
    reserved ones first (`Rule.SHARED_POOL` is then violated).
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
    shared = shared_cpus(rules, ledger)
    exposed = shared & exclusive_cpus(ledger)
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
        yield from pool_violations(rules, allocation, shared)

    return check


def _of_host_and_policy(
    rules: HostPolicy, allocation: PodAllocation, offline: Mask
) -> Iterator[Violation]:
    cpus, online = allocation.exclusive_cpus, rules.machine.cpus.all
    if missing := cpus - online - offline - rules.machine.withheld_cpus:
        message = f"has CPUs {missing}, which this host no longer has"
        yield Violation.of(allocation, Rule.CPU_MISSING, message)
    if lost := (cpus & offline) - online:
        remedy = f"set them online again, or {ADMIT_AGAIN}"
        message = f"has CPUs {lost}, which are offline"
        yield Violation.of(allocation, Rule.CPU_OFFLINE, message, remedy)
    for withheld in rules.machine.withheld:
        if lost := cpus & withheld.cpus:
            message, remedy = f"has CPUs {lost}, which {withheld.place}", withheld.remedy
            remedy = f"{remedy}, or {ADMIT_AGAIN}"
            yield Violation.of(allocation, Rule.CPU_WITHHELD, message, remedy)
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
    asked = allocation.isolation.get(SMT) == IDLE_SIBLINGS
    mode = rules.policy.cpu.idle_siblings
    if mode is IsolationMode.ALWAYS or (asked and mode is IsolationMode.ASKED):
        used = cpus - allocation.idle
        awake = [core.cpus & ~allocation.idle.bits for core in rules.machine.cpus.cores]
        if busy := Mask(sum(each for each in awake if each & used.bits and each & (each - 1))):
            message = f"has CPUs {used}, but of their cores several threads may run: {busy}"
            yield Violation.of(allocation, Rule.IDLE_SIBLINGS, message)
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
    # As the kubelet's static policy counts its pool; under none the kubelet sets no value.
    unreserved = shared - rules.policy.cpu.reserved if rules.static_cpus else EMPTY
    yield Sample(SHARED_POOL_MILLICORES, (), len(unreserved) * 1000)
    yield Sample(EXCLUSIVE_CPU_COUNT, (), len(exclusive))
    yield Sample(CPUS, ("exclusive",), len(exclusive))
    yield Sample(CPUS, ("shared",), len(shared))
    yield Sample(IDLE_SIBLING_CPUS, (), len(idle_siblings(ledger)))
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


_NODE: Final = "node"

_POD: Final = "pod"

_CONTAINER: Final = "container"

_PHYSICAL_CPU: Final = "physical_cpu"


@final
class CpuManager(ResourceManager):
    """The manager of `cpu`; policy `none` has no preference and allocates no CPUs.

    Amounts are numbers of CPUs. Its part of a container's allocation and of a budget is a mask.
    """

    name = CPU
    cost = 0
    of_nodes = True
    gauges = CPU_GAUGES

    def demand(self, request: PodRequest) -> ResourceDemand:
        return cpu_demand(request)

    def amount(self, demanded: int, resource: str) -> int:
        return demanded

    def start(self, rules: HostPolicy, part: Taken[Mask], demand: PodDemand) -> CpuDraft:
        topology, free = rules.machine.cpus, rules.open_cpus - part.ids
        if not keeps_siblings_idle(rules, demand):
            return CpuDraft(topology=topology, free=free)
        first = topology.first_threads
        return CpuDraft(topology=first, free=topology.whole_cores_in(free) & first.all, whole=True)

    def hold(self, draft: Draft, held: Held) -> None:
        own, options = cpus_of(draft), draft.rules.policy.cpu.options
        if own.whole != bool(held.allocation.idle) and held.allocation.exclusive_cpus:
            asks = "asks for" if own.whole else "no longer asks for"
            has = "does not have" if own.whole else "has"
            raise Rejected(
                Rejection(
                    Reason.INFEASIBLE,
                    f"annotation {isolation_annotation(SMT)} or agent.isolation.smt {asks} idle "
                    f"siblings, which the pod {has}",
                    f"change that back, or {ADMIT_AGAIN}",
                    CPU,
                )
            )
        own.kept = kept = kept_cpus(own.topology, options, draft.demand, held)
        stays = Mask.union(kept.values())
        own.free -= stays
        if BUDGET not in kept and draft.demand.has_standard_init:
            init = {each.name for each in draft.demand.containers if each.is_standard_init}
            lasting = Mask.union(cpus for name, cpus in kept.items() if name not in init)
            own.left = (stays - lasting) & draft.rules.open_cpus

    def confine(self, draft: Draft, only: PodSets) -> None:
        cpus_of(draft).free &= only.cpus

    def grows(self, draft: Draft, container: ContainerDemand | None) -> bool:
        kept, demand = cpus_of(draft).kept or {}, draft.demand
        if container is not None:
            return container.may_have(CPU) and container.cpus > len(kept.get(container.name, EMPTY))
        if BUDGET in kept:
            return demand.cpus > len(kept[BUDGET])
        return any(self.grows(draft, each) for each in demand.containers)

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        if not container.may_have(CPU):
            return {}
        cpus_of(draft).reuse(container)
        return _hints(draft, container.cpus)

    def pod_hints(self, draft: Draft) -> ProviderHints:
        if not _serves(draft):
            return {}
        if draft.demand.pod_level and empty_pool_problem(draft.demand) is not None:
            return {CPU: ()}
        cpus_of(draft).reuse(None)
        return _hints(draft, draft.demand.cpus)

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        if not container.may_have(CPU):
            return
        own = cpus_of(draft)
        own.reuse(container)
        draft.count(CPU_PINNING_REQUESTS.name)
        try:
            cpus = _take_aligned(draft, container.cpus, hint, container.name)
        except Rejected:
            draft.count(CPU_PINNING_ERRORS.name)
            draft.count(ALLOCATION_ERRORS.name, CPU, _NODE)
            raise
        own.containers[container.name] = cpus
        if container.is_standard_init:
            own.reusable |= cpus
        else:
            own.reusable -= cpus
            own.left -= cpus
        draft.count(ALLOCATIONS.name, CPU, _NODE)
        draft.count(CONTAINER_ASSIGNMENTS.name, CPU, "node_exclusive")

    def allocate_pod(self, draft: Draft, hint: Hint) -> None:
        # KEP-5526, "Pod Scope Allocation and Partitioning Algorithm"; numbers as in the kubelet.
        demand, own = draft.demand, cpus_of(draft)
        # 1. The budget in whole CPUs. Without one, all containers share CPUs with other pods.
        if not _serves(draft):
            return
        try:
            # 2. A container that shares the budget must not be left without CPUs. The hints were
            #    empty then, but best-effort does not reject a pod for that.
            reject_if(self.empty_pool(draft, Reason.EMPTY_POD_SHARED_POOL))
            # 3. With `full-pcpus-only` the budget has to be whole cores, the parts need not.
            # 4. Take the budget as a whole.
            own.reuse(None)
            own.pod = budget = _take_aligned(draft, demand.cpus, hint, None)
            # 5. Divide the budget in the order in which the containers start.
            parts = _divided_budget(draft, budget)
        except Rejected:
            draft.count(CPU_PINNING_ERRORS.name)
            draft.count(ALLOCATION_ERRORS.name, CPU, _POD)
            raise
        for name, part in parts.items():
            own.containers[name] = part.cpus
            if part.exclusive:
                draft.count(CPU_PINNING_REQUESTS.name)
                draft.count(ALLOCATIONS.name, CPU, _POD)
                draft.count(CONTAINER_ASSIGNMENTS.name, CPU, "pod_exclusive")
            else:
                draft.count(CONTAINER_ASSIGNMENTS.name, CPU, "pod_shared")

    def node_order(self, draft: Draft, container: ContainerDemand | None) -> SocketOrder | None:
        rules = draft.rules
        if not rules.policy.cpu.options.align_by_socket:
            return None
        if not (_serves(draft) if container is None else container.may_have(CPU)):
            return None
        count = draft.demand.cpus if container is None else container.cpus
        return SocketOrder.of(cpus_of(draft).topology, _usable(draft, count), count)

    def empty_pool(self, draft: Draft, reason: Reason) -> Rejection | None:
        problem = empty_pool_problem(draft.demand) if _serves(draft) else None
        return None if problem is None else Rejection(reason, problem, resource=CPU)

    def free(self, draft: Draft, resource: str) -> Mapping[int, int]:
        own, options = cpus_of(draft), draft.rules.policy.cpu.options
        free = own.available
        if options.full_pcpus_only and own.topology.cores_alike:
            free = own.topology.whole_cores_in(free)
        return free_cpus_by_node(draft.rules, free)

    def offer_text(self, draft: Draft, resource: str, asked: int, fit: str) -> str:
        rules, own = draft.rules, cpus_of(draft)
        if not own.whole:
            free = _rooms_text(rules, own.available)
            if rules.policy.cpu.options.full_pcpus_only:
                whole = own.topology.whole_cores_in(own.available)
                if whole != own.available:
                    free += f"; in whole cores: {_rooms_text(rules, whole)}"
            return f"{asked} of {resource} {fit} (free: {free})"
        rooms = self.free(draft, resource).items()
        free = ", ".join(f"node {node}: {_cores_text(count)}" for node, count in rooms)
        return f"{_idle_siblings_text(draft, asked)} {fit} (free: {free})"

    def nodes(
        self,
        rules: HostPolicy,
        allocation: PodAllocation,
        container: ContainerAllocation | None,
    ) -> Mask:
        cpus = allocation.exclusive_cpus if container is None else container.cpus or EMPTY
        return nodes_of_cpus(rules, cpus)

    def veto(self, draft: Draft, ledger: Ledger, allocation: PodAllocation) -> Rejection | None:
        return _last_shared(draft, ledger, allocation) or _pools(draft, ledger, allocation)

    def spared(self, draft: Draft) -> Mask:
        rules, pods = draft.rules, draft.ledger.allocations.values()
        left = uncordoned_shared_cpus(rules, draft.ledger)
        if draft.held is not None:
            left -= draft.held.allocation.exclusive_cpus
        return last_of_pools(rules.policy, pods, draft.demand, left, rules.open_cpus)

    def allocatable(self, rules: HostPolicy) -> Mapping[str, int]:
        # Cordoned and offline CPUs are left out.
        fit = rules.policy.fit
        reserved = 0 if fit is None else fit.reserved.get(CPU, 0)
        cpus = rules.machine.cpus.all - rules.cordoned_cpus
        return {CPU: max(1000 * len(cpus) - reserved, 0)}

    def beyond_allocatable(
        self,
        rules: HostPolicy,
        part: Taken[Mask],
        resource: str,
    ) -> int:
        return 1000 * len(part.ids & rules.cordoned_cpus) if resource == CPU else 0

    def violations(
        self, rules: HostPolicy, ledger: Ledger, offline: Mask
    ) -> Callable[[PodAllocation], Iterable[Violation]]:
        return cpu_violations(rules, ledger, offline)

    def samples(self, rules: HostPolicy, ledger: Ledger) -> Iterable[Sample]:
        return cpu_samples(rules, ledger)

    def empty(self, rules: HostPolicy) -> Taken[Mask]:
        return Taken(EMPTY)

    def charged(
        self,
        rules: HostPolicy,
        part: Taken[Mask],
        allocation: PodAllocation,
    ) -> Taken[Mask]:
        return part.added(allocation.exclusive_cpus)

    def loaded(self, saved: None, allocations: Iterable[PodAllocation]) -> Taken[Mask]:
        part = Taken(EMPTY)
        for allocation in allocations:
            part = part.added(allocation.exclusive_cpus)
        return part

    def released(
        self,
        rules: HostPolicy,
        part: Taken[Mask],
        allocation: PodAllocation,
    ) -> Taken[Mask]:
        return part.removed(allocation.exclusive_cpus)


def _last_shared(draft: Draft, ledger: Ledger, allocation: PodAllocation) -> Rejection | None:
    """Return why a pod may not have the last shared CPUs of the node.

    Reserved CPUs are never allocated, so the shared pool keeps these, unless they are cordoned.
    """
    rules, before = draft.rules, draft.ledger
    if not rules.policy.cordon or not allocation.exclusive_cpus:
        return None
    if uncordoned_shared_cpus(rules, ledger) or not uncordoned_shared_cpus(rules, before):
        return None
    return Rejection(
        Reason.UNEXPECTED,
        "the pod would get the last CPUs of the node's shared pool, since the reserved CPUs "
        f"{rules.policy.cpu.reserved & rules.cordoned_cpus} are cordoned",
        resource=CPU,
        asked=len(allocation.exclusive_cpus),
        free=free_cpus_by_node(rules, rules.open_cpus - exclusive_cpus(before)),
    )


def _pools(draft: Draft, ledger: Ledger, allocation: PodAllocation) -> Rejection | None:
    """Return why a pod may not be in its pool, or leave a pool without CPUs (`agent.pools`)."""
    rules, held = draft.rules, draft.held
    if not rules.policy.pools and POOL not in allocation.annotations:
        return None
    left = uncordoned_shared_cpus(rules, ledger)
    if held is None and (rejection := pool_rejection(rules, allocation, left)) is not None:
        return rejection
    before = EMPTY if held is None else held.allocation.exclusive_cpus
    taken = allocation.exclusive_cpus - before
    pool = emptied(rules.policy, ledger.allocations.values(), taken, left)
    if not pool:
        return None
    return Rejection(
        Reason.UNEXPECTED,
        f"the pod would get the last shared CPUs of {pool}",
        resource=CPU,
        asked=len(allocation.exclusive_cpus),
        free=free_cpus_by_node(rules, rules.open_cpus - exclusive_cpus(draft.ledger)),
    )


def free_cpus_by_node(rules: HostPolicy, free: Mask) -> dict[int, int]:
    """Return how many of the given CPUs each NUMA node has."""
    nodes = rules.machine.cpus.nodes
    return {node.id: (node.cpus & free.bits).bit_count() for node in nodes}


def _rooms_text(rules: HostPolicy, free: Mask) -> str:
    rooms = free_cpus_by_node(rules, free).items()
    return ", ".join(f"node {node}: {count}" for node, count in rooms)


def _divided_budget(draft: Draft, budget: Mask) -> dict[str, CpuPart]:
    topology, options = cpus_of(draft).topology, draft.rules.policy.cpu.options
    kept = cpus_of(draft).kept
    try:
        if kept is not None:
            return divided_again(topology, options, budget, draft.demand, kept)
        version = draft.rules.policy.version
        return divide_cpus(topology, options, budget, draft.demand, draft.work, version)
    except NotEnoughCpusError as error:
        raise Rejected(_not_enough(draft, error.asked, budget, None)) from error


def aligned_cpus(draft: Draft, nodes: int, cpus: Mask) -> Mask:
    """Return the given CPUs that count as aligned to `nodes` (bits of node ids).

    With `align-by-socket` those of every socket that has one of the nodes (KEP-3327).
    """
    topology = cpus_of(draft).topology
    if draft.rules.policy.cpu.options.align_by_socket:
        return cpus & topology.cpus_in_sockets_of(Mask(nodes))
    return cpus & topology.cpus_in_nodes(Mask(nodes))


def _serves(draft: Draft) -> bool:
    """Return whether the pod as a whole gets exclusive CPUs."""
    return draft.demand.active(CPU) and draft.demand.cpus > 0


def _usable(draft: Draft, count: int) -> Mask:
    """Return the free CPUs that count for a request: with `full-pcpus-only` those of whole cores.

    All count where the request is rejected for its cores, and where cores differ in size and whole
    ones do not add up to the request: there they are preferred, not guaranteed.
    """
    return _whole_cores(draft, count) or cpus_of(draft).available


def _whole_cores(draft: Draft, count: int) -> Mask | None:
    """Return the free CPUs of whole cores where a request is served of them alone."""
    topology, available = cpus_of(draft).topology, cpus_of(draft).available
    if not draft.rules.policy.cpu.options.full_pcpus_only:
        return None
    whole = topology.whole_cores_in(available)
    if topology.cores_alike:
        return whole if _smt_misalignment(draft, count) is None else None
    return whole if fits_in_whole_cores(topology, whole, count) else None


def _hints(draft: Draft, count: int) -> ProviderHints:
    rules = draft.rules
    offer = cpu_hints if rules.machine.lists_hints else cpu_hint_family
    tie = cpus_of(draft).reusable - cpus_of(draft).left if draft.tied else EMPTY
    own, options = cpus_of(draft), rules.policy.cpu.options
    whole = _whole_cores(draft, count)
    if whole is None or own.topology.cores_alike:
        return {CPU: offer(own.topology, options, whole or own.available, tie, count)}
    return {CPU: offer(own.topology, options, whole, tie, count, whole=True)}


def _take_aligned(draft: Draft, count: int, hint: Hint, container: str | None) -> Mask:
    """Take the CPUs of a container (None: the pod); with `full-pcpus-only` in whole cores."""
    kept = cpus_of(draft).kept
    # What a running pod keeps stays as it is, even if the option is newer.
    stays = kept is not None and count <= len(kept.get(container or BUDGET, EMPTY))
    whole_cores = draft.rules.policy.cpu.options.full_pcpus_only and not stays
    scope = _POD if container is None else _CONTAINER
    try:
        if whole_cores:
            reject_if(_smt_rejection(draft, count, container))
        cpus = _take(draft, count, hint, container)
    except Rejected:
        if whole_cores:
            draft.count(ALIGNED_FAILURE_COUNT.name, scope, _PHYSICAL_CPU)
        raise
    if whole_cores:
        # Where cores differ in size whole ones are preferred, not guaranteed.
        whole = cpus_of(draft).topology.cores_of(cpus) == cpus
        metric = ALIGNED_COUNT if whole else ALIGNED_FAILURE_COUNT
        draft.count(metric.name, scope, _PHYSICAL_CPU)
    return cpus


def _take(draft: Draft, count: int, hint: Hint, container: str | None) -> Mask:
    """Take CPUs, with `full-pcpus-only` out of whole cores where others would be parts of cores."""
    own = cpus_of(draft)
    topology = own.topology
    try:
        if own.kept is not None:
            taken = _grown(draft, own.kept.get(container or BUDGET, EMPTY), count, hint)
        else:
            taken = _taken(draft, count, hint, container)
    except NotEnoughCpusError as error:
        raise Rejected(_not_enough(draft, count, own.available, container)) from error
    own.free -= taken
    if own.whole:
        own.idle |= draft.rules.machine.cpus.cores_of(taken) - taken
    if any(not taken.bits & ~cache.cpus for cache in topology.uncores):
        draft.count(ALIGNED_COUNT.name, _CONTAINER, "uncore_cache")
    return taken


def _taken(draft: Draft, count: int, hint: Hint, container: str | None) -> Mask:
    """Return CPUs for a container (None: the pod) that has none yet."""
    topology = cpus_of(draft).topology
    taken = _near_hint(draft, cpus_of(draft).available, count, hint)
    if draft.rules.policy.cpu.options.full_pcpus_only and topology.cores_of(taken) != taken:
        taken = _near_hint(draft, _usable(draft, count), count, hint)
    return _not_shared(draft, taken, container)


def _grown(draft: Draft, kept: Mask, count: int, hint: Hint) -> Mask:
    """Return what a container keeps, with the nearest free CPUs, those inside the hint first.

    None are outside where the policy rejects what is not aligned: the hint has room for all that
    the pod asks for, but ended init containers may have left some of it to app containers alone.
    """
    own, policy = cpus_of(draft), draft.rules.policy
    options, free, cpus = policy.cpu.options, own.available - kept, kept
    aligned = free if hint.nodes is None else aligned_cpus(draft, hint.nodes, free)
    if options.distribute_cpus_across_numa:
        near = free & own.topology.cpus_in_nodes(own.topology.nodes_of(kept))
        cpus |= evenly(own.topology, options, kept, aligned | near, count - len(kept))
    anywhere = EMPTY if policy.topology.policy in STRICT else free
    for place in (aligned - cpus, anywhere - cpus):
        if len(cpus) >= count:
            break
        room = place - cpus
        if options.full_pcpus_only:
            room &= own.topology.whole_cores_in(place | cpus)
        more = min(count - len(cpus), len(room))
        cpus |= nearest(own.topology, options, cpus, room, more)
    if len(cpus) < count:
        raise NotEnoughCpusError(count, len(cpus))
    return cpus


def _not_shared(draft: Draft, taken: Mask, container: str | None) -> Mask:
    """Return CPUs whose cores the pod's other exclusive containers have no threads of.

    As many on the same nodes, where cores differ in size and there are some; else those taken. A
    pod's container that comes last may break a core: no other one of the pod gets the rest.
    """
    topology, options = cpus_of(draft).topology, draft.rules.policy.cpu.options
    available = cpus_of(draft).available
    if topology.cores_alike or options.asks_for_places:
        return taken

    def take(cpus: Mask, count: int) -> Mask:
        packed = _by_options(draft, cpus, count)
        return Mask(unbroken(topology, cpus.bits, packed.bits))

    if container is None:
        near = available & topology.cpus_in_nodes(topology.nodes_of(taken))
        return apart_budget(topology, take, near, draft.demand, taken)
    running = [c.name for c in draft.demand.containers if c.cpus and not c.is_standard_init]
    if container not in running[:-1]:
        return taken
    return Mask(unbroken(topology, available.bits, taken.bits))


def _near_hint(draft: Draft, usable: Mask, count: int, hint: Hint) -> Mask:
    """Take CPUs inside the hint first, the rest (best-effort, failed alignment) anywhere."""
    topology, options = cpus_of(draft).topology, draft.rules.policy.cpu.options
    near, nodes = EMPTY, 0
    if hint.nodes is not None:
        near = aligned_cpus(draft, hint.nodes, usable)
        nodes = _nodes_to_keep(draft, hint.nodes)
    taken = _by_options(draft, near, min(count, len(near)), nodes)
    if len(taken) < count:
        rest, more = usable - taken, count - len(taken)
        taken |= _by_options(draft, rest, more)
        if options.align_by_socket and near:
            # Sockets of the hint and others were needed; perhaps fewer of all will do.
            whole = options.full_pcpus_only
            inside = on_fewer_sockets(topology, usable, taken, whole_cores=whole)
            if inside is not None:
                taken = _by_options(draft, inside, len(taken))
    return taken


def _by_options(draft: Draft, cpus: Mask, count: int, node_count: int = 0) -> Mask:
    """Choose `count` of the CPUs by the policy; raises `NotEnoughCpusError`."""
    policy = draft.rules.policy
    topology, options = cpus_of(draft).topology, policy.cpu.options
    return take_by_topology(
        topology, options, cpus, count, draft.work(), policy.version, node_count
    )


def _nodes_to_keep(draft: Draft, nodes: int) -> int:
    """Return over how many of a hint's nodes (bits) `distribute-cpus-across-numa` spreads.

    All that have CPUs, or 0 for the fewest that have room: a rule of the version.
    """
    policy = draft.rules.policy
    if not policy.version.rules.distributing_keeps_all_nodes:
        return 0
    if not policy.cpu.options.distribute_cpus_across_numa:
        return 0
    return (nodes & draft.rules.machine.cpus.node_bits).bit_count()


def _smt_rejection(draft: Draft, count: int, container: str | None) -> Rejection | None:
    problem = _smt_misalignment(draft, count)
    if problem is None:
        return None
    return Rejection(
        Reason.SMT_ALIGNMENT,
        problem,
        resource=CPU,
        container=container,
        asked=count,
        free=free_cpus_by_node(draft.rules, _free_physical(draft)),
    )


def _smt_misalignment(draft: Draft, count: int) -> str | None:
    if cpus_of(draft).whole:
        return None
    return smt_misalignment(draft.rules.machine.cpus, _free_physical(draft), count)


def _free_physical(draft: Draft) -> Mask:
    """Return the free CPUs that count as those of whole cores, with those to be used again."""
    free, topology = cpus_of(draft).available, draft.rules.machine.cpus
    if topology.cores_alike:
        return topology.whole_cores_in(free)
    return free - draft.rules.closed_physical_cpus


def _not_enough(draft: Draft, count: int, available: Mask, container: str | None) -> Rejection:
    short = f"not enough CPUs: {count} asked, {len(available)} free"
    if cpus_of(draft).whole:
        free = _cores_text(len(available))
        short = f"not enough CPUs: {_idle_siblings_text(draft, count)} asked, {free} free"
    return Rejection(
        Reason.UNEXPECTED,
        short,
        resource=CPU,
        container=container,
        asked=count,
        free=free_cpus_by_node(draft.rules, available),
    )


def _idle_siblings_text(draft: Draft, count: int) -> str:
    """Return what a request for CPUs with idle siblings takes: `2 whole cores (4 CPUs) ...`."""
    topology = draft.rules.machine.cpus
    sizes = sorted(core.size for core in topology.cores)
    least = "" if topology.cores_alike else "at least "
    threads = sum(sizes[:count]) + sizes[-1] * max(count - len(sizes), 0)
    return f"{_cores_text(count)} with idle siblings ({least}{cpus_text(threads)})"


def _cores_text(count: int) -> str:
    return f"{count} whole core{'' if count == 1 else 's'}"


def smt_misalignment(topology: CpuTopology, free_physical: Mask, count: int) -> str | None:
    """Return why `count` CPUs cannot be whole cores, None when they can (KEP-2625).

    `free_physical` are the free CPUs that count as those of whole cores. The rules are the
    kubelet's (`validateSMTAlignment`): the count is a multiple of the CPUs per core, and so many
    CPUs are free. Where cores differ in size (hybrid cores, offline threads) the kubelet's
    average is used for all cores; whole cores are then preferred, but not guaranteed.
    """
    threads, free = topology.cpus_per_core, len(free_physical)
    if count % threads:
        return f"{cpus_text(count)} asked, not a multiple of the {threads} CPUs of a core"
    if count > free:
        are = "is" if free == 1 else "are"
        cores = "whole cores" if topology.cores_alike else "cores without reserved or cordoned CPUs"
        return f"{cpus_text(count)} asked, {free} {are} free in {cores}"
    return None
