"""What a configuration leaves pods on each NUMA node of a machine, for people who check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.config.reservations import node_capacity
from agent.managers.memory.state import hugepages_type
from agent.managers.policy import CpuManagerPolicy, MemoryManagerPolicy
from agent.pods.model import MEMORY
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.machine import Machine, MachineNode
    from agent.managers.policy import Policy


class NodeCapacity(Struct, frozen=True):
    """What one NUMA node has for pods.

    `exclusive` are the CPUs that a container can have alone, of all `cpus` that are online; it is
    empty without a CPU manager. `memory` has by memory type the bytes that are left of how many, of
    every type that the node has; without a memory manager nothing is reserved by node.
    """

    node: int
    cpus: Mask
    exclusive: Mask
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
    found = {name: node_capacity(node, name) for name in types}
    return {name: (max(size - reserved.get(name, 0), 0), size) for name, size in found.items()}
