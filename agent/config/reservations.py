"""How much of a host `systemReserved`, `kubeReserved`, `evictionHard` and `reservedMemory` keep.

Amounts of memory are bytes by memory type, of CPUs millicores. What is kept of the whole host is
the kubelet's node allocatable reservation; `reservedMemory` divides it among the nodes, or `spread`
does.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from agent.config.amounts import MEMORY_AVAILABLE
from agent.managers.memory.state import hugepages_type, page_size
from agent.pods.model import CPU, MEMORY, PID
from agent.pods.quantity import ZERO
from agent.pods.requests import is_memory_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.amounts import Threshold
    from agent.config.model import Config
    from agent.managers.machine import Machine, MachineNode


def reserved_amounts(config: Config, machine: Machine) -> dict[str, int]:
    """Return what `systemReserved` and `kubeReserved` keep; processes are counted."""
    processes = sum(
        amounts.get(PID, ZERO).value for amounts in (config.system_reserved, config.kube_reserved)
    )
    millis = reserved_millis(config, machine)
    return {CPU: millis, PID: processes, **_reserved_memory_types(config)}


def reserved_millis(config: Config, machine: Machine) -> int:
    """Return the millicores that are kept; as in the kubelet, listed CPUs win over amounts."""
    listed = config.reserved_system_cpus
    return config.reserved_millicpus if listed is None else 1000 * len(listed & machine.cpus.all)


def totals_of(config: Config, machine: Machine) -> dict[str, int]:
    """Return the bytes that are kept of a machine, as `reserved_totals`."""
    return reserved_totals(config, sum(node.known_memory for node in machine.nodes))


def reserved_totals(config: Config, capacity: int) -> dict[str, int]:
    """Return the bytes that are kept of each memory type, over all nodes; no type has 0.

    That is `systemReserved` + `kubeReserved` + the eviction threshold `memory.available`.
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


def reserved_memory(config: Config, machine: Machine) -> dict[int, dict[str, int]]:
    """Return the bytes that are kept by node and type: as listed, else spread over the nodes."""
    if not config.reserved_memory:
        return spread(machine, totals_of(config, machine))
    reserved: dict[int, dict[str, int]] = {}
    for entry in config.reserved_memory:
        types = reserved.setdefault(entry.numa_node, {})
        for name, amount in entry.limits.items():
            types[name] = types.get(name, 0) + amount.value
    return reserved


def node_capacity(node: MachineNode, memory_type: str) -> int:
    """Return how many bytes of a type a node can have reserved; memory is without huge pages."""
    pages = {hugepages_type(size): size * count for size, count in node.hugepages.items()}
    if memory_type == MEMORY:
        return max(node.known_memory - sum(pages.values()), 0)
    return pages.get(memory_type, 0)


def spread(machine: Machine, totals: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """Return reservations of the nodes that sum to the total of each type.

    1. The system runs where the CPUs are: nodes with CPUs share a total by what they have of the
       type, in whole MiB or whole huge pages. The lowest of them take the rest.
    2. What these nodes cannot hold is shared by memory-only nodes (HBM, CXL) in the same way.
    3. What no node can hold is added to the lowest node with CPUs.
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
    memory_only = {node: size for node, size in capacity.items() if node not in with_cpus}
    unit = page_size(machine, memory_type) or 1
    near = min(total, sum(with_cpus.values()))
    far = min(total - near, sum(memory_only.values()))
    shares = _proportional(with_cpus, near, unit) | _proportional(memory_only, far, unit)
    lowest = min(with_cpus or memory_only)
    shares[lowest] = shares.get(lowest, 0) + total - near - far
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
