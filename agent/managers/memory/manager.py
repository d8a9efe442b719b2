"""The memory manager's static policy: pinned memory for containers and pods.

What pods demand, and what a draft and the ledger have, stand before the manager that decides with
them. Sources: KEP-1769, KEP-5526 ("Memory Manager").
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct, field
from msgspec.structs import replace

from agent.managers.allocation import BUDGET, Isolation
from agent.managers.amounts import nodes_text, size_text
from agent.managers.decision import Reason, Rejected, Rejection, reject_if
from agent.managers.demand import NOT_GUARANTEED, PodPart, ResourceDemand
from agent.managers.errors import ManagerError, MemoryAssignmentError, UnknownMemoryTypeError
from agent.managers.host import machine_capacity
from agent.managers.memory.assignment import (
    assign,
    memory_hints,
    near_alignment,
    near_hints,
    release_finished,
    require_known_types,
    reusable_after,
    shrink_reused,
)
from agent.managers.memory.pod_level import divide_memory, empty_memory_pool
from agent.managers.memory.state import (
    charge as with_block,
)
from agent.managers.memory.state import (
    charge_allocation,
    charged_blocks,
    free_memory,
    initial_memory,
    memory_charge,
    release,
    renumbered_nodes,
)
from agent.managers.metrics import (
    ALLOCATION_ERRORS,
    ALLOCATIONS,
    CONTAINER_ASSIGNMENTS,
    MEMORY_PINNING_ERRORS,
    MEMORY_PINNING_REQUESTS,
    SHARED,
    Sample,
    assignment_samples,
    gauge,
)
from agent.managers.policy import MemoryManagerPolicy
from agent.managers.resource_manager import ResourceManager
from agent.managers.sharing import unused_budget
from agent.managers.topology.hint import Hint
from agent.managers.topology.many_nodes import HintFamily
from agent.managers.violations import ADMIT_AGAIN, Rule, Violation
from agent.pods.model import CPU, MEMORY
from agent.pods.quantity import MAX_INT64, Quantity
from agent.pods.requests import is_memory_type, memory_requests, pod_memory_requests
from sysfs.mask import EMPTY, Mask, iter_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import ContainerAllocation, MemoryBlock, PodAllocation, PodSets
    from agent.managers.demand import ContainerDemand, PodDemand, PodRequest
    from agent.managers.host import HostPolicy
    from agent.managers.ledger import Ledger
    from agent.managers.machine import MachineNode
    from agent.managers.memory.state import MemoryFacts, NodeMemory
    from agent.managers.resource_manager import Draft, Held
    from agent.managers.topology.many_nodes import Hints, ProviderHints


NODE_MEMORY: Final = gauge(
    "numawarden_node_memory_bytes",
    "Memory of a NUMA node by type (memory, hugepages-...): allocated, reserved, or free.",
    "numa_node",
    "type",
    "state",
)
UNUSED_BUDGET_MEMORY: Final = gauge(
    "numawarden_unused_budget_memory_bytes",
    "Memory of pods' budgets by type that no container of the pod can use.",
    "type",
)
#: The gauges of memory.
MEMORY_GAUGES: Final = (NODE_MEMORY, UNUSED_BUDGET_MEMORY)


class MemoryDraft(PodPart, kw_only=True):
    """The charge of memory with what the pod under admission has so far.

    `containers` are blocks by name, `pod` the blocks of the budget. `reusable` are bytes by nodes
    (bits) and memory type of standard init containers of this pod, which a later container of the
    pod may get. `facts` are those of the nodes that the pod may use, of the `classes` of memory
    that it asks for ("": any). `kept` are the blocks that containers of a running pod have, by
    name, and under `BUDGET` those of its budget; None for a pod that is to be admitted.
    """

    facts: MemoryFacts
    classes: str = ""
    charge: Mapping[int, NodeMemory] = field(default_factory=dict)
    reusable: dict[tuple[int, str], int] = field(default_factory=dict)
    kept: Mapping[str, tuple[MemoryBlock, ...]] | None = None

    def kept_nodes(self, container: str | None) -> Mask:
        """Return the nodes of what a container of a running pod has (None: the pod as a whole)."""
        kept = self.kept or {}
        parts = kept.values() if container is None else (kept.get(container, ()),)
        return Mask.union(block.nodes for blocks in parts for block in blocks)


def memory_of(draft: Draft) -> MemoryDraft:
    """Return the memory manager's part of a draft."""
    part: MemoryDraft = draft.parts[MEMORY]
    return part


def memory_demand(request: PodRequest) -> ResourceDemand:
    """Return the bytes by memory type that a pod and its containers request.

    A budget of zero bytes counts as absent, a request does not. In pod scope, the containers of a
    pod-level budget without memory get no memory of their own (KEP-5526).
    """
    pod_level = request.pod_level
    amounts = tuple([memory_requests(each, pod_level=pod_level) for each in request.containers])
    of_pod = {
        name: min(size, MAX_INT64)
        for name, size in pod_memory_requests(
            request.pod, pod_level=pod_level, amounts=amounts
        ).items()
        if size > 0 or not pod_level
    }
    active = _why_none(request) is None
    divided = active and not (request.from_budget and not of_pod)
    exclusive = tuple([divided and bool(each) for each in amounts])
    why = MemoryReasons(request, divided, amounts)
    return ResourceDemand(of_pod, amounts, active, exclusive, why)


def _why_none(request: PodRequest) -> str | None:
    """Return why no container of the pod may have pinned memory, None when some may."""
    kind = request.policy.memory.policy
    if kind is not MemoryManagerPolicy.STATIC:
        return f"memoryManagerPolicy is {kind}; pinned memory needs Static"
    return request.why_none()


class MemoryReasons(Struct, frozen=True):
    """Why each container may have memory of its own or not; `amounts` are what they request.

    `divided`: the pod has a budget to divide, or needs none.
    """

    request: PodRequest
    divided: bool
    amounts: tuple[Mapping[str, int], ...]

    def __getitem__(self, place: int) -> str:
        """Return the reason of the container at a place."""
        none = _why_none(self.request)
        if none is not None:
            return none
        if self.request.lacks_guarantee(self.request.containers[place]):
            return NOT_GUARANTEED
        if not self.divided:
            return "the pod's budget has no memory; pod scope divides no other"
        return "Guaranteed with memory requests" if self.amounts[place] else "it requests no memory"


def memory_violations(
    rules: HostPolicy,
) -> Callable[[PodAllocation], Iterator[Violation]]:
    """Return a function that yields the violations of one allocation after the other."""
    earlier = _Earlier(rules)

    def check(allocation: PodAllocation) -> Iterator[Violation]:
        blocks = tuple(charged_blocks(allocation))
        yield from _of_classes(rules, allocation)
        yield from _of_host_and_policy(rules, allocation, blocks) if blocks else ()
        for name, block in blocks:
            yield from earlier.beside(allocation, name, block)

    return check


def _of_host_and_policy(
    rules: HostPolicy,
    allocation: PodAllocation,
    blocks: Sequence[tuple[str | None, MemoryBlock]],
) -> Iterator[Violation]:
    if not rules.static_memory:
        message = "has pinned memory, policy None pins none"
        remedy = f"the memory stays pinned until the pod is removed; {ADMIT_AGAIN} to unpin it"
        yield Violation.of(allocation, Rule.MEMORY_POLICY, message, remedy)
    present = rules.machine.node_mask
    union = EMPTY
    for _, block in blocks:
        union |= block.nodes
    if gone := union - present:
        message = f"has memory on nodes {gone}, which this host no longer has"
        yield Violation.of(allocation, Rule.MEMORY_NODE, message)
    for name, block in blocks:
        nodes = block.nodes & present
        if nodes and block.size and not _has_type(rules, nodes, block.type):
            message = f"has {_text(block)}, a type that these nodes no longer have"
            yield Violation.of(allocation, Rule.MEMORY_TYPE, message, container=name)


def _of_classes(rules: HostPolicy, allocation: PodAllocation) -> Iterator[Violation]:
    classes = rules.policy.memory.classes_for(allocation.isolation)
    if not classes:
        return
    nodes = rules.policy.memory.nodes_of(classes)
    for container in allocation.containers:
        if other := (container.mems or rules.machine.node_mask) - nodes:
            message = f"may use memory of {nodes_text(other)}, which is not {classes}"
            yield Violation.of(allocation, Rule.MEMORY_CLASS, message, container=container.name)


def _has_type(rules: HostPolicy, nodes: Mask, name: str) -> bool:
    total = rules.memory.total
    return any(total[node].get(name, 0) for node in nodes if node in total)


def _text(block: MemoryBlock) -> str:
    return f"{Quantity.of_bytes(block.size)} of {block.type} on nodes {block.nodes}"


class _Earlier:
    """The memory of earlier allocations, by type and set of nodes."""

    def __init__(self, rules: HostPolicy) -> None:
        self._rules = rules
        self._sizes: dict[str, dict[Mask, int]] = {}

    def beside(
        self, allocation: PodAllocation, name: str | None, block: MemoryBlock
    ) -> Iterator[Violation]:
        """Yield the violations of a block beside the earlier ones, and add it to these."""
        nodes = block.nodes & self._rules.machine.node_mask
        if not nodes or not block.size or not _has_type(self._rules, nodes, block.type):
            return
        by_nodes = self._sizes.setdefault(block.type, {})
        by_nodes[nodes] = by_nodes.get(nodes, 0) + block.size
        for around in [mask for mask in by_nodes if nodes <= mask]:
            total = sum(size for mask, size in by_nodes.items() if mask <= around)
            room = self._room(block.type, around)
            if total > room:
                amounts = f"{Quantity.of_bytes(total)} of {Quantity.of_bytes(room)}"
                message = f"has {_text(block)}: with it {amounts} are allocated on nodes {around}"
                remedy = f"lower the reservation there, restore the memory, or {ADMIT_AGAIN}"
                yield Violation.of(allocation, Rule.MEMORY_CAPACITY, message, remedy, name)

    def _room(self, kind: str, nodes: Mask) -> int:
        allocatable = self._rules.memory.allocatable
        return sum(allocatable[node].get(kind, 0) for node in nodes if node in allocatable)


def memory_samples(rules: HostPolicy, ledger: Ledger) -> Iterator[Sample]:
    """Yield the samples of the gauges of memory."""
    for node in rules.machine.nodes:
        yield from _node_samples(rules, ledger, node)
    yield from assignment_samples(MEMORY, ledger, _assignment)
    unused = Counter[str]()
    for allocation in ledger.allocations.values():
        for found in unused_budget(allocation):
            unused[found.resource] += found.unused if is_memory_type(found.resource) else 0
    for type_name in sorted({MEMORY, *+unused}):
        yield Sample(UNUSED_BUDGET_MEMORY, (type_name,), unused[type_name])


def _node_samples(rules: HostPolicy, ledger: Ledger, node: MachineNode) -> Iterator[Sample]:
    facts, charge = rules.memory, memory_charge(ledger).get(node.id)
    allocated_by_type: Mapping[str, int] = charge.reserved if charge is not None else {}
    for type_name, total in _usable(facts.total[node.id]):
        if type_name == MEMORY and node.memory_bytes is None:
            continue
        allocated = allocated_by_type.get(type_name, 0)
        reserved = facts.reserved[node.id].get(type_name, 0)
        labels = (str(node.id), type_name)
        yield Sample(NODE_MEMORY, (*labels, "allocated"), allocated)
        yield Sample(NODE_MEMORY, (*labels, "reserved"), reserved)
        yield Sample(NODE_MEMORY, (*labels, "free"), max(0, total - allocated - reserved))


def _usable(total: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the bytes by memory type; MemTotal includes the huge page pools, here separate."""
    pools = sum(size for type_name, size in total.items() if type_name != MEMORY)
    for type_name, size in total.items():
        yield type_name, size - pools if type_name == MEMORY else size


def _assignment(allocation: PodAllocation, container: ContainerAllocation) -> str:
    """Return the assignment type of a container's memory.

    Within a budget only a Guaranteed container has exclusive memory, as much as its limit. All
    other containers share the rest.
    """
    if not any(block.size for block in container.memory):
        return SHARED
    if not allocation.memory:
        return "node_exclusive"
    if container.isolation is Isolation.CONTAINER:
        return "pod_exclusive"
    size = sum(block.size for block in container.memory if block.type == MEMORY)
    own = size == container.limits.get(MEMORY) and container.why != NOT_GUARANTEED
    return "pod_exclusive" if own else "pod_shared"


_NODE: Final = "node"
_POD: Final = "pod"


@final
class MemoryManager(ResourceManager):
    """The manager of `memory` and `hugepages-*`; policy `None` allocates no memory.

    Amounts are bytes by memory type. Its part of a container's allocation and of a budget are
    blocks, its part of the ledger is the charge by node.
    """

    name = MEMORY
    of_nodes = True
    gauges = MEMORY_GAUGES

    def demand(self, request: PodRequest) -> ResourceDemand:
        return memory_demand(request)

    def amount(self, demanded: Mapping[str, int], resource: str) -> int:
        return demanded.get(resource, 0)

    def start(
        self, rules: HostPolicy, part: Mapping[int, NodeMemory], demand: PodDemand
    ) -> MemoryDraft:
        facts, classes = rules.memory, demand.memory_classes
        if classes:
            facts = facts.only(rules.policy.memory.nodes_of(classes))
        return MemoryDraft(charge=part, facts=facts, classes=classes)

    def lacks(self, draft: Draft, container: ContainerDemand | None) -> Rejection | None:
        own, demand = memory_of(draft), draft.demand
        if own.classes and not own.facts.nodes:
            return _without_nodes(draft)
        if not demand.active(MEMORY):
            return None
        requests = demand.memory if container is None else container.memory
        try:
            require_known_types(own.facts, requests)
        except ManagerError as error:
            if container is None and _lacks_pool(demand):
                return None  # which rejects the pod first
            return _rejection(draft, error, requests, None if container is None else container.name)
        return None

    def hold(self, draft: Draft, held: Held) -> None:
        pod, own = held.allocation, memory_of(draft)
        budget = {BUDGET: pod.memory} if pod.memory else {}
        own.kept = budget | {each.name: each.memory for each in pod.containers if each.memory}
        if gone := own.kept_nodes(None) - own.facts.mask:
            where = f"{nodes_text(gone)}, which it may not use now{_classes_text(draft)}"
            message = f"the memory of the pod is on {where}"
            raise Rejected(Rejection(Reason.INFEASIBLE, message, ADMIT_AGAIN, MEMORY))

    def confine(self, draft: Draft, only: PodSets) -> None:
        # As a cordon: how many nodes are the fewest does not depend on what is free.
        own = memory_of(draft)
        closed = own.facts.cordoned | (own.facts.mask - only.nodes)
        own.facts = replace(own.facts, cordoned=closed)

    def grows(self, draft: Draft, container: ContainerDemand | None) -> bool:
        demand, kept = draft.demand, memory_of(draft).kept or {}
        if not demand.active(MEMORY):
            return False
        if container is None and not demand.pod_level:
            return any(self.grows(draft, each) for each in demand.containers)
        has = kept.get(BUDGET if container is None else container.name, ())
        asked = demand.memory if container is None else container.memory
        if container is not None and container.is_standard_init:
            return False
        sizes = {block.type: block.size for block in has}
        return any(size > sizes.get(name, 0) for name, size in asked.items())

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        if not draft.demand.active(MEMORY):
            return {}
        cpus = container.cpus if container.may_have(CPU) else 0
        return _containing(draft, _hints(draft, container.memory, cpus), container.name)

    def pod_hints(self, draft: Draft) -> ProviderHints:
        if not draft.demand.active(MEMORY):
            return {}
        if _lacks_pool(draft.demand):
            return dict.fromkeys(draft.demand.memory, ())
        cpus = draft.demand.cpus if draft.demand.active(CPU) else 0
        return _containing(draft, _hints(draft, draft.demand.memory, cpus), None)

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        _with_nodes(draft)
        if not draft.demand.active(MEMORY):
            return
        # Whether one that shares its pod's budget counts as a request is a rule of the version.
        if memory_of(draft).kept is not None and container.is_standard_init:
            _keep(draft, container.name)
            return
        shares = draft.demand.pod_level and not container.memory
        if shares and draft.rules.policy.version.rules.sharing_containers_pin_no_memory:
            return
        draft.count(MEMORY_PINNING_REQUESTS.name)
        try:
            blocks = _assign(draft, container.memory, hint, container.name)
        except Rejected:
            _count_error(draft, _NODE)
            raise
        _reuse_init_memory(draft, container, blocks)
        if blocks:
            memory_of(draft).containers[container.name] = blocks
            draft.count(ALLOCATIONS.name, MEMORY, _NODE, by=len(blocks))
            draft.count(CONTAINER_ASSIGNMENTS.name, MEMORY, "node_exclusive")

    def allocate_pod(self, draft: Draft, hint: Hint) -> None:
        # KEP-5526, "Pod Scope Allocation and Partitioning Algorithm".
        demand, own = draft.demand, memory_of(draft)
        # 1. The budget by memory type.
        if not demand.active(MEMORY):
            return
        draft.count(MEMORY_PINNING_REQUESTS.name)
        try:
            # 2. A container that shares the budget must not be left without memory. The hints were
            #    empty then, but best-effort does not reject a pod for that.
            reject_if(self.empty_pool(draft, Reason.EMPTY_POD_SHARED_POOL))
            # 3. Charge the budget as a whole.
            blocks = _assign(draft, demand.memory, hint, None)
        except Rejected:
            _count_error(draft, _POD)
            raise
        if not blocks:
            return
        own.pod = blocks
        # 4. Divide the budget. All blocks are on the same nodes.
        for name, part in divide_memory(blocks[0].nodes, demand).items():
            own.containers[name] = part.blocks
            if part.exclusive:
                draft.count(ALLOCATIONS.name, MEMORY, _POD)
                draft.count(CONTAINER_ASSIGNMENTS.name, MEMORY, "pod_exclusive")
            else:
                draft.count(CONTAINER_ASSIGNMENTS.name, MEMORY, "pod_shared")
        # The kubelet counts a request for every init container, and for exclusive apps.
        requests = [*demand.init_containers, *[app for app in demand.apps if app.memory]]
        draft.count(MEMORY_PINNING_REQUESTS.name, by=len(requests))

    def empty_pool(self, draft: Draft, reason: Reason) -> Rejection | None:
        empty = empty_memory_pool(draft.demand) if draft.demand.active(MEMORY) else None
        return None if empty is None else Rejection(reason, empty.message, resource=empty.resource)

    def free(self, draft: Draft, resource: str) -> Mapping[int, int]:
        return free_memory(memory_of(draft).facts, memory_of(draft).charge, resource)

    def amount_text(self, resource: str, amount: int) -> str:
        return size_text(amount)

    def offer_text(self, draft: Draft, resource: str, asked: int, fit: str) -> str:
        return f"{super().offer_text(draft, resource, asked, fit)}{_classes_text(draft)}"

    def nodes(
        self,
        rules: HostPolicy,
        allocation: PodAllocation,
        container: ContainerAllocation | None,
    ) -> Mask:
        nodes = EMPTY
        for each in allocation.containers if container is None else (container,):
            nodes |= rules.memory_places(each)
        for block in () if container is not None or nodes else allocation.memory:
            nodes |= block.nodes
        return nodes

    def allocatable(self, rules: HostPolicy) -> Mapping[str, int]:
        # Huge pages are taken out of memory, in which they count. Where memory is pinned, that of
        # cordoned nodes is left out.
        fit, machine = rules.policy.fit, rules.machine
        capacity = machine_capacity(machine)
        del capacity[CPU]
        reserved = {} if fit is None else fit.reserved
        left = {name: max(size - reserved.get(name, 0), 0) for name, size in capacity.items()}
        in_pages = sum(size for name, size in capacity.items() if name != MEMORY)
        left[MEMORY] = max(left[MEMORY] - in_pages, 0)
        if machine.unknown_memory:
            del left[MEMORY]
        if not rules.static_memory:
            return left
        facts = rules.memory
        cordoned = [types for node, types in facts.allocatable.items() if node in facts.cordoned]
        return {
            name: max(size - sum(types.get(name, 0) for types in cordoned), 0)
            for name, size in left.items()
        }

    def beyond_allocatable(
        self, rules: HostPolicy, part: Mapping[int, NodeMemory], resource: str
    ) -> int:
        nodes = (node for node in rules.memory.cordoned if node in part)
        return sum(part[node].reserved.get(resource, 0) for node in nodes)

    def violations(
        self,
        rules: HostPolicy,
        ledger: Ledger,
        offline: Mask,
    ) -> Callable[[PodAllocation], Iterable[Violation]]:
        return memory_violations(rules)

    def samples(self, rules: HostPolicy, ledger: Ledger) -> Iterable[Sample]:
        return memory_samples(rules, ledger)

    def empty(self, rules: HostPolicy) -> Mapping[int, NodeMemory]:
        # Under policy None no node is charged.
        return initial_memory(rules.memory) if rules.static_memory else {}

    def charged(
        self, rules: HostPolicy, part: Mapping[int, NodeMemory], allocation: PodAllocation
    ) -> Mapping[int, NodeMemory]:
        # In full, even where a node has less.
        return charge_allocation(rules.memory, part, allocation) if part else part

    def released(
        self, rules: HostPolicy, part: Mapping[int, NodeMemory], allocation: PodAllocation
    ) -> Mapping[int, NodeMemory]:
        if allocation.memory:
            return release(rules.memory, part, allocation.memory)
        for container in allocation.containers:
            if container.memory:
                part = release(rules.memory, part, container.memory)
        return part

    def loaded(
        self,
        saved: Mapping[int, NodeMemory] | None,
        allocations: Iterable[PodAllocation],
    ) -> Mapping[int, NodeMemory]:
        # The charge depends on releases, too, not only on the allocations.
        return saved or {}

    def settled(self, draft: Draft, allocation: PodAllocation) -> Mapping[int, NodeMemory]:
        # It was charged while it was allocated.
        return memory_of(draft).charge

    def finished(
        self,
        rules: HostPolicy,
        part: Mapping[int, NodeMemory],
        containers: Sequence[ContainerAllocation],
    ) -> tuple[Mapping[int, NodeMemory], Sequence[ContainerAllocation]]:
        # As the kubelet v1.36 releases it (memorymanager, AddContainer).
        charge = release_finished(rules.memory, part, [each.memory for each in containers])
        return charge, [replace(each, memory=()) if each.memory else each for each in containers]

    def restored(
        self,
        rules: HostPolicy,
        part: Mapping[int, NodeMemory] | None,
        allocations: Mapping[str, PodAllocation],
    ) -> Mapping[int, NodeMemory]:
        # The saved charge is kept if nodes and memory types are the same: its division over NUMA
        # groups depends on the order of earlier releases. Otherwise (another memory policy, another
        # machine) it is computed again from the allocations, in full even where a node has less, so
        # that no memory is allocated twice, and without nodes that the machine no longer has.
        if part is not None and _same_shape(self.empty(rules), part):
            return part
        charge = self.empty(rules)
        for allocation in allocations.values():
            charge = self.charged(rules, charge, allocation)
        return charge

    def renumbered(
        self, allocated: tuple[MemoryBlock, ...], moves: Mapping[int, int]
    ) -> tuple[MemoryBlock, ...]:
        return tuple(
            replace(block, nodes=renumbered_nodes(block.nodes, moves)) for block in allocated
        )


def _same_shape(fresh: Mapping[int, NodeMemory], saved: Mapping[int, NodeMemory]) -> bool:
    return fresh.keys() == saved.keys() and all(
        saved[node].reserved.keys() <= fresh[node].reserved.keys() for node in fresh
    )


def _lacks_pool(demand: PodDemand) -> bool:
    return demand.pod_level and empty_memory_pool(demand) is not None


def _hints(draft: Draft, requests: Mapping[str, int], cpus: int) -> ProviderHints:
    """Return hints; a container without exclusive memory has no preference.

    `cpus` are how many CPUs are asked for with it. Kubelet v1.36 rejects such a container of a pod
    with pod-level resources, against KEP-5526 and its own documentation: there it runs in the
    node's shared pool.
    """
    own, machine = memory_of(draft), draft.rules.machine
    if own.classes and not own.facts.has_own_cpus(machine):
        hints = near_hints(own.facts, own.charge, requests, machine, own.reusable, draft.work())
    else:
        hints = memory_hints(own.facts, own.charge, requests, own.reusable, draft.work())
    if not draft.demand.asked.interleave:
        return hints
    least = machine.cpus.fewest_nodes(cpus)
    return {name: each and _as_wide(each, least) for name, each in hints.items()}


def _as_wide(hints: Hints, least: int) -> Hints:
    """Return the hints of at least so many nodes, of which those of just as many are preferred.

    All hints if there are none of these, as `distribute-cpus-across-numa` packs where it cannot
    distribute, and on a machine whose hints are not listed.
    """
    if isinstance(hints, HintFamily):
        return hints
    counts = [(hint, (hint.nodes or 0).bit_count()) for hint in hints]
    wide = [
        Hint(hint.nodes, preferred=hint.preferred or count == least)
        for hint, count in counts
        if count >= least
    ]
    return tuple(wide) or hints


def _with_nodes(draft: Draft) -> MemoryDraft:
    """Return the memory manager's part of a draft.

    Raises `Rejected` if no node has memory of the classes that the pod asks for.
    """
    own = memory_of(draft)
    if own.classes and not own.facts.nodes:
        raise Rejected(_without_nodes(draft))
    return own


def _containing(draft: Draft, hints: ProviderHints, container: str | None) -> ProviderHints:
    """Return the hints that have the nodes of what a running container (None: the pod) has."""
    own = memory_of(draft)
    nodes = own.kept_nodes(container).bits
    if not nodes or not own.facts.has_own_cpus(draft.rules.machine):
        return hints
    return {name: None if each is None else _having(each, nodes) for name, each in hints.items()}


def _having(hints: Hints, nodes: int) -> Hints:
    if isinstance(hints, HintFamily):
        return hints.containing(nodes)
    return tuple([hint for hint in hints if not nodes & ~(hint.nodes or 0)])


def _keep(draft: Draft, container: str) -> None:
    """Leave an init container of a running pod what it has: it may have ended."""
    own = memory_of(draft)
    if blocks := (own.kept or {}).get(container, ()):
        own.containers[container] = blocks
        for block in blocks:
            own.charge = with_block(own.facts, own.charge, block)


def _without_nodes(draft: Draft) -> Rejection:
    by_class: dict[str, list[int]] = {}
    for node, name in draft.rules.policy.memory.classes.items():
        by_class.setdefault(name or "unknown", []).append(node)
    has = ", ".join(f"{name} ({nodes_text(Mask.from_ids(on))})" for name, on in by_class.items())
    asked = memory_of(draft).classes
    message = f"the pod asks for memory {asked}, which no node has; this host has {has}"
    return Rejection(Reason.REQUIREMENT, message, resource=MEMORY)


def _classes_text(draft: Draft) -> str:
    """Return which nodes a pod may use, for a message, "" where these are all."""
    own = memory_of(draft)
    return f"; memory {own.classes} is asked: {nodes_text(own.facts.mask)}" if own.classes else ""


def _assign(
    draft: Draft, requests: Mapping[str, int], hint: Hint, container: str | None
) -> tuple[MemoryBlock, ...]:
    own, machine, work = memory_of(draft), draft.rules.machine, draft.work()
    facts, charge, reusable = own.facts, own.charge, own.reusable
    if nodes := own.kept_nodes(container).bits:
        # A running pod keeps its nodes, and has more where these have too little.
        enough = all(
            sum(free_memory(facts, charge, name)[node] for node in iter_bits(nodes)) >= size
            for name, size in requests.items()
        )
        hint = Hint(nodes if enough else nodes | (hint.nodes or 0), hint.preferred)
    try:
        if own.classes and requests and not nodes:
            hint = near_alignment(facts, charge, requests, machine, hint, reusable, work)
        blocks, own.charge = assign(facts, charge, requests, hint, reusable, work)
    except ManagerError as error:
        raise Rejected(_rejection(draft, error, requests, container)) from error
    return blocks


def _reuse_init_memory(
    draft: Draft, container: ContainerDemand, blocks: tuple[MemoryBlock, ...]
) -> None:
    """Record the memory of ended init containers that the container reuses."""
    own = memory_of(draft)
    if not (own.reusable or container.is_standard_init):
        return
    earlier: dict[str, tuple[MemoryBlock, ...]] = {}
    for init in draft.demand.init_containers:
        if init.name == container.name:
            break
        if init.is_standard_init and init.name in own.containers:
            earlier[init.name] = own.containers[init.name]
    own.containers.update(shrink_reused(earlier, blocks))
    own.reusable = reusable_after(own.reusable, blocks, standard_init=container.is_standard_init)


def _rejection(
    draft: Draft, error: ManagerError, requests: Mapping[str, int], container: str | None
) -> Rejection:
    resource, own = _lacking(error), memory_of(draft)
    return Rejection(
        Reason.UNEXPECTED,
        f"{error.message}{_classes_text(draft)}",
        remedy=error.remedy,
        resource=resource,
        container=container,
        asked=requests.get(resource),
        free=free_memory(own.facts, own.charge, resource),
    )


def _lacking(error: ManagerError) -> str:
    """Return the memory type of a rejection, the scarcest if there are several."""
    match error:
        case UnknownMemoryTypeError():
            return error.memory_type
        case MemoryAssignmentError():
            return error.demand.scarcest
    return MEMORY


def _count_error(draft: Draft, source: str) -> None:
    draft.count(MEMORY_PINNING_ERRORS.name)
    draft.count(ALLOCATION_ERRORS.name, MEMORY, source)
