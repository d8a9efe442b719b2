"""The machine as the managers see it (the kubelet's MachineInfo), made once from a host's facts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.cpu_topology import CpuTopology


@dataclass(frozen=True, slots=True)
class MachineNode:
    """One NUMA node: its memory in bytes, its huge pages as {page size in bytes: count}.

    `distances` maps node ids to ACPI SLIT distances, this node included.
    """

    id: int
    memory_bytes: int
    hugepages: Mapping[int, int]
    distances: Mapping[int, int]


@dataclass(frozen=True)
class Machine:
    """CPUs and NUMA nodes of one host; nodes without CPUs count for topology and memory."""

    cpus: CpuTopology
    nodes: tuple[MachineNode, ...]

    @cached_property
    def node_mask(self) -> Mask:
        """All NUMA nodes, memory-only ones included."""
        return Mask.from_ids(node.id for node in self.nodes)
