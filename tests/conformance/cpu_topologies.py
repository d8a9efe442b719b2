"""Recorded CPU topologies as our own, and how wide a set of CPUs lies on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.managers.cpu.topology import CpuCounts, CpuTopology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sysfs.mask import Mask

_COUNTS = ("num_cpus", "num_cores", "num_sockets", "num_numa", "num_uncore")


def topology_of(recorded: Mapping[str, Any]) -> CpuTopology:
    """Return the recorded topology with the counts that the kubelet was given."""
    return CpuTopology.from_rows(
        (tuple(row) for row in recorded["cpus"]),
        counts=CpuCounts(*(recorded[name] for name in _COUNTS)),
    )


def width(topology: CpuTopology, cpus: Mask) -> dict[str, int]:
    """Return how many NUMA nodes, sockets and cores the CPUs touch.

    A core id that stands on two nodes (one made-up topology has such) is two cores.
    """
    rows = [row for row in topology.rows if row.cpu in cpus]
    return {
        "nodes": len({row.node for row in rows}),
        "sockets": len({row.socket for row in rows}),
        "cores": len({(row.node, row.core) for row in rows}),
    }
