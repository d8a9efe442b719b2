"""The configured policy on one host, and what follows from both."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.memory.state import MemoryFacts
from agent.managers.policy import CpuManagerPolicy, MemoryManagerPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.machine import Machine
    from agent.managers.policy import PluginDevice, Policy
    from sysfs.mask import Mask


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
        return self.assignable_cpus - self.cordoned_cpus

    @cached_property
    def closed_physical_cpus(self) -> Mask:
        """Reserved and cordoned CPUs and their siblings, which whole-core requests cannot use."""
        return self.machine.cpus.cores_of(self.policy.cpu.reserved | self.cordoned_cpus)

    @property
    def host_is_even(self) -> bool:
        """Whether the kubelet's averages hold: cores, sockets and caches are of one size each."""
        return self.machine.cpus.is_even

    @cached_property
    def memory(self) -> MemoryFacts:
        """Allocatable memory by node and type."""
        return MemoryFacts.of(self.machine, self.policy.memory, self.policy.cordon.nodes)

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
