"""How much of a host `systemReserved`, `kubeReserved`, `evictionHard` and `reservedMemory` keep.

Amounts of memory are bytes by memory type, of CPUs millicores. What is kept of the whole host is
the kubelet's node allocatable reservation; `reservedMemory` divides it among the nodes, or
`agent.managers.memory.reservation` does.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from agent.config.amounts import MEMORY_AVAILABLE
from agent.managers.cpu.reservation import reserve_cpus
from agent.managers.memory.reservation import spread
from agent.managers.policy import CpuManagerPolicy, IsolcpusUse
from agent.pods.model import CPU, MEMORY, PID
from agent.pods.quantity import ZERO
from agent.pods.requests import is_memory_type
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from agent.config.amounts import Threshold
    from agent.config.model import Config
    from agent.managers.machine import Machine
    from sysfs.mask import Mask


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


def reserved_cpus(config: Config, machine: Machine, offline: Mask) -> Mask:
    """Return the online CPUs that are kept: those listed, else as many as the amount needs.

    The latter are none of `unshared_cpus`, which nothing without CPUs of its own would get. Raises
    `EmptyReservationError` or `ReservationTooLargeError`.
    """
    if config.reserved_system_cpus is not None:
        return config.reserved_system_cpus - offline - machine.withheld_cpus
    if config.cpu_manager_policy is not CpuManagerPolicy.STATIC:
        return EMPTY
    return reserve_cpus(
        machine.cpus,
        config.cpu_options,
        config.reserved_millicpus,
        config.version,
        apart=unshared_cpus(config, machine),
    )


def unshared_cpus(config: Config, machine: Machine) -> Mask:
    """Return the CPUs of isolcpus, offline ones too, where these are for exclusive use."""
    static = config.cpu_manager_policy is CpuManagerPolicy.STATIC
    exclusive = static and config.agent.isolated_cpus is IsolcpusUse.EXCLUSIVE
    return machine.isolated if exclusive else EMPTY


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
