"""Which of the allocations that are held would not be given under the rules in force, and why.

An allocation is a fact and is kept whatever changes (design, decision 4): the policy, an option, a
reservation, the CPUs, memory, nodes and devices of the host. What the rules in force would not
give, or the machine no longer has, is told here: which rule, which pod, what to do about it.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.effective_policy import shared_cpus
from agent.managers.memory.state import charged_blocks
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from agent.managers.recovery.from_cgroups import is_recovered
from agent.pods.quantity import Quantity
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.allocations.ledger import Ledger, MemoryBlock, PodAllocation
    from agent.managers.effective_policy import EffectivePolicy

_AGAIN: Final = "remove the pod and admit it again"


class Rule(StrEnum):
    """What an allocation violates: a key of the configuration, or a fact of the host."""

    CPU_HELD_TWICE = "CPU held twice"
    CPU_MISSING = "CPU missing"
    CPU_OFFLINE = "CPU offline"
    CPU_POLICY = "cpuManagerPolicy"
    RESERVED_CPUS = "reservedSystemCPUs"
    FULL_PCPUS_ONLY = "full-pcpus-only"
    SHARED_POOL = "shared pool"
    MEMORY_POLICY = "memoryManagerPolicy"
    MEMORY_NODE = "memory node missing"
    MEMORY_TYPE = "memory type missing"
    MEMORY_CAPACITY = "memory capacity"
    DEVICE_HELD_TWICE = "device held twice"
    DEVICE_MISSING = "device missing"
    DEVICE_UNHEALTHY = "device unhealthy"
    POD_BUDGET = "pod-level budget"
    TOPOLOGY_POLICY = "topologyManagerPolicy"


class Violation(Struct, frozen=True):
    """One thing about a held allocation that the rules in force would not give.

    `pod` is namespace/name; `container` is None where it is about the pod as a whole. `message`
    says what is the matter, `remedy` what to do; a line each.
    """

    uid: str
    pod: str
    rule: Rule
    message: str
    remedy: str
    container: str | None = None

    def __str__(self) -> str:
        where = "" if self.container is None else f", container {self.container}"
        return f"pod {self.pod}{where}: {self.message} ({self.rule}); {self.remedy}"


def invalid_allocations(
    rules: EffectivePolicy, ledger: Ledger, offline: Mask = EMPTY
) -> tuple[Violation, ...]:
    """Return all that the rules in force would not give, in the order of admission.

    `offline` are CPUs that exist but do not run. What was just admitted under the same rules has
    no findings, but for cores shared on hosts whose cores differ in size, where whole cores are
    not promised.
    """
    earlier = _Earlier(rules, shared_cpus(rules, ledger) & ledger.exclusive_cpus)
    return tuple(
        chain.from_iterable(
            (
                *_of_cpus(rules, allocation, offline),
                *_of_memory(rules, allocation),
                *_of_devices(rules, allocation),
                *_of_alignment(rules, allocation),
                *earlier.beside(allocation),
            )
            for allocation in ledger.allocations.values()
        )
    )


def _finding(
    allocation: PodAllocation, rule: Rule, message: str, remedy: str, container: str | None = None
) -> Violation:
    return Violation(
        allocation.uid,
        f"{allocation.namespace}/{allocation.name}",
        rule,
        message,
        remedy,
        container,
    )


# --- CPUs ---------------------------------------------------------------------------------------


def _of_cpus(
    rules: EffectivePolicy, allocation: PodAllocation, offline: Mask
) -> Iterator[Violation]:
    held = allocation.exclusive_cpus
    if not held:
        return
    online = rules.machine.cpus.all
    if missing := held - online - offline:
        message = f"holds CPUs {missing}, which this host no longer has"
        yield _finding(allocation, Rule.CPU_MISSING, message, _AGAIN)
    if lost := (held & offline) - online:
        remedy = f"set them online again, or {_AGAIN}"
        message = f"holds CPUs {lost}, which are offline"
        yield _finding(allocation, Rule.CPU_OFFLINE, message, remedy)
    if not rules.static_cpus:
        message = f"holds CPUs {held} of its own, policy none gives nobody any"
        remedy = "they are free again when it is removed"
        yield _finding(allocation, Rule.CPU_POLICY, message, remedy)
        return
    if reserved := held & rules.policy.cpu.reserved:
        message = f"holds CPUs {reserved}, which are reserved now"
        remedy = f"reserve others, or {_AGAIN}"
        yield _finding(allocation, Rule.RESERVED_CPUS, message, remedy)
    if rules.policy.cpu.options.full_pcpus_only:
        yield from _shared_cores(rules, allocation)


def _shared_cores(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    held = allocation.exclusive_cpus
    others = rules.machine.cpus.cores_of(held) - held
    if others:
        message = f"holds CPUs {held}, others have the siblings {others}"
        yield _finding(allocation, Rule.FULL_PCPUS_ONLY, message, _AGAIN)


# --- memory -------------------------------------------------------------------------------------


def _of_memory(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    blocks = tuple(charged_blocks(allocation))
    if not blocks:
        return
    if not rules.static_memory:
        message = "holds pinned memory, policy None pins nobody's"
        remedy = f"it stays pinned until the pod is removed; {_AGAIN} to unpin it"
        yield _finding(allocation, Rule.MEMORY_POLICY, message, remedy)
    present = rules.machine.node_mask
    union = EMPTY
    for _, block in blocks:
        union |= block.nodes
    if gone := union - present:
        message = f"holds memory on nodes {gone}, which this host no longer has"
        yield _finding(allocation, Rule.MEMORY_NODE, message, _AGAIN)
    for name, block in blocks:
        nodes = block.nodes & present
        if nodes and block.size and not _has_type(rules, nodes, block.type):
            message = f"holds {_text(block)}, of which its nodes have none any more"
            yield _finding(allocation, Rule.MEMORY_TYPE, message, _AGAIN, name)


def _has_type(rules: EffectivePolicy, nodes: Mask, name: str) -> bool:
    total = rules.memory.total
    return any(total[node].get(name, 0) for node in nodes if node in total)


def _text(block: MemoryBlock) -> str:
    return f"{Quantity.of_bytes(block.size)} of {block.type} on nodes {block.nodes}"


# --- devices ------------------------------------------------------------------------------------


def _of_devices(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    inventory = {
        (resource, device.id): device.healthy
        for resource, devices in rules.policy.devices.items()
        for device in devices
    }
    for name, resource, device in allocation.held_devices():
        healthy = inventory.get((resource, device))
        if healthy is None:
            message = f"holds {resource} {device}, which is no longer among the devices"
            yield _finding(allocation, Rule.DEVICE_MISSING, message, _AGAIN, name)
        elif not healthy:
            message = f"holds {resource} {device}, which is not healthy"
            yield _finding(allocation, Rule.DEVICE_UNHEALTHY, message, _AGAIN, name)


# --- alignment ----------------------------------------------------------------------------------


def _of_alignment(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    topology = rules.policy.topology
    budget = allocation.cpus is not None or bool(allocation.memory)
    if (
        budget
        and not is_recovered(allocation)
        and not (rules.policy.pod_level_managers and topology.is_pod_scope)
    ):
        message = "holds a budget of its own, which these gates and this scope give nobody"
        remedy = f"set PodLevelResourceManagers and the pod scope again, or {_AGAIN}"
        yield _finding(allocation, Rule.POD_BUDGET, message, remedy)
    if topology.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield from _several_nodes(rules, allocation)
    if topology.policy is TopologyManagerPolicy.RESTRICTED:
        yield from _not_preferred(allocation)


def _several_nodes(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    by_container = rules.policy.topology.scope is TopologyManagerScope.CONTAINER
    for name, nodes in _nodes_of_containers(rules, allocation) if by_container else ():
        if len(nodes) > 1:
            message = f"is spread over nodes {nodes}, single-numa-node allows one"
            yield _finding(allocation, Rule.TOPOLOGY_POLICY, message, _AGAIN, name)
    if by_container:
        return
    union = _nodes_of(rules, allocation.exclusive_cpus)
    for _, block in charged_blocks(allocation):
        union |= block.nodes
    if len(union) > 1:
        message = f"is spread over nodes {union}, single-numa-node allows one"
        yield _finding(allocation, Rule.TOPOLOGY_POLICY, message, _AGAIN)


def _nodes_of_containers(
    rules: EffectivePolicy, allocation: PodAllocation
) -> Iterator[tuple[str, Mask]]:
    for container in allocation.containers:
        yield container.name, _nodes_of(rules, container.cpus or EMPTY) | container.mems


def _nodes_of(rules: EffectivePolicy, cpus: Mask) -> Mask:
    """Return the nodes of CPUs; `align-by-socket` takes CPUs of any node of one socket as well."""
    topology = rules.machine.cpus
    nodes = topology.nodes_of(cpus)
    if rules.policy.cpu.options.align_by_socket and len(nodes) > 1:
        of_socket = topology.cpus_in_sockets_of(Mask.of(nodes.lowest))
        return EMPTY if cpus & topology.all <= of_socket else nodes
    return nodes


def _not_preferred(allocation: PodAllocation) -> Iterator[Violation]:
    """Yield containers whose recorded alignment was known not to be the best (policy restricted).

    Of what was given under policy none no alignment is recorded, and nothing is said.
    """
    for container in allocation.containers:
        if container.hint.nodes is not None and not container.hint.preferred:
            nodes = Mask(container.hint.nodes)
            message = f"was given on nodes {nodes} as a second choice, which restricted rejects"
            yield _finding(allocation, Rule.TOPOLOGY_POLICY, message, _AGAIN, container.name)


# --- what depends on the allocations before ---------------------------------------------------


class _Earlier:
    """What the pods before hold: CPUs, devices, and memory by type and set of nodes.

    `exposed` are CPUs of some pod on which containers without CPUs of their own have to run.
    """

    def __init__(self, rules: EffectivePolicy, exposed: Mask) -> None:
        self._rules = rules
        self._exposed = exposed
        self._cpus = EMPTY
        self._devices: set[tuple[str, str]] = set()
        self._memory: dict[str, dict[Mask, int]] = {}

    def beside(self, allocation: PodAllocation) -> Iterator[Violation]:
        """Yield what an allocation violates beside those before it, and count it among them."""
        yield from self._held_twice(allocation)
        yield from self._exposure(allocation)
        for name, block in charged_blocks(allocation):
            nodes = block.nodes & self._rules.machine.node_mask
            if nodes and block.size and _has_type(self._rules, nodes, block.type):
                yield from self._capacity(allocation, name, block, nodes)

    def _held_twice(self, allocation: PodAllocation) -> Iterator[Violation]:
        if twice := allocation.exclusive_cpus & self._cpus:
            message = f"holds CPUs {twice}, which another pod holds as well"
            yield _finding(allocation, Rule.CPU_HELD_TWICE, message, "remove one of the pods")
        self._cpus |= allocation.exclusive_cpus
        own: set[tuple[str, str]] = set()
        for name, resource, device in allocation.held_devices():
            if (resource, device) in self._devices - own:
                message = f"holds {resource} {device}, which another pod holds as well"
                remedy = "remove one of the pods"
                yield _finding(allocation, Rule.DEVICE_HELD_TWICE, message, remedy, name)
            own.add((resource, device))
        self._devices |= own

    def _exposure(self, allocation: PodAllocation) -> Iterator[Violation]:
        if exposed := self._exposed & allocation.exclusive_cpus:
            message = f"holds CPUs {exposed}, but no others are left for what holds none"
            remedy = "remove a pod that holds CPUs, or set more CPUs online"
            yield _finding(allocation, Rule.SHARED_POOL, message, remedy)

    def _capacity(
        self, allocation: PodAllocation, name: str | None, block: MemoryBlock, nodes: Mask
    ) -> Iterator[Violation]:
        by_nodes = self._memory.setdefault(block.type, {})
        by_nodes[nodes] = by_nodes.get(nodes, 0) + block.size
        for around in [mask for mask in by_nodes if nodes <= mask]:
            held = sum(size for mask, size in by_nodes.items() if mask <= around)
            room = self._room(block.type, around)
            if held > room:
                amounts = f"{Quantity.of_bytes(held)} of {Quantity.of_bytes(room)}"
                message = f"holds {_text(block)}: with it {amounts} are held on nodes {around}"
                remedy = f"lower the reservation there, restore the memory, or {_AGAIN}"
                yield _finding(allocation, Rule.MEMORY_CAPACITY, message, remedy, name)

    def _room(self, kind: str, nodes: Mask) -> int:
        allocatable = self._rules.memory.allocatable
        return sum(allocatable[node].get(kind, 0) for node in nodes if node in allocatable)
