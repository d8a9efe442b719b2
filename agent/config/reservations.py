"""What is kept from pods: CPUs, and memory by type and node (the kubelet's node allocatable)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from agent.config.config import MEMORY_AVAILABLE
from agent.managers.memory.state import hugepages_type, page_size
from agent.pods.model import CPU, MEMORY
from agent.pods.quantity import ZERO
from agent.pods.requests import is_memory_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.config import Config, Threshold
    from agent.managers.machine import Machine, MachineNode

_MIB: Final = 1 << 20


def reserved_millicpus(config: Config) -> int:
    """Return the thousandths of CPUs that `systemReserved` and `kubeReserved` keep."""
    amounts = (config.system_reserved.get(CPU, ZERO), config.kube_reserved.get(CPU, ZERO))
    return (amounts[0] + amounts[1]).milli_value


def reserved_totals(config: Config, capacity: int) -> dict[str, int]:
    """Return the bytes to keep from pods by memory type, over all nodes.

    That is `systemReserved` + `kubeReserved` + the eviction threshold `memory.available`, the node
    allocatable reservation of the kubelet; types of which nothing is kept are left out.
    `capacity` is the memory of all nodes in bytes, of which a threshold may be a share.
    """
    totals: dict[str, int] = {}
    for amounts in (config.system_reserved, config.kube_reserved):
        for name, amount in amounts.items():
            if is_memory_type(name):
                totals[name] = totals.get(name, 0) + amount.value
    threshold = config.eviction_hard.get(MEMORY_AVAILABLE)
    if threshold is not None:
        totals[MEMORY] = totals.get(MEMORY, 0) + threshold_bytes(threshold, capacity)
    return {name: size for name, size in totals.items() if size}


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
