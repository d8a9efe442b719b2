"""Recorded topologies and configurations as our own values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.managers.cpu_reservation import reserve_cpus
from agent.managers.cpu_topology import CpuTopology
from agent.managers.machine import Machine, MachineNode
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    CpuPolicyOptions,
    FeatureGates,
    MemoryManagerPolicy,
    MemoryPolicy,
    PluginDevice,
    Policy,
    TopologyManagerPolicy,
    TopologyManagerScope,
    TopologyPolicy,
)
from agent.pods.quantity import Quantity
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

_GATES = {
    "PodLevelResources": "pod_level_resources",
    "PodLevelResourceManagers": "pod_level_resource_managers",
    "DisableCPUQuotaWithExclusiveCPUs": "disable_cpu_quota_with_exclusive_cpus",
    "CPUManagerPolicyAlphaOptions": "cpu_manager_policy_alpha_options",
    "CPUManagerPolicyBetaOptions": "cpu_manager_policy_beta_options",
}


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
    return FeatureGates(**{_GATES[name]: value for name, value in gates.items()})


def policy_of(config: Mapping[str, Any], gates: Mapping[str, bool], machine: Machine) -> Policy:
    """Return the policy of a recorded configuration that is known to be valid."""
    return Policy(
        cpu=_cpu_policy(config["cpu"], machine),
        memory=_memory_policy(config["memory"]),
        topology=_topology_policy(config["topology"]),
        gates=gates_of(gates),
        devices={
            resource: tuple(
                PluginDevice(device["id"], Mask.from_ids(device["numa"] or ()), device["healthy"])
                for device in devices
            )
            for resource, devices in config.get("devices", {}).items()
        },
    )


def cpu_options(options: Mapping[str, str]) -> CpuPolicyOptions:
    """Return the static policy's options as recorded."""
    return CpuPolicyOptions(
        **{name.replace("-", "_"): value == "true" for name, value in options.items()}
    )


def _cpu_policy(config: Mapping[str, Any], machine: Machine) -> CpuPolicy:
    if config["policy"] != "static":
        return CpuPolicy()
    options = cpu_options(config.get("options") or {})
    listed = Mask.parse(config["reserved"]) if config.get("reserved") else EMPTY
    millis = Quantity.parse(config["quantity"]).milli_value if config.get("quantity") else 0
    reserved = listed or reserve_cpus(machine.cpus, options, millis)
    return CpuPolicy(CpuManagerPolicy.STATIC, options, reserved)


def _memory_policy(config: Mapping[str, Any]) -> MemoryPolicy:
    if config["policy"] != "Static":
        return MemoryPolicy()
    reserved = {
        entry["numa"]: {
            name: Quantity.parse(amount).value for name, amount in entry["limits"].items()
        }
        for entry in config["reserved"]
    }
    return MemoryPolicy(MemoryManagerPolicy.STATIC, reserved)


def _topology_policy(config: Mapping[str, Any]) -> TopologyPolicy:
    options = config.get("options") or {}
    return TopologyPolicy(
        TopologyManagerPolicy(config["policy"]),
        TopologyManagerScope(config["scope"]),
        prefer_closest_numa_nodes=options.get("prefer-closest-numa-nodes") == "true",
    )
