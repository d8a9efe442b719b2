"""The order in which free CPUs are taken: the fullest place first.

That is the order of `cpu_assignment.go` in kubelet v1.36: by the number of free CPUs, then by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.cpu_topology import CpuGroup, CpuTopology, Groups


def rank(groups: Groups, free: int) -> list[CpuGroup]:
    """Return the groups that have free CPUs: those with the fewest first, then by id."""
    counted = [((group.cpus & free).bit_count(), group) for group in groups]
    return [group for count, group in sorted(counted) if count]


def rank_nodes(topology: CpuTopology, free: int) -> list[CpuGroup]:
    """Return the NUMA nodes that have free CPUs in the order of taking.

    Where sockets are the outer level the nodes of one socket stand together.
    """
    if topology.numa_first:
        return rank(topology.nodes, free)
    order = _nested(topology.sockets, topology.nodes_in_socket, free)
    return list(dict.fromkeys(order))


def inner_order(topology: CpuTopology, free: int) -> Iterator[CpuGroup]:
    """Yield the groups of the inner level (sockets or nodes) that have free CPUs."""
    return _nested(topology.levels.outer, topology.levels.inner_of, free)


def core_order(topology: CpuTopology, free: int) -> Iterator[CpuGroup]:
    """Yield the cores that have free CPUs; one that lies in two inner groups comes twice."""
    for inner in inner_order(topology, free):
        yield from rank(topology.levels.cores_of[inner.id], free)


def _nested(outer: Groups, inner_of: Mapping[int, Groups], free: int) -> Iterator[CpuGroup]:
    for group in rank(outer, free):
        yield from rank(inner_of[group.id], free)


def lowest(cpus: int, count: int) -> int:
    """Return the `count` lowest members of `cpus`, or all when there are no more."""
    if cpus.bit_count() <= count:
        return cpus
    low, high = 0, cpus.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (cpus & ((1 << middle) - 1)).bit_count() < count:
            low = middle + 1
        else:
            high = middle
    return cpus & ((1 << low) - 1)
