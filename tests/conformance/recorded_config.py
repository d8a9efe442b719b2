"""Recorded configurations as the text of our own configuration file, and what comes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from agent.config.load import load_config
from agent.config.model import ConfigError
from agent.config.resolve import resolve
from tests.conformance.outcome import Outcome
from tests.conformance.recorded import RECORDED, machine_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.policy import Policy
    from agent.yaml import Plain
    from tests.conformance.outcome import Case


#: What the kubelet rejects and the agent can do: more than eight NUMA nodes, and reserved memory
#: that is not spelled out by node (it is derived, and shown).
_NOT_NEEDED: Final = ("unsupported on machines with more than", 'the total amount "0" of type')
#: What the kubelet does not look at with policy none: a mistake there is named all the same.
_IGNORED_WITH_NONE: Final = ("topologyManagerScope", "topologyManagerPolicyOptions")


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


def start_is_rejected(case: Case) -> Outcome:
    """Compare a configuration that the kubelet rejects."""
    if start_problems(case):
        return Outcome.equal()
    message = case["expected"]["start_error"]["message"]
    if message.startswith(_NOT_NEEDED):
        return Outcome.right_instead()
    return Outcome.wrong(f"starts, expected: {message}")


def rejects_what_none_ignores(case: Case, problems: list[str]) -> bool:
    """Return whether all that we reject is what the kubelet ignores with topology policy none."""
    return case["config"]["topology"]["policy"] == "none" and all(
        problem.startswith(_IGNORED_WITH_NONE) for problem in problems
    )


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
