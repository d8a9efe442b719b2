"""Configurations: what is accepted resolves on a host, or is rejected there, and rules decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from agent.config.devices import criteria_text
from agent.config.load import load_config
from agent.config.model import Config, ConfigError
from agent.config.resolve import resolve
from agent.managers.registry import MANAGERS
from agent.managers.rules import EffectivePolicy
from sysfs.mask import Mask
from tests.agent.managers.hosts import SMT
from tests.agent.pods.pods import app, guaranteed, pod
from tests.fuzz.damage import damaged_document, written
from tests.fuzz.pods import check_decision
from tests.fuzz.target import Target, demand, plain_check
from tests.fuzz.texts import naive_json, naive_list

if TYPE_CHECKING:
    from random import Random


_EXAMPLE: Final = Path(__file__).resolve().parents[2] / "deploy" / "config.yaml"
_FULL: Final = {
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"},
    "cpuManagerReconcilePeriod": "1m30s",
    "reservedSystemCPUs": "0,8",
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "612Mi"}}],
    "topologyManagerPolicy": "single-numa-node",
    "topologyManagerScope": "container",
    "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "8"},
    "systemReserved": {"cpu": "500m", "memory": "256Mi"},
    "kubeReserved": {"cpu": "1500m", "memory": "256Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "featureGates": {"PodLevelResourceManagers": True, "CPUManagerPolicyBetaOptions": True},
    "cgroupDriver": "cgroupfs",
    "agent": {
        "socketGroup": "wheel",
        "metrics": {"address": "::1", "port": 9999},
        "limits": {"manifestBytes": "64Ki"},
        "devices": {"example.com/gpu": [{"id": "a", "numaNodes": [0]}, {"id": "b"}]},
        "hostDevices": {
            "example.com/vf": [{"virtualFunctionsOf": "ens1f0", "driver": "vfio-pci"}],
            "example.com/nvme": [{"pciClass": "0108"}, {"vendor": "144d", "address": "0000:5e:*"}],
        },
    },
}
BASES: Final = (json.dumps(yaml.safe_load(_EXAMPLE.read_text())), json.dumps(_FULL))
_POD: Final = pod(app("a", guaranteed("cpu=2 memory=1Gi")))


def make_config(random: Random) -> bytes:
    """Draw a damaged configuration."""
    return written(random, damaged_document(random, json.loads(random.choice(BASES))))


def check_config(data: bytes) -> bool:
    """Try one configuration."""
    try:
        config = load_config(data, "fuzz")
    except ConfigError as error:
        demand(error.problems, "rejected without a reason")
        return False
    _check_bounds(config)
    _check_reading(data, config)
    try:
        policy = resolve(config, SMT)
    except ConfigError as error:
        demand(error.problems, "does not fit without a reason")
        return True
    rules = EffectivePolicy(SMT, policy, MANAGERS)
    demand(policy.cpu.reserved <= SMT.cpus.all, f"reserved {policy.cpu.reserved}")
    for node, amounts in policy.memory.reserved.items():
        demand(node in SMT.node_mask, f"memory of node {node} is reserved")
        demand(all(size >= 0 for size in amounts.values()), f"{amounts} are reserved")
    for devices in policy.devices.values():
        demand(len({device.id for device in devices}) == len(devices), "a device counts twice")
    check_decision(rules, _POD)
    return True


def _check_reading(data: bytes, config: Config) -> None:
    """Compare with what a reader of JSON alone makes of the same text."""
    document = naive_json(data)
    if document is None:
        return
    reserved = document.get("reservedSystemCPUs") or ""
    demand(set(config.reserved_system_cpus or ()) == naive_list(reserved), f"not {reserved!r}")
    demand(config.cgroup_driver == (document.get("cgroupDriver") or "cgroupfs"), "another driver")
    demand(config.cpu_manager_policy == (document.get("cpuManagerPolicy") or "none"), "not static")
    scope = document.get("topologyManagerScope") or "container"
    demand(config.topology_manager_scope == scope, f"the scope is not {scope}")


def _check_bounds(config: Config) -> None:
    agent = config.agent
    demand(0 <= agent.metrics.port <= 65535, f"port {agent.metrics.port}")
    demand(agent.limits.manifest_bytes > 0, f"manifests of {agent.limits.manifest_bytes}")
    demand(agent.limits.message_bytes > 0, f"messages of {agent.limits.message_bytes}")
    demand(config.cpu_manager_reconcile_period > 0, f"{config.cpu_manager_reconcile_period} s")
    for path in (agent.state_directory, agent.socket_path, agent.sysfs_root, agent.cgroup_mount):
        demand(path.is_absolute() and "\0" not in str(path), f"path {path}")
    demand(".." not in config.cgroup_root.split("/"), f"cgroup root {config.cgroup_root}")
    demand(all(map(criteria_text, agent.host_devices)), "a class that every device meets")
    reserved = config.reserved_system_cpus
    demand(reserved is None or isinstance(reserved, Mask), f"reserved {reserved!r}")


CONFIGS: Final = Target("config", make_config, plain_check(check_config), weight=8)
