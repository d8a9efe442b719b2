"""Recorded topologies, gates and options as our own values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agent.config import model
from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine, MachineNode
from agent.managers.versions import KubernetesVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.policy import FeatureGates

#: Whose decisions are recorded.
RECORDED: Final = KubernetesVersion.V1_36


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
    return model.gates_of(gates, RECORDED)
