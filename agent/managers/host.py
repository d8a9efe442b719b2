"""The configured policy on one host, and what follows from both.

One of these is node allocatable, what all pods together may request: the capacity less the
reservations, as the kubelet has it (its nodestatus.MachineInfo). The capacity is online CPUs,
memory and huge pages of all NUMA nodes, healthy devices and `maxPods`. Huge pages are taken out of
memory, in which they count.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.memory.state import MemoryFacts, hugepages_type
from agent.managers.policy import CpuManagerPolicy, MemoryManagerPolicy
from agent.pods.model import CPU, MEMORY, extended_resource_fault
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocation import ContainerAllocation
    from agent.managers.machine import Machine
    from agent.managers.policy import NodeFit, PluginDevice, Policy


class Allocatable(Struct, frozen=True):
    """What all pods of a node may request, by resource, and how many they may be.

    `amounts` has every resource that the node offers: `cpu` in millicores, memory types in bytes,
    extended resources as numbers of devices; it lacks `memory` if that of a NUMA node is unknown.
    `limited_by` names the configuration keys that determine `pods`. `ignored` and `beside_kubelet`
    are those of `NodeFit`.
    """

    amounts: Mapping[str, int]
    pods: int
    limited_by: tuple[str, ...] = ("maxPods",)
    ignored: frozenset[str] = frozenset()
    beside_kubelet: bool = False

    def ignores(self, resource: str) -> bool:
        """Return whether requests of a resource are not looked at: something else provides it."""
        if resource in self.ignored:
            return True
        if not self.beside_kubelet or resource in self.amounts:
            return False
        return extended_resource_fault(resource) is None


def machine_capacity(machine: Machine) -> dict[str, int]:
    """Return all CPUs in millicores, and the bytes of memory and of each huge page size."""
    capacity = {
        CPU: 1000 * len(machine.cpus.all),
        MEMORY: sum(node.known_memory for node in machine.nodes),
    }
    for node in machine.nodes:
        for size, count in node.hugepages.items():
            name = hugepages_type(size)
            capacity[name] = capacity.get(name, 0) + size * count
    return capacity


def pod_limit(fit: NodeFit, machine: Machine) -> tuple[int, tuple[str, ...]]:
    """Return how many pods the node may have, and the configuration keys that say so."""
    by_core = fit.pods_per_core * len(machine.cpus.all)
    if not by_core or by_core > fit.max_pods:
        return fit.max_pods, ("maxPods",)
    return by_core, ("podsPerCore",) if by_core < fit.max_pods else ("maxPods", "podsPerCore")


class HostPolicy(Struct, frozen=True, dict=True):
    """What every resource manager decides by; built again when host or configuration change."""

    machine: Machine
    policy: Policy

    @cached_property
    def assignable_cpus(self) -> Mask:
        """The CPUs that may be allocated exclusively: online and not reserved."""
        return self.machine.cpus.all - self.policy.cpu.reserved

    @cached_property
    def cordoned_cpus(self) -> Mask:
        """The online CPUs that are cordoned, by themselves or with their node."""
        cordon, cpus = self.policy.cordon, self.machine.cpus
        return (cordon.cpus & cpus.all) | cpus.cpus_in_nodes(cordon.nodes)

    @cached_property
    def open_cpus(self) -> Mask:
        """The CPUs from which new exclusive CPUs are allocated: assignable and not cordoned."""
        cpus = self.assignable_cpus - self.cordoned_cpus
        return cpus if self.policy.cpu.only is None else cpus & self.policy.cpu.only

    @cached_property
    def closed_physical_cpus(self) -> Mask:
        """Reserved and cordoned CPUs and their siblings, which whole-core requests cannot use."""
        closed = self.policy.cpu.reserved | self.cordoned_cpus
        if self.policy.cpu.only is not None:
            closed |= self.machine.cpus.all - self.open_cpus
        return self.machine.cpus.cores_of(closed)

    @property
    def host_is_even(self) -> bool:
        """Whether the kubelet's averages hold: cores, sockets and caches are of one size each."""
        return self.machine.cpus.is_even

    @cached_property
    def memory(self) -> MemoryFacts:
        """Allocatable memory by node and type."""
        return MemoryFacts.of(self.machine, self.policy.memory, self.policy.cordon.nodes)

    def memory_places(self, container: ContainerAllocation) -> Mask:
        """Return the nodes of a container's pinned memory, empty where it is not pinned.

        Of a pod that asks for classes of memory, memory without CPUs on its node counts as on the
        nearest node with CPUs, one of the container's if possible.
        """
        if not container.memory or not container.memory_nodes:
            return container.mems if container.memory else EMPTY
        cpus, found = self.machine.cpus.nodes_of(container.cpus or EMPTY), EMPTY
        for node in container.mems:
            near = self.machine.nearest.get(node, Mask.of(node))
            found |= near & cpus or (EMPTY if near & found else Mask.of(near.lowest))
        return found

    @cached_property
    def devices(self) -> Mapping[str, tuple[PluginDevice, ...]]:
        """The inventory; devices that are on cordoned nodes alone count as not healthy."""
        nodes = self.policy.cordon.nodes
        if not nodes:
            return self.policy.devices
        return {
            resource: tuple(
                replace(each, healthy=False) if each.nodes and each.nodes <= nodes else each
                for each in inventory
            )
            for resource, inventory in self.policy.devices.items()
        }

    @property
    def static_cpus(self) -> bool:
        """Whether the CPU manager allocates exclusive CPUs (policy static)."""
        return self.policy.cpu.policy is CpuManagerPolicy.STATIC

    @property
    def static_memory(self) -> bool:
        """Whether the memory manager pins memory (policy Static)."""
        return self.policy.memory.policy is MemoryManagerPolicy.STATIC
