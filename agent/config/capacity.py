"""What a policy leaves for pods: by node, of each resource, and where that is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.host import machine_capacity
from agent.managers.memory.reservation import node_capacity
from agent.managers.memory.state import hugepages_type
from agent.managers.policy import CpuManagerPolicy, MemoryManagerPolicy
from agent.pods.model import CPU, MEMORY
from agent.pods.quantity import Quantity
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.machine import Machine, MachineNode
    from agent.managers.policy import Policy
    from agent.managers.rules import EffectivePolicy


class NodeCapacity(Struct, frozen=True):
    """What one NUMA node has for pods."""

    node: int
    #: The CPUs that are online.
    cpus: Mask
    #: The CPUs that a container can have alone; none without a CPU manager.
    exclusive: Mask
    #: By memory type of the node: the bytes that are left, and how many there are. Without a memory
    #: manager nothing is reserved by node.
    memory: Mapping[str, tuple[int, int]]


def capacity_by_node(policy: Policy, machine: Machine) -> Iterator[NodeCapacity]:
    """Yield what a policy leaves pods on each node of a machine, in the order of the nodes."""
    static = policy.cpu.policy is CpuManagerPolicy.STATIC
    for node in machine.nodes:
        cpus = machine.cpus.cpus_in_nodes(Mask.of(node.id))
        exclusive = cpus - policy.cpu.reserved - split_cores(policy, machine) if static else EMPTY
        yield NodeCapacity(node.id, cpus, exclusive, _memory(policy, node))


def split_cores(policy: Policy, machine: Machine) -> Mask:
    """Return the CPUs that no container gets alone because a CPU of their core is reserved.

    With `full-pcpus-only` exclusive CPUs are whole cores.
    """
    if not policy.cpu.options.full_pcpus_only:
        return EMPTY
    return machine.cpus.cores_of(policy.cpu.reserved) - policy.cpu.reserved


def _memory(policy: Policy, node: MachineNode) -> Mapping[str, tuple[int, int]]:
    static = policy.memory.policy is MemoryManagerPolicy.STATIC
    reserved = policy.memory.reserved.get(node.id, {}) if static else {}
    types = (MEMORY, *(hugepages_type(size) for size, count in node.hugepages.items() if count))
    sizes = {name: node_capacity(node, name) for name in types}
    return {name: (max(size - reserved.get(name, 0), 0), size) for name, size in sizes.items()}


def overcommitted_memory(policy: Policy, machine: Machine) -> Iterator[str]:
    """Yield a line for each node and memory type where nothing is left beside reservations.

    As for the kubelet, that is not an error: pods get nothing of the type on that node. It happens
    when huge pages are taken from memory that was reserved.
    """
    for node in machine.nodes:
        for memory_type, size in policy.memory.reserved.get(node.id, {}).items():
            capacity = node_capacity(node, memory_type)
            if size and size >= capacity:
                has, reserved = Quantity.of_bytes(capacity), Quantity.of_bytes(size)
                yield (
                    f"node {node.id} has {has} of {memory_type} and {reserved} reserved: nothing "
                    "of it is left for pods"
                )


#: What it means that nothing of a resource is allocatable.
_EFFECT: Final = "no pod that requests any of it is admitted"


def nothing_allocatable(rules: EffectivePolicy) -> Iterator[str]:
    """Yield a line for each resource of the machine of which pods can request nothing."""
    yield from (line for _, line in _used_up(rules))
    amounts = {} if rules.allocatable is None else rules.allocatable.amounts
    for resource in rules.policy.devices:
        if amounts.get(resource) == 0:
            yield f"nothing of {resource} is allocatable, it has no healthy device: {_EFFECT}"


def admits_nothing(rules: EffectivePolicy) -> Iterator[tuple[str, str]]:
    """Yield why hardly a pod can be admitted: `cpu`, `memory` or `pods`, and a line about it."""
    limits = rules.allocatable
    if limits is not None and not limits.pods:
        yield "pods", f"{' and '.join(limits.limited_by)} allow no pod: none is admitted"
    yield from ((name, line) for name, line in _used_up(rules) if name in (CPU, MEMORY))


def _used_up(rules: EffectivePolicy) -> Iterator[tuple[str, str]]:
    """Yield the CPUs and memory types that are reserved as a whole, with a line about each."""
    limits = rules.allocatable
    if limits is None:
        return
    for name, amount in machine_capacity(rules.machine).items():
        if amount and limits.amounts.get(name) == 0 and name not in limits.ignored:
            takers = "reservations and huge pages" if name == MEMORY else "reservations"
            yield name, f"nothing of {name} is allocatable, {takers} take all of it: {_EFFECT}"
