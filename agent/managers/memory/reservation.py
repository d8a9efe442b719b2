"""How a reservation of memory is divided among NUMA nodes.

In go a machine and what is kept of each memory type, over all nodes; out comes what is kept by node
and type. The sum of a type stays, and no node has more kept than it has while another has room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.memory.state import hugepages_type, page_size
from agent.pods.model import MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.machine import Machine, MachineNode


def spread(machine: Machine, totals: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """Return reservations of the nodes that sum to the total of each type.

    1. The system runs where the CPUs are: nodes with CPUs share a total by what they have of the
       type, in whole MiB or whole huge pages. The lowest of them take the rest.
    2. What exceeds half of what these nodes have is shared by memory-only nodes (HBM, CXL) in the
       same way: a pod is aligned only where a node with CPUs has memory left.
    3. What the memory-only nodes cannot hold is shared by the nodes with CPUs all the same.
    4. What no node can hold is added to the lowest node with CPUs.
    """
    reserved: dict[int, dict[str, int]] = {node.id: {} for node in machine.nodes}
    for memory_type, total in totals.items():
        for node, size in _shares(machine, memory_type, total).items():
            if size:
                reserved[node][memory_type] = size
    return {node: types for node, types in reserved.items() if types}


def node_capacity(node: MachineNode, memory_type: str) -> int:
    """Return how many bytes of a type a node can have reserved; memory is without huge pages."""
    pages = {hugepages_type(size): size * count for size, count in node.hugepages.items()}
    if memory_type == MEMORY:
        return max(node.known_memory - sum(pages.values()), 0)
    return pages.get(memory_type, 0)


def _shares(machine: Machine, memory_type: str, total: int) -> dict[int, int]:
    capacity = {node.id: node_capacity(node, memory_type) for node in machine.nodes}
    with_cpus = {node: size for node, size in capacity.items() if node in machine.cpus.cpus_of_node}
    memory_only = {node: size for node, size in capacity.items() if node not in with_cpus}
    unit = page_size(machine, memory_type) or 1
    half = sum(with_cpus.values()) // 2 // unit * unit
    far = min(max(total - half, 0), sum(memory_only.values()))
    near = min(total - far, sum(with_cpus.values()))
    shares = _proportional(with_cpus, near, unit) | _proportional(memory_only, far, unit)
    lowest = min(with_cpus or memory_only)
    shares[lowest] = shares.get(lowest, 0) + total - near - far
    return shares


def _proportional(capacity: Mapping[int, int], total: int, unit: int) -> dict[int, int]:
    """Split a total that fits by capacity, in whole units; the rest goes to the lowest nodes."""
    everything = sum(capacity.values())
    if not everything:
        return {}
    shares = {
        node: total * size // everything // unit * unit for node, size in sorted(capacity.items())
    }
    rest = total - sum(shares.values())
    for node, share in shares.items():
        more = min(rest, capacity[node] - share)
        shares[node] = share + more
        rest -= more
    return shares
