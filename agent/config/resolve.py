"""From a configuration and a machine to the policy in force, or to all that does not fit."""

from __future__ import annotations

import struct
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.config.kinds import MEMORY_AVAILABLE, Threshold
from agent.config.model import Config, ConfigError, host_problems, prefers_closest
from agent.managers.cpu.take import reserve_cpus
from agent.managers.device.kubelet import GivenDeviceManager
from agent.managers.errors import NodeDistancesError
from agent.managers.host import machine_capacity
from agent.managers.memory.state import hugepages_type, page_size
from agent.managers.policy import (
    CpuManagerPolicy,
    CpuPolicy,
    MemoryManagerPolicy,
    MemoryPolicy,
    NodeFit,
    Policy,
    TopologyManagerPolicy,
    TopologyPolicy,
)
from agent.managers.topology.merge import require_distances
from agent.pods.model import CPU, MEMORY, PID
from agent.pods.quantity import ZERO, Quantity
from agent.pods.requests import is_memory_type
from agent.yaml import Mistake
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.host import Allocatable
    from agent.managers.machine import Machine, MachineNode
    from agent.managers.resource_manager import ResourceManager
    from agent.managers.rules import EffectivePolicy


def managers_beside_kubelet(config: Config) -> tuple[ResourceManager, ...]:
    """Return the resource managers before those of every agent."""
    return (GivenDeviceManager(),) if config.agent.kubelet.enabled else ()


def resolve(
    config: Config, machine: Machine, *, offline: Mask = EMPTY, source: str = "configuration"
) -> Policy:
    """Return the policy in force on a machine.

    `offline` are CPUs that exist but do not run: a reserved CPU may be one of them, as it may be
    one of those that the machine withholds from pods. `source` names
    the configuration in errors. Raises `ConfigError` with everything that does not fit the
    machine: reserved CPUs, options, nodes, memory types and amounts.
    """
    problems = list(
        chain(
            _cpu_problems(config, machine, offline),
            _unknown_memory_problems(config, machine),
            _memory_problems(config, machine),
            _memory_class_problems(config, machine),
            _device_problems(config, machine),
            _distance_problems(config, machine),
        )
    )
    if problems:
        raise ConfigError(source, tuple(problems))
    return Policy(
        cpu=_cpu_policy(config, machine, offline),
        memory=_memory_policy(config, machine),
        topology=_topology_policy(config),
        gates=config.gates,
        devices=config.agent.devices,
        fit=_node_fit(config, machine),
        version=config.version,
    )


def resolve_what_fits(config: Config, machine: Machine) -> Policy:
    """Return what of a configuration fits a machine that it does not fit as a whole.

    Nothing should be decided by it: allocations that exist are kept by it.
    """
    static = config.cpu_manager_policy is CpuManagerPolicy.STATIC
    reserved = (config.reserved_system_cpus or EMPTY) & machine.cpus.all
    memory = config.memory_manager_policy is MemoryManagerPolicy.STATIC
    kept = {
        node: {name: size for name, size in types.items() if page_size(machine, name)}
        for node, types in reserved_memory(config, machine).items()
        if node in machine.node_mask
    }
    return Policy(
        cpu=CpuPolicy(
            CpuManagerPolicy.STATIC, config.cpu_options, reserved, config.agent.isolation.smt
        )
        if static
        else CpuPolicy(),
        memory=_with_classes(
            MemoryPolicy(MemoryManagerPolicy.STATIC, kept) if memory else MemoryPolicy(),
            config,
            machine,
        ),
        topology=_topology_policy(config),
        gates=config.gates,
        devices=config.agent.devices,
        fit=_node_fit(config, machine),
        version=config.version,
    )


def reserved_memory(config: Config, machine: Machine) -> dict[int, dict[str, int]]:
    """Return the bytes kept from pods by node and type: as stated, else derived.

    Without `reservedMemory` the reservation of the whole host is spread over its nodes.
    """
    if not config.reserved_memory:
        return spread(machine, _totals(config, machine))
    reserved: dict[int, dict[str, int]] = {}
    for entry in config.reserved_memory:
        types = reserved.setdefault(entry.numa_node, {})
        for name, amount in entry.limits.items():
            types[name] = types.get(name, 0) + amount.value
    return reserved


def overcommitted_memory(policy: Policy, machine: Machine) -> Iterator[str]:
    """Yield a line for each node of which reservations take all of a memory type, or more.

    As for the kubelet, that is not an error: pods get nothing of the type on that node. It happens
    when huge pages are taken from memory that was reserved.
    """
    for node in machine.nodes:
        for memory_type, size in policy.memory.reserved.get(node.id, {}).items():
            capacity = node_capacity(node, memory_type)
            if size and size >= capacity:
                yield (
                    f"node {node.id} has {_text(capacity)} of {memory_type} and {_text(size)} "
                    "reserved: nothing of it is left for pods"
                )


def nothing_allocatable(rules: EffectivePolicy) -> Iterator[str]:
    """Yield a line for each resource that the machine has and of which pods can request nothing."""
    limits = rules.allocatable
    if limits is None:
        return
    for _, line in _used_up(rules, limits):
        yield line
    for resource in rules.policy.devices:
        if not limits.amounts[resource]:
            yield f"nothing of {resource} is allocatable, it has no healthy device: {_EFFECT}"


def admits_nothing(rules: EffectivePolicy) -> Iterator[tuple[str, str]]:
    """Yield why hardly a pod can be admitted: `cpu`, `memory` or `pods`, and a line about it."""
    limits = rules.allocatable
    if limits is None:
        return
    if not limits.pods:
        yield "pods", f"{' and '.join(limits.limited_by)} allow no pod: none is admitted"
    yield from ((name, line) for name, line in _used_up(rules, limits) if name in (CPU, MEMORY))


#: What it means that nothing of a resource is allocatable.
_EFFECT: Final = "no pod that requests any of it is admitted"


def _used_up(rules: EffectivePolicy, limits: Allocatable) -> Iterator[tuple[str, str]]:
    """Yield the CPUs and memory types of which reservations take all, with a line about each."""
    for name, amount in machine_capacity(rules.machine).items():
        if amount and limits.amounts.get(name) == 0 and name not in limits.ignored:
            takers = "reservations and huge pages" if name == MEMORY else "reservations"
            yield name, f"nothing of {name} is allocatable, {takers} take all of it: {_EFFECT}"


def _node_fit(config: Config, machine: Machine) -> NodeFit:
    """Return what pods together may request; a list of reserved CPUs wins over amounts of them.

    As in the kubelet, whatever the CPU manager's policy is.
    """
    millis = _reserved_millis(config, machine)
    return NodeFit(
        reserved=MappingProxyType({CPU: millis, **_totals(config, machine)}),
        max_pods=config.max_pods,
        pods_per_core=config.pods_per_core,
        ignored=frozenset(config.agent.ignored_resources),
        beside_kubelet=config.agent.kubelet.enabled,
    )


def _reserved_millis(config: Config, machine: Machine) -> int:
    listed = config.reserved_system_cpus
    return config.reserved_millicpus if listed is None else 1000 * len(listed & machine.cpus.all)


def _totals(config: Config, machine: Machine) -> dict[str, int]:
    return reserved_totals(config, sum(node.known_memory for node in machine.nodes))


def _topology_policy(config: Config) -> TopologyPolicy:
    return TopologyPolicy(
        config.topology_manager_policy,
        config.topology_manager_scope,
        prefer_closest_numa_nodes=prefers_closest(config.topology_manager_policy_options),
    )


def _cpu_policy(config: Config, machine: Machine, offline: Mask) -> CpuPolicy:
    if config.cpu_manager_policy is not CpuManagerPolicy.STATIC:
        return CpuPolicy()
    options = config.cpu_options
    if config.reserved_system_cpus is not None:
        reserved = config.reserved_system_cpus - offline - machine.withheld_cpus
    else:
        version = config.version
        reserved = reserve_cpus(machine.cpus, options, config.reserved_millicpus, version)
    return CpuPolicy(CpuManagerPolicy.STATIC, options, reserved, config.agent.isolation.smt)


def _memory_policy(config: Config, machine: Machine) -> MemoryPolicy:
    policy = MemoryPolicy()
    if config.memory_manager_policy is MemoryManagerPolicy.STATIC:
        policy = MemoryPolicy(MemoryManagerPolicy.STATIC, reserved_memory(config, machine))
    return _with_classes(policy, config, machine)


def _with_classes(policy: MemoryPolicy, config: Config, machine: Machine) -> MemoryPolicy:
    """Return the policy with the class of each node's memory: as configured, else as shown."""
    isolation = config.agent.isolation
    stated = {node: name for name, nodes in isolation.memory_classes.items() for node in nodes}
    classes = {
        node.id: stated.get(node.id, node.memory_class)
        for node in machine.nodes
        if node.memory_bytes != 0
    }
    return replace(policy, classes=MappingProxyType(classes), usual_classes=isolation.memory)


def _cpu_problems(config: Config, machine: Machine, offline: Mask) -> Iterator[Mistake]:
    if config.cpu_manager_policy is not CpuManagerPolicy.STATIC:
        return
    options = config.cpu_options
    counts = machine.cpus.counts
    for name, message in host_problems(
        options, config.topology_manager_policy, counts.sockets, counts.nodes
    ):
        yield Mistake(f"cpuManagerPolicyOptions.{name}", message)
    yield from _reservation_problems(config, machine, offline)


def _reservation_problems(config: Config, machine: Machine, offline: Mask) -> Iterator[Mistake]:
    listed, online = config.reserved_system_cpus, machine.cpus.all
    desired = -(-config.reserved_millicpus // 1000)
    if listed is None:
        if desired > len(online):
            yield Mistake(
                "systemReserved",
                f"systemReserved.cpu and kubeReserved.cpu reserve {desired} CPUs, this host has "
                f"{len(online)}; lower them",
            )
        return
    withheld = machine.withheld_cpus
    unknown = listed - online - offline - withheld
    if unknown:
        yield Mistake(
            "reservedSystemCPUs",
            f"this host has no CPU {unknown}; its CPUs are {online | offline | withheld}",
        )
    elif not listed - offline:
        yield Mistake("reservedSystemCPUs", f"all of its CPUs ({listed}) are offline; name others")
    elif not listed - offline - withheld:
        why = "; ".join(str(each) for each in machine.withheld if each.cpus & listed)
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
    if config.memory_manager_policy is not MemoryManagerPolicy.STATIC or machine.unknown_memory:
        return
    totals = _totals(config, machine)
    stated = bool(config.reserved_memory)
    if not totals.get(MEMORY) and not stated:
        yield Mistake(
            "memoryManagerPolicy",
            "the Static policy needs memory for the system: set systemReserved.memory, "
            "kubeReserved.memory or evictionHard memory.available to an amount above zero",
        )
    reserved = reserved_memory(config, machine) if stated else {}
    yield from _node_problems(machine, reserved)
    yield from _type_problems(machine, totals, reserved)
    if stated:
        yield from _sum_problems(config, machine, totals)


def _memory_class_problems(config: Config, machine: Machine) -> Iterator[Mistake]:
    key = "agent.isolation.memoryClasses"
    seen = EMPTY
    for name, nodes in config.agent.isolation.memory_classes.items():
        if gone := nodes - machine.node_mask:
            yield Mistake(f"{key}.{name}", f"this host has no node {gone}")
        if twice := nodes & seen:
            yield Mistake(f"{key}.{name}", f"node {twice} has another class already")
        seen |= nodes


def _sum_problems(config: Config, machine: Machine, totals: Mapping[str, int]) -> Iterator[Mistake]:
    reserved = [
        types
        for node, types in reserved_memory(config, machine).items()
        if node in machine.node_mask
    ]
    for memory_type in sorted({*totals, *(name for types in reserved for name in types)}):
        found = sum(types.get(memory_type, 0) for types in reserved)
        desired = totals.get(memory_type, 0)
        if found != desired and page_size(machine, memory_type) is not None:
            yield Mistake(
                "reservedMemory",
                f"the nodes together reserve {_text(found)} of {memory_type}, but systemReserved, "
                f"kubeReserved and evictionHard reserve {_text(desired)} in all; make them equal, "
                "or leave reservedMemory out to have it derived",
            )


def _type_problems(
    machine: Machine, totals: Mapping[str, int], reserved: Mapping[int, Mapping[str, int]]
) -> Iterator[Mistake]:
    stated = {name: "reservedMemory" for types in reserved.values() for name in types}
    for memory_type, path in (dict.fromkeys(totals, "systemReserved") | stated).items():
        unit = page_size(machine, memory_type)
        if unit is None:
            yield Mistake(path, f"{memory_type}: no NUMA node of this host has pages of this size")
        elif memory_type != MEMORY:
            sizes = (*(types.get(memory_type, 0) for types in reserved.values()),)
            if any(size % unit for size in (totals.get(memory_type, 0), *sizes)):
                yield Mistake(path, f"{memory_type}: an amount is not a whole number of pages")


def _node_problems(
    machine: Machine, reserved: Mapping[int, Mapping[str, int]]
) -> Iterator[Mistake]:
    for node in reserved:
        if node not in machine.node_mask:
            yield Mistake(
                "reservedMemory",
                f"this host has no NUMA node {node}; its nodes are {machine.node_mask}",
            )


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
    """Policy none compares no distances, so it does not need any."""
    if config.topology_manager_policy is TopologyManagerPolicy.NONE:
        return
    try:
        require_distances(machine.nodes, _topology_policy(config))
    except NodeDistancesError as error:
        yield Mistake("topologyManagerPolicyOptions.prefer-closest-numa-nodes", str(error))


def _text(size: int) -> str:
    return str(Quantity.of_bytes(size))


_MIB: Final = 1 << 20


def reserved_totals(config: Config, capacity: int) -> dict[str, int]:
    """Return the bytes to keep from pods by memory type, over all nodes.

    That is `systemReserved` + `kubeReserved` + the eviction threshold `memory.available`, the node
    allocatable reservation of the kubelet; types of which nothing is kept are left out.
    `capacity` is the memory of all nodes in bytes, of which a threshold may be a share.
    """
    totals = _reserved_memory_types(config)
    threshold = config.eviction_hard.get(MEMORY_AVAILABLE)
    if threshold is not None:
        totals[MEMORY] = totals.get(MEMORY, 0) + threshold_bytes(threshold, capacity)
    return {name: size for name, size in totals.items() if size}


def _reserved_memory_types(config: Config) -> dict[str, int]:
    """Return the bytes of `systemReserved` + `kubeReserved` by memory type."""
    totals: dict[str, int] = {}
    for amounts in (config.system_reserved, config.kube_reserved):
        for name, amount in amounts.items():
            if is_memory_type(name):
                totals[name] = totals.get(name, 0) + amount.value
    return totals


def reserved_amounts(config: Config, machine: Machine) -> dict[str, int]:
    """Return what `systemReserved` and `kubeReserved` keep.

    CPUs are in millicores, memory is in bytes, processes are counted.
    """
    amounts = (config.system_reserved, config.kube_reserved)
    processes = sum(each.get(PID, ZERO).value for each in amounts)
    millis = _reserved_millis(config, machine)
    return {CPU: millis, PID: processes, **_reserved_memory_types(config)}


def threshold_bytes(threshold: Threshold, capacity: int) -> int:
    """Return a threshold in bytes; a share of the capacity is computed as the kubelet does.

    The kubelet keeps the share in single precision and multiplies in double precision
    (`evictionapi.GetThresholdQuantity`).
    """
    if threshold.percent is None:
        return (threshold.amount or ZERO).value
    return int(float(capacity) * _single(_single(float(threshold.percent)) / 100))


def _single(number: float) -> float:
    (rounded,) = struct.unpack("f", struct.pack("f", number))
    return float(rounded)


def node_capacity(node: MachineNode, memory_type: str) -> int:
    """Return how many bytes of a type a node can have reserved, its huge pages apart."""
    pages = {hugepages_type(size): size * count for size, count in node.hugepages.items()}
    if memory_type == MEMORY:
        return max(node.known_memory - sum(pages.values()), 0)
    return pages.get(memory_type, 0)


def spread(machine: Machine, totals: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """Return a reservation for every node that sums to the totals of each type.

    The system runs where the CPUs are, so nodes with CPUs share a total by what they have of the
    type, in whole MiB or whole huge pages, and the lowest of them takes the rest. Memory-only
    nodes (HBM, CXL) are touched only as far as the others are too small. What no node can hold
    stays with the lowest node.
    """
    reserved: dict[int, dict[str, int]] = {node.id: {} for node in machine.nodes}
    for memory_type, total in totals.items():
        for node, size in _shares(machine, memory_type, total).items():
            if size:
                reserved[node][memory_type] = size
    return {node: types for node, types in reserved.items() if types}


def _shares(machine: Machine, memory_type: str, total: int) -> dict[int, int]:
    capacity = {node.id: node_capacity(node, memory_type) for node in machine.nodes}
    with_cpus = {node: size for node, size in capacity.items() if node in machine.cpus.cpus_of_node}
    others = {node: size for node, size in capacity.items() if node not in with_cpus}
    unit = page_size(machine, memory_type) or 1
    near = min(total, sum(with_cpus.values()))
    far = min(total - near, sum(others.values()))
    shares = _proportional(with_cpus, near, unit) | _proportional(others, far, unit)
    first = min(with_cpus or others)
    shares[first] = shares.get(first, 0) + total - near - far
    return shares


def _proportional(capacity: Mapping[int, int], total: int, unit: int) -> dict[int, int]:
    """Split a total that fits by capacity, in whole units; the rest goes to the lowest nodes."""
    everything = sum(capacity.values())
    if not everything:
        return {}
    shares = {
        node: total * size // everything // unit * unit for node, size in sorted(capacity.items())
    }
    rest = total - sum(shares.values())
    for node, share in shares.items():
        more = min(rest, capacity[node] - share)
        shares[node] = share + more
        rest -= more
    return shares


class NodeCapacity(Struct, frozen=True):
    """What one NUMA node has for pods.

    `exclusive` are the CPUs that a container can have alone, of all `cpus` that are online; it is
    empty without a CPU manager. `memory` has by memory type the bytes that are left of how many, of
    every type that the node has; without a memory manager nothing is reserved by node.
    """

    node: int
    cpus: Mask
    exclusive: Mask
    memory: Mapping[str, tuple[int, int]]


def capacity_by_node(policy: Policy, machine: Machine) -> Iterator[NodeCapacity]:
    """Yield what a policy leaves pods on each node of a machine, in the order of the nodes."""
    static = policy.cpu.policy is CpuManagerPolicy.STATIC
    for node in machine.nodes:
        cpus = machine.cpus.cpus_in_nodes(Mask.of(node.id))
        exclusive = cpus - policy.cpu.reserved - split_cores(policy, machine) if static else EMPTY
        yield NodeCapacity(node.id, cpus, exclusive, _memory(policy, node))


def split_cores(policy: Policy, machine: Machine) -> Mask:
    """Return the CPUs that no container gets alone because a CPU of their core is reserved.

    With `full-pcpus-only` exclusive CPUs are whole cores.
    """
    if not policy.cpu.options.full_pcpus_only:
        return EMPTY
    return machine.cpus.cores_of(policy.cpu.reserved) - policy.cpu.reserved


def _memory(policy: Policy, node: MachineNode) -> Mapping[str, tuple[int, int]]:
    static = policy.memory.policy is MemoryManagerPolicy.STATIC
    reserved = policy.memory.reserved.get(node.id, {}) if static else {}
    types = (MEMORY, *(hugepages_type(size) for size, count in node.hugepages.items() if count))
    found = {name: node_capacity(node, name) for name in types}
    return {name: (max(size - reserved.get(name, 0), 0), size) for name, size in found.items()}
