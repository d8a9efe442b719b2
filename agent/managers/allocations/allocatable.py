"""Node allocatable: what all pods together may request, the capacity less the reservations.

The kubelet's node allocatable (`nodestatus.MachineInfo`): online CPUs, memory and huge pages of all
NUMA nodes, healthy devices, `maxPods`. Huge pages are taken out of memory, in which they count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.memory.state import hugepages_type
from agent.pods.identity import extended_resource_fault
from agent.pods.model import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.machine import Machine
    from agent.managers.policy import NodeFit


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
