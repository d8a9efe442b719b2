"""The parts of the memory manager: what pods demand, what a draft and the ledger have."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from agent.managers.allocations.allocation import Isolation
from agent.managers.allocations.demand import NOT_GUARANTEED, ResourceDemand
from agent.managers.allocations.from_parts import PodPart
from agent.managers.allocations.unused_budget import unused_budget
from agent.managers.assessment.violation import ADMIT_AGAIN, Rule, Violation
from agent.managers.decision import SHARED, Sample, assignment_samples, gauge
from agent.managers.memory.state import charged_blocks, memory_charge
from agent.managers.policy import MemoryManagerPolicy
from agent.pods.model import MEMORY
from agent.pods.quantity import MAX_INT64, Quantity
from agent.pods.requests import is_memory_type, memory_requests, pod_memory_requests
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agent.managers.allocations.allocation import (
        ContainerAllocation,
        MemoryBlock,
        PodAllocation,
    )
    from agent.managers.allocations.demand import PodRequest
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.draft import Draft
    from agent.managers.host_policy import HostPolicy
    from agent.managers.machine import MachineNode
    from agent.managers.memory.state import NodeMemory
    from sysfs.mask import Mask

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


class MemoryDraft(PodPart):
    """The charge of memory with what the pod under admission has so far.

    `containers` are blocks by name, `pod` the blocks of the budget. `reusable` are bytes by nodes
    (bits) and memory type of standard init containers of this pod, which a later container of the
    pod may get.
    """

    charge: Mapping[int, NodeMemory] = field(default_factory=dict)
    reusable: dict[tuple[int, str], int] = field(default_factory=dict)


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


# --- what is allocated --------------------------------------------------------------------------


def memory_violations(
    rules: HostPolicy,
) -> Callable[[PodAllocation], Iterator[Violation]]:
    """Return a function that yields the violations of one allocation after the other."""
    earlier = _Earlier(rules)

    def check(allocation: PodAllocation) -> Iterator[Violation]:
        blocks = tuple(charged_blocks(allocation))
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
