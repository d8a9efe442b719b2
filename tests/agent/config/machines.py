"""Small machines to resolve configurations on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine, MachineNode

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB = 1 << 30
MIB = 1 << 20


def machine(
    memory: Mapping[int, int | None],
    *,
    cpu_nodes: tuple[int, ...] = (0, 1),
    hugepages: Mapping[int, Mapping[int, int]] | None = None,
    cpus_per_node: int = 4,
    sockets: int | None = None,
) -> Machine:
    """Return a machine of nodes {id: bytes}; those of `cpu_nodes` have CPUs, numbered in a row."""
    rows = [
        (cpu, cpu, cpu % sockets if sockets else node, node, None)
        for place, node in enumerate(cpu_nodes)
        for cpu in range(place * cpus_per_node, (place + 1) * cpus_per_node)
    ]
    nodes = tuple(
        MachineNode(
            node,
            size,
            (hugepages or {}).get(node, {}),
            {other: 10 if other == node else 21 for other in memory},
        )
        for node, size in memory.items()
    )
    return Machine(CpuTopology.from_rows(rows), nodes)
