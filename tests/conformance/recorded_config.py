"""Recorded configurations as the text of our own configuration file, and what comes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.config.load import load_config
from agent.config.model import ConfigError
from agent.config.resolve import resolve
from tests.conformance.recorded import RECORDED, machine_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.policy import Policy
    from agent.yaml import Plain


def config_text(config: Mapping[str, Any], gates: Mapping[str, bool]) -> str:
    """Return a configuration file that says what a recorded configuration says."""
    return json.dumps(_document(config, gates))


def resolved_policy(case: Mapping[str, Any]) -> Policy:
    """Return the policy that a recorded case starts with; raises `ConfigError`.

    What pods request is not compared with the node: the managers were recorded alone.
    """
    config = load_config(config_text(case["config"], case.get("gates") or {}), case["name"])
    policy = resolve(config, machine_of(case["topology"]), source=case["name"])
    return replace(policy, fit=None)


def start_problems(case: Mapping[str, Any]) -> list[str]:
    """Return what keeps the agent from starting with a recorded configuration."""
    try:
        resolved_policy(case)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def _document(config: Mapping[str, Any], gates: Mapping[str, bool]) -> dict[str, Plain]:
    cpu, memory, topology = config["cpu"], config["memory"], config["topology"]
    reservation = dict(memory.get("node_allocatable_reservation") or {})
    if cpu.get("quantity") is not None:
        reservation["cpu"] = cpu["quantity"]
    return {
        "cpuManagerPolicy": cpu["policy"],
        "cpuManagerPolicyOptions": cpu.get("options") or {},
        "reservedSystemCPUs": cpu.get("reserved") or "",
        "systemReserved": reservation,
        "evictionHard": {"memory.available": "0"},
        "memoryManagerPolicy": memory["policy"],
        "reservedMemory": [
            {"numaNode": entry["numa"], "limits": entry["limits"]}
            for entry in memory.get("reserved") or ()
        ],
        "topologyManagerPolicy": topology["policy"],
        "topologyManagerScope": topology["scope"],
        "topologyManagerPolicyOptions": topology.get("options") or {},
        "featureGates": dict(gates),
        "kubernetesVersion": RECORDED,
        "agent": {"devices": _devices(config.get("devices") or {})},
    }


def _devices(devices: Mapping[str, Any]) -> dict[str, Plain]:
    return {
        resource: [
            {"id": device["id"], "numaNodes": device["numa"] or [], "healthy": device["healthy"]}
            for device in inventory
        ]
        for resource, inventory in devices.items()
    }
