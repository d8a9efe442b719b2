"""What of a configuration does not fit a host: CPUs, nodes, memory types, amounts, options.

In goes a configuration without contradictions, and a machine; out comes each misfit as a mistake
with the path of a key to change.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from agent.config.policy_options import PREFER_CLOSEST, socket_problems
from agent.config.pools import pool_problems
from agent.config.reservations import reserved_cpus, reserved_memory, totals_of, unshared_cpus
from agent.managers.cpu.reservation import ReservationError
from agent.managers.errors import NodeDistancesError
from agent.managers.memory.state import page_size
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
)
from agent.managers.topology.merge import require_distances
from agent.pods.model import MEMORY
from agent.pods.quantity import Quantity
from agent.yaml import Mistake
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.config.model import Config
    from agent.managers.machine import Machine
    from sysfs.mask import Mask


def find_host_problems(config: Config, machine: Machine, offline: Mask) -> list[Mistake]:
    """Return everything that does not fit; `offline` are CPUs that exist but do not run."""
    return [
        *_cpu_problems(config, machine, offline),
        *_unknown_memory_problems(config, machine),
        *_memory_problems(config, machine),
        *_memory_class_problems(config, machine),
        *_device_problems(config, machine),
        *_distance_problems(config, machine),
        *_isolated_problems(config, machine, offline),
        *pool_problems(config.agent.pools, machine, offline, _kept(config, machine, offline)),
    ]


def _kept(config: Config, machine: Machine, offline: Mask) -> Mask:
    """Return the CPUs that no shared container has."""
    kept = unshared_cpus(config, machine)
    static = config.cpu_manager_policy is CpuManagerPolicy.STATIC
    if static and config.cpu_options.strict_cpu_reservation:
        with suppress(ReservationError):  # named by other checks
            kept |= reserved_cpus(config, machine, offline)
    return kept


def _isolated_problems(config: Config, machine: Machine, offline: Mask) -> Iterator[Mistake]:
    if config.reserved_system_cpus is None:
        return
    there = reserved_cpus(config, machine, offline)
    if there and there <= unshared_cpus(config, machine):
        yield Mistake(
            "agent.isolatedCPUs",
            f"all reserved CPUs ({there}) are of isolcpus ({machine.isolated}), which containers "
            "without CPUs of their own would not get; reserve a CPU outside of it",
        )


def _cpu_problems(config: Config, machine: Machine, offline: Mask) -> Iterator[Mistake]:
    if config.cpu_manager_policy is not CpuManagerPolicy.STATIC:
        return
    counts = machine.cpus.counts
    for option, message in socket_problems(
        config.cpu_options, config.topology_manager_policy, counts.sockets, counts.nodes
    ):
        yield Mistake(f"cpuManagerPolicyOptions.{option}", message)
    listed, online = config.reserved_system_cpus, machine.cpus.all
    withheld = machine.withheld_cpus
    if listed is None:
        amount = -(-config.reserved_millicpus // 1000)
        unshared = unshared_cpus(config, machine) & online
        there = len(online - unshared)
        if amount > there:
            apart = f" beside those of isolcpus ({unshared})" if unshared else ""
            yield Mistake(
                "systemReserved",
                f"systemReserved.cpu and kubeReserved.cpu reserve {amount} CPUs, this host has "
                f"{there}{apart}; lower them",
            )
    elif unknown := listed - online - offline - withheld:
        yield Mistake(
            "reservedSystemCPUs",
            f"this host has no CPU {unknown}; its CPUs are {online | offline | withheld}",
        )
    elif not listed - offline:
        yield Mistake("reservedSystemCPUs", f"all of its CPUs ({listed}) are offline; name others")
    elif not listed - offline - withheld:
        why = "; ".join(str(cpus) for cpus in machine.withheld if cpus.cpus & listed)
        yield Mistake(
            "reservedSystemCPUs",
            f"the node's shared pool can have none of its CPUs ({listed}): {why}; name one of "
            f"{online} as well",
        )


def _unknown_memory_problems(config: Config, machine: Machine) -> Iterator[Mistake]:
    """Yield what cannot be managed because a node does not show how much memory it has."""
    if not machine.unknown_memory:
        return
    which = f"the memory of node {machine.unknown_memory} of this host is not known"
    repair = "find out why its meminfo has no MemTotal, or"
    if config.memory_manager_policy is MemoryManagerPolicy.STATIC:
        yield Mistake(
            "memoryManagerPolicy",
            f"{which}, and the Static policy gives out what nodes have; {repair} set None",
        )
    if MEMORY not in config.agent.ignored_resources:
        yield Mistake(
            "agent.ignoredResources",
            f"{which}, so whether the memory that pods request fits cannot be checked; {repair} "
            "add memory here to leave it unchecked",
        )


def _memory_problems(config: Config, machine: Machine) -> Iterator[Mistake]:
    """Yield what is wrong with reservations of memory.

    1. Something is reserved.
    2. The nodes of `reservedMemory` exist.
    3. Each type exists, and amounts are whole pages.
    4. `reservedMemory` sums to what is kept of the host.
    """
    if config.memory_manager_policy is not MemoryManagerPolicy.STATIC or machine.unknown_memory:
        return
    totals = totals_of(config, machine)
    listed = reserved_memory(config, machine) if config.reserved_memory else {}
    if not totals.get(MEMORY) and not listed:
        yield Mistake(
            "memoryManagerPolicy",
            "the Static policy needs memory for the system: set systemReserved.memory, "
            "kubeReserved.memory or evictionHard memory.available to an amount above zero",
        )
    for node in listed:
        if node not in machine.node_mask:
            yield Mistake(
                "reservedMemory",
                f"this host has no NUMA node {node}; its nodes are {machine.node_mask}",
            )
    yield from _type_problems(machine, totals, listed)
    if listed:
        yield from _sum_problems(machine, totals, listed)


def _type_problems(
    machine: Machine, totals: Mapping[str, int], listed: Mapping[int, Mapping[str, int]]
) -> Iterator[Mistake]:
    keys = dict.fromkeys(totals, "systemReserved")
    keys |= {name: "reservedMemory" for types in listed.values() for name in types}
    for memory_type, key in keys.items():
        unit = page_size(machine, memory_type)
        if unit is None:
            yield Mistake(key, f"{memory_type}: no NUMA node of this host has pages of this size")
        elif memory_type != MEMORY:
            sizes = (types.get(memory_type, 0) for types in listed.values())
            if any(size % unit for size in (totals.get(memory_type, 0), *sizes)):
                yield Mistake(key, f"{memory_type}: an amount is not a whole number of pages")


def _sum_problems(
    machine: Machine, totals: Mapping[str, int], listed: Mapping[int, Mapping[str, int]]
) -> Iterator[Mistake]:
    nodes = [types for node, types in listed.items() if node in machine.node_mask]
    for memory_type in sorted({*totals, *(name for types in nodes for name in types)}):
        reserved = sum(types.get(memory_type, 0) for types in nodes)
        total = totals.get(memory_type, 0)
        if reserved != total and page_size(machine, memory_type) is not None:
            yield Mistake(
                "reservedMemory",
                f"the nodes together reserve {Quantity.of_bytes(reserved)} of {memory_type}, but "
                f"systemReserved, kubeReserved and evictionHard reserve {Quantity.of_bytes(total)} "
                "in all; make them equal, or leave reservedMemory out to have it derived",
            )


def _memory_class_problems(config: Config, machine: Machine) -> Iterator[Mistake]:
    key = "agent.isolation.memoryClasses"
    seen = EMPTY
    for name, nodes in config.agent.isolation.memory_classes.items():
        if unknown := nodes - machine.node_mask:
            yield Mistake(f"{key}.{name}", f"this host has no node {unknown}")
        if twice := nodes & seen:
            yield Mistake(f"{key}.{name}", f"node {twice} has another class already")
        seen |= nodes


def _device_problems(config: Config, machine: Machine) -> Iterator[Mistake]:
    for resource, devices in config.agent.devices.items():
        for device in devices:
            unknown = device.nodes - machine.node_mask
            if unknown:
                yield Mistake(
                    f'agent.devices["{resource}"]',
                    f"device {device.id}: this host has no NUMA node {unknown}; its nodes are "
                    f"{machine.node_mask}",
                )


def _distance_problems(config: Config, machine: Machine) -> Iterator[Mistake]:
    # Policy none compares no distances.
    if config.topology_manager_policy is TopologyManagerPolicy.NONE:
        return
    try:
        require_distances(machine.nodes, config.topology_policy)
    except NodeDistancesError as error:
        yield Mistake(f"topologyManagerPolicyOptions.{PREFER_CLOSEST}", str(error))
