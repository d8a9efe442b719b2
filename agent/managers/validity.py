"""Violations: existing allocations that the current policy would not make, and why.

Allocations are kept whatever changes (design, decision 4): the policy, an option, a reservation,
the CPUs, memory, nodes and devices of the host. A `Violation` reports an allocation that the
current policy would not make, or resources that the machine no longer has: the rule, the pod and
the remedy.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocations.origin import Origin
from agent.managers.effective_policy import shared_cpus
from agent.managers.memory.state import charged_blocks
from agent.managers.policy import TopologyManagerPolicy, TopologyManagerScope
from agent.pods.identity import full_name
from agent.pods.quantity import Quantity
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.allocations.ledger import Ledger, MemoryBlock, PodAllocation
    from agent.managers.effective_policy import EffectivePolicy

_AGAIN: Final = "remove the pod and admit it again"


class Rule(StrEnum):
    """What an allocation violates: a key of the configuration, or a fact of the host."""

    CPU_ALLOCATED_TWICE = "CPU allocated twice"
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
    DEVICE_ALLOCATED_TWICE = "device allocated twice"
    DEVICE_MISSING = "device missing"
    DEVICE_UNHEALTHY = "device unhealthy"
    POD_BUDGET = "pod-level budget"
    TOPOLOGY_POLICY = "topologyManagerPolicy"


class Violation(Struct, frozen=True):
    """One violation of the current policy by an existing allocation.

    `pod` is namespace/name; `container` is None if the violation concerns the pod as a whole.
    `message` and `remedy` are one line each.
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
    """Return all violations of the current policy, in the order of admission.

    `offline` are CPUs that exist but are offline. A pod just admitted under the same policy has no
    violations, except for shared cores on hosts whose cores differ in size, where whole cores are
    not guaranteed.
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


def _violation(
    allocation: PodAllocation, rule: Rule, message: str, remedy: str, container: str | None = None
) -> Violation:
    return Violation(
        allocation.uid,
        full_name(allocation),
        rule,
        message,
        remedy,
        container,
    )


# --- CPUs ---------------------------------------------------------------------------------------


def _of_cpus(
    rules: EffectivePolicy, allocation: PodAllocation, offline: Mask
) -> Iterator[Violation]:
    cpus = allocation.exclusive_cpus
    if not cpus:
        return
    online = rules.machine.cpus.all
    if missing := cpus - online - offline:
        message = f"has CPUs {missing}, which this host no longer has"
        yield _violation(allocation, Rule.CPU_MISSING, message, _AGAIN)
    if lost := (cpus & offline) - online:
        remedy = f"set them online again, or {_AGAIN}"
        message = f"has CPUs {lost}, which are offline"
        yield _violation(allocation, Rule.CPU_OFFLINE, message, remedy)
    if not rules.static_cpus:
        message = f"has exclusive CPUs {cpus}, policy none allocates none"
        remedy = "the CPUs are free again when the pod is removed"
        yield _violation(allocation, Rule.CPU_POLICY, message, remedy)
        return
    if reserved := cpus & rules.policy.cpu.reserved:
        message = f"has CPUs {reserved}, which are now reserved"
        remedy = f"reserve others, or {_AGAIN}"
        yield _violation(allocation, Rule.RESERVED_CPUS, message, remedy)
    if rules.policy.cpu.options.full_pcpus_only:
        yield from _shared_cores(rules, allocation)


def _shared_cores(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    cpus = allocation.exclusive_cpus
    others = rules.machine.cpus.cores_of(cpus) - cpus
    if others:
        message = f"has CPUs {cpus}, but not their siblings {others}"
        yield _violation(allocation, Rule.FULL_PCPUS_ONLY, message, _AGAIN)


# --- memory -------------------------------------------------------------------------------------


def _of_memory(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    blocks = tuple(charged_blocks(allocation))
    if not blocks:
        return
    if not rules.static_memory:
        message = "has pinned memory, policy None pins none"
        remedy = f"the memory stays pinned until the pod is removed; {_AGAIN} to unpin it"
        yield _violation(allocation, Rule.MEMORY_POLICY, message, remedy)
    present = rules.machine.node_mask
    union = EMPTY
    for _, block in blocks:
        union |= block.nodes
    if gone := union - present:
        message = f"has memory on nodes {gone}, which this host no longer has"
        yield _violation(allocation, Rule.MEMORY_NODE, message, _AGAIN)
    for name, block in blocks:
        nodes = block.nodes & present
        if nodes and block.size and not _has_type(rules, nodes, block.type):
            message = f"has {_text(block)}, a type that these nodes no longer have"
            yield _violation(allocation, Rule.MEMORY_TYPE, message, _AGAIN, name)


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
    for name, resource, device in allocation.allocated_devices():
        healthy = inventory.get((resource, device))
        if healthy is None:
            message = f"has {resource} {device}, which is no longer in the inventory"
            yield _violation(allocation, Rule.DEVICE_MISSING, message, _AGAIN, name)
        elif not healthy:
            message = f"has {resource} {device}, which is not healthy"
            yield _violation(allocation, Rule.DEVICE_UNHEALTHY, message, _AGAIN, name)


# --- alignment ----------------------------------------------------------------------------------


def _of_alignment(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    topology = rules.policy.topology
    budget = allocation.cpus is not None or bool(allocation.memory)
    if (
        budget
        and allocation.origin is not Origin.RECOVERED
        and not (rules.policy.pod_level_managers and topology.is_pod_scope)
    ):
        message = "has a pod-level budget, which these gates and this scope do not allocate"
        remedy = f"set PodLevelResourceManagers and the pod scope again, or {_AGAIN}"
        yield _violation(allocation, Rule.POD_BUDGET, message, remedy)
    if topology.policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield from _several_nodes(rules, allocation)
    if topology.policy is TopologyManagerPolicy.RESTRICTED:
        yield from _not_preferred(allocation)


def _several_nodes(rules: EffectivePolicy, allocation: PodAllocation) -> Iterator[Violation]:
    by_container = rules.policy.topology.scope is TopologyManagerScope.CONTAINER
    for name, nodes in _nodes_of_containers(rules, allocation) if by_container else ():
        if len(nodes) > 1:
            message = f"is spread over nodes {nodes}, single-numa-node allows one"
            yield _violation(allocation, Rule.TOPOLOGY_POLICY, message, _AGAIN, name)
    if by_container:
        return
    union = _nodes_of(rules, allocation.exclusive_cpus)
    for _, block in charged_blocks(allocation):
        union |= block.nodes
    if len(union) > 1:
        message = f"is spread over nodes {union}, single-numa-node allows one"
        yield _violation(allocation, Rule.TOPOLOGY_POLICY, message, _AGAIN)


def _nodes_of_containers(
    rules: EffectivePolicy, allocation: PodAllocation
) -> Iterator[tuple[str, Mask]]:
    for container in allocation.containers:
        yield container.name, _nodes_of(rules, container.cpus or EMPTY) | container.mems


def _nodes_of(rules: EffectivePolicy, cpus: Mask) -> Mask:
    """Return the nodes of CPUs; with `align-by-socket`, all nodes of a socket count as one."""
    topology = rules.machine.cpus
    nodes = topology.nodes_of(cpus)
    if rules.policy.cpu.options.align_by_socket and len(nodes) > 1:
        of_socket = topology.cpus_in_sockets_of(Mask.of(nodes.lowest))
        return EMPTY if cpus & topology.all <= of_socket else nodes
    return nodes


def _not_preferred(allocation: PodAllocation) -> Iterator[Violation]:
    """Yield containers whose recorded alignment was not preferred (policy restricted).

    Allocations made under policy none have no recorded alignment, so they are not checked.
    """
    for container in allocation.containers:
        if container.hint.nodes is not None and not container.hint.preferred:
            nodes = Mask(container.hint.nodes)
            message = f"is on nodes {nodes}, not a preferred alignment, which restricted rejects"
            yield _violation(allocation, Rule.TOPOLOGY_POLICY, message, _AGAIN, container.name)


# --- what depends on the allocations before ---------------------------------------------------


class _Earlier:
    """Allocations of earlier pods: CPUs, devices, and memory by type and set of nodes.

    `exposed` are CPUs of some pod on which containers without exclusive CPUs have to run.
    """

    def __init__(self, rules: EffectivePolicy, exposed: Mask) -> None:
        self._rules = rules
        self._exposed = exposed
        self._cpus = EMPTY
        self._devices: set[tuple[str, str]] = set()
        self._memory: dict[str, dict[Mask, int]] = {}

    def beside(self, allocation: PodAllocation) -> Iterator[Violation]:
        """Yield the violations of an allocation against the earlier ones, and add it to these."""
        yield from self._allocated_twice(allocation)
        yield from self._exposure(allocation)
        for name, block in charged_blocks(allocation):
            nodes = block.nodes & self._rules.machine.node_mask
            if nodes and block.size and _has_type(self._rules, nodes, block.type):
                yield from self._capacity(allocation, name, block, nodes)

    def _allocated_twice(self, allocation: PodAllocation) -> Iterator[Violation]:
        if twice := allocation.exclusive_cpus & self._cpus:
            message = f"has CPUs {twice}, which another pod has as well"
            yield _violation(
                allocation, Rule.CPU_ALLOCATED_TWICE, message, "remove one of the pods"
            )
        self._cpus |= allocation.exclusive_cpus
        own: set[tuple[str, str]] = set()
        for name, resource, device in allocation.allocated_devices():
            if (resource, device) in self._devices - own:
                message = f"has {resource} {device}, which another pod has as well"
                remedy = "remove one of the pods"
                yield _violation(allocation, Rule.DEVICE_ALLOCATED_TWICE, message, remedy, name)
            own.add((resource, device))
        self._devices |= own

    def _exposure(self, allocation: PodAllocation) -> Iterator[Violation]:
        if exposed := self._exposed & allocation.exclusive_cpus:
            message = f"has CPUs {exposed}, but no CPUs are left for the node's shared pool"
            remedy = "remove a pod with exclusive CPUs, or set more CPUs online"
            yield _violation(allocation, Rule.SHARED_POOL, message, remedy)

    def _capacity(
        self, allocation: PodAllocation, name: str | None, block: MemoryBlock, nodes: Mask
    ) -> Iterator[Violation]:
        by_nodes = self._memory.setdefault(block.type, {})
        by_nodes[nodes] = by_nodes.get(nodes, 0) + block.size
        for around in [mask for mask in by_nodes if nodes <= mask]:
            total = sum(size for mask, size in by_nodes.items() if mask <= around)
            room = self._room(block.type, around)
            if total > room:
                amounts = f"{Quantity.of_bytes(total)} of {Quantity.of_bytes(room)}"
                message = f"has {_text(block)}: with it {amounts} are allocated on nodes {around}"
                remedy = f"lower the reservation there, restore the memory, or {_AGAIN}"
                yield _violation(allocation, Rule.MEMORY_CAPACITY, message, remedy, name)

    def _room(self, kind: str, nodes: Mask) -> int:
        allocatable = self._rules.memory.allocatable
        return sum(allocatable[node].get(kind, 0) for node in nodes if node in allocatable)
