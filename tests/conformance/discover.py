"""Recorded topologies as discovered by the kubelet against our own reading of the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.cpu.topology import CpuTopology, CpuTopologyError
from tests.conformance.outcome import Outcome

if TYPE_CHECKING:
    from tests.conformance.outcome import Case


def run_case(case: Case) -> Outcome:
    """Compare one case of the family `discover`: every CPU's groups, every count, average core."""
    expected = case["expected"]
    try:
        topology = CpuTopology.from_rows(tuple(row) for row in case["topology"]["cpus"])
    except CpuTopologyError as error:
        rejected = "error" in expected
        return Outcome.equal() if rejected else Outcome.wrong(f"rejected: {error}")
    counted = topology.counted
    ours = {
        "cpus_per_core": topology.cpus_per_core,
        "topology": {
            "cpus": [list(row) for row in topology.rows],
            "num_cpus": counted.cpus,
            "num_cores": counted.cores,
            "num_sockets": counted.sockets,
            "num_numa": counted.nodes,
            "num_uncore": counted.uncores,
        },
    }
    return Outcome.of(
        [
            f"{key}: {value}, kubelet {expected.get(key)}"
            for key, value in ours.items()
            if value != expected.get(key)
        ]
    )
