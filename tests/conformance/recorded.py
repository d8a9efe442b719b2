"""Recorded topologies and gates as our own values, and how wide a set of CPUs lies on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.config import gates as feature_gates
from agent.managers.cpu.topology import CpuCounts, CpuTopology
from agent.managers.machine import Machine, MachineNode
from agent.managers.versions import KubernetesVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.policy import FeatureGates
    from sysfs.mask import Mask

#: Whose decisions are recorded.
RECORDED: Final = KubernetesVersion.V1_36


_COUNTS = ("num_cpus", "num_cores", "num_sockets", "num_numa", "num_uncore")


def machine_of(topology: Mapping[str, Any]) -> Machine:
    """Return the machine that a recorded topology describes."""
    ids = [node["id"] for node in topology["numa"]]
    return Machine(
        CpuTopology.from_rows(tuple(row) for row in topology["cpus"]),
        tuple(
            MachineNode(
                id=node["id"],
                memory_bytes=node.get("memory", 0),
                hugepages={
                    pages["page_kb"] * 1024: pages["count"] for pages in node.get("hugepages", ())
                },
                distances=dict(zip(ids, node.get("distances", ()), strict=False)),
            )
            for node in topology["numa"]
        ),
    )


def gates_of(gates: Mapping[str, bool]) -> FeatureGates:
    """Return the feature gates of a case, which names only those that differ from defaults."""
    return feature_gates.gates_of(gates, RECORDED)


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
