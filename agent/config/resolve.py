"""From a configuration and a machine to the policy in force, or to all that does not fit.

`host_checks` finds what does not fit, `reservations` computes what is kept from pods, `capacity`
says what is left.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.config.host_checks import find_host_problems
from agent.config.model import ConfigError
from agent.config.pools import pools_on
from agent.config.reservations import reserved_cpus, reserved_memory, reserved_millis, totals_of
from agent.managers.device.kubelet import GivenDeviceManager
from agent.managers.memory.state import page_size
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    MemoryManagerPolicy,
    MemoryPolicy,
    NodeFit,
    Policy,
)
from agent.pods.model import CPU
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.model import Config
    from agent.managers.machine import Machine
    from agent.managers.resource_manager import ResourceManager


def managers_beside_kubelet(config: Config) -> tuple[ResourceManager, ...]:
    """Return the resource managers that an agent has only beside a kubelet; they go first."""
    return (GivenDeviceManager(),) if config.beside_kubelet else ()


def resolve(
    config: Config, machine: Machine, *, offline: Mask = EMPTY, source: str = "configuration"
) -> Policy:
    """Return the policy in force on a machine.

    `offline` are CPUs that exist but do not run. A reserved CPU may be offline, or withheld from
    pods by the machine. `source` names the configuration in errors. Raises `ConfigError` with
    everything that does not fit the machine.
    """
    problems = find_host_problems(config, machine, offline)
    if problems:
        raise ConfigError(source, tuple(problems))
    return _policy(
        config, machine, reserved_cpus(config, machine, offline), reserved_memory(config, machine)
    )


def resolve_what_fits(config: Config, machine: Machine) -> Policy:
    """Return the part of a configuration that fits a machine, where the whole does not.

    It serves to keep existing allocations; new ones are not decided by it.
    """
    memory = {
        node: {name: size for name, size in types.items() if page_size(machine, name)}
        for node, types in reserved_memory(config, machine).items()
        if node in machine.node_mask
    }
    cpus = (config.reserved_system_cpus or EMPTY) & machine.cpus.all
    return _policy(config, machine, cpus, memory)


def _policy(
    config: Config, machine: Machine, cpus: Mask, memory: Mapping[int, Mapping[str, int]]
) -> Policy:
    """Return the policy with reserved CPUs, and reserved bytes of memory by node and type."""
    isolation = config.agent.isolation
    cpu_policy = CpuPolicy()
    if config.cpu_manager_policy is CpuManagerPolicy.STATIC:
        cpu_policy = CpuPolicy(
            CpuManagerPolicy.STATIC,
            config.cpu_options,
            cpus,
            isolation.smt,
            machine.isolated & machine.cpus.all,
            config.agent.isolated_cpus,
        )
    if config.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        memory = {}
    return Policy(
        cpu=cpu_policy,
        memory=MemoryPolicy(
            config.memory_manager_policy,
            memory,
            classes=_memory_classes(config, machine),
            usual_classes=isolation.memory,
        ),
        topology=config.topology_policy,
        gates=config.gates,
        devices=config.agent.devices,
        fit=_node_fit(config, machine),
        version=config.version,
        pools=pools_on(config.agent.pools, machine),
    )


def _memory_classes(config: Config, machine: Machine) -> Mapping[int, str]:
    """Return the class of each node's memory: as configured, else as the host shows it."""
    configured = {
        node: name
        for name, nodes in config.agent.isolation.memory_classes.items()
        for node in nodes
    }
    return MappingProxyType(
        {
            node.id: configured.get(node.id, node.memory_class)
            for node in machine.nodes
            if node.memory_bytes != 0
        }
    )


def _node_fit(config: Config, machine: Machine) -> NodeFit:
    """Return what pods together may request, whatever the CPU manager's policy is."""
    millis = reserved_millis(config, machine)
    return NodeFit(
        reserved=MappingProxyType({CPU: millis, **totals_of(config, machine)}),
        max_pods=config.max_pods,
        pods_per_core=config.pods_per_core,
        ignored=frozenset(config.agent.ignored_resources),
        beside_kubelet=config.beside_kubelet,
    )
