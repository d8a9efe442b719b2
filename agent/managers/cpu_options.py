"""Static policy options that a host cannot serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.errors import ManagerError

if TYPE_CHECKING:
    from agent.managers.cpu_topology import CpuTopology
    from agent.managers.policy import CpuPolicyOptions


class AlignBySocketError(ManagerError):
    """`align-by-socket` on a host where a NUMA node spans sockets."""

    def __init__(self, sockets: int, nodes: int) -> None:
        self.sockets = sockets
        self.nodes = nodes
        super().__init__(
            f"cpuManagerPolicyOptions.align-by-socket: the host has {sockets} sockets and only"
            f" {nodes} NUMA nodes with CPUs, so there is nothing to align",
            "leave the option out",
        )


def require_host_fits(topology: CpuTopology, options: CpuPolicyOptions) -> None:
    """Raise `AlignBySocketError` where there are more sockets than NUMA nodes (KEP-3327)."""
    counts = topology.counts
    if options.align_by_socket and counts.sockets > counts.nodes:
        raise AlignBySocketError(counts.sockets, counts.nodes)
