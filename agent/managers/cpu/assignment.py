"""Which CPUs serve a request or a reservation: the static policy's choice.

The kubelet's `takeByTopology`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.managers.cpu.accumulator import CpuAccumulator
from agent.managers.cpu.distribution import distribution
from agent.managers.cpu.sockets import on_fewer_sockets
from agent.managers.cpu.strategy import Strategy, strategy_of
from agent.managers.cpu.uneven_hosts import narrowest
from agent.managers.errors import ManagerError, cpus_text
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.policy import CpuPolicyOptions
    from agent.managers.topology.search_budget import SearchBudget

_MILLICORES_PER_CPU: Final = 1000


class NotEnoughCpusError(ManagerError):
    """A request for more CPUs than are free."""

    def __init__(self, asked: int, available: int) -> None:
        self.asked = asked
        self.available = available
        super().__init__(
            f"{cpus_text(asked)} asked, {available} available",
            "ask for fewer CPUs, or wait until another pod ends",
        )


def take_by_topology(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    available: Mask,
    count: int,
    work: SearchBudget | None = None,
) -> Mask:
    """Choose `count` of the `available` CPUs by the policy options.

    CPUs that the topology does not know are not available. The same arguments always give the
    same answer; `work` says afterwards whether a better one may have been missed. With
    `align-by-socket` they are on one socket where one has room, else on as few as have. Raises
    `NotEnoughCpusError`.
    """
    strategy = strategy_of(topology, options)
    taken = take(topology, strategy, available, count, work)
    if not options.align_by_socket:
        return taken
    inside = on_fewer_sockets(topology, available, taken, whole_cores=strategy.whole_cores)
    return taken if inside is None else take(topology, strategy, inside, count, work)


def take(
    topology: CpuTopology,
    strategy: Strategy,
    available: Mask,
    count: int,
    work: SearchBudget | None = None,
) -> Mask:
    """Choose `count` of the `available` CPUs; raises `NotEnoughCpusError`."""
    free = available.bits & topology.all.bits
    if count > free.bit_count():
        raise NotEnoughCpusError(count, free.bit_count())
    if count <= 0:
        return EMPTY
    if strategy.group_size is not None and count % strategy.group_size == 0:
        taken = _distributed(topology, strategy, free, count, work)
        if taken is not None:
            return Mask(taken)
    return Mask(_packed(topology, strategy, free, count))


def _packed(topology: CpuTopology, strategy: Strategy, free: int, count: int) -> int:
    """Fill the fullest places first (kubelet `takeByTopologyNUMAPacked`), or narrower ones.

    Where cores, sockets or caches differ in size, narrower choices may exist.
    """
    fill = partial(_filled, topology, strategy, count)
    caches_alike = topology.uncores_alike or not strategy.by_cache
    if topology.cores_alike and topology.sockets_alike and caches_alike:
        return fill(free)
    return narrowest(topology, strategy, free, count, fill)


def _filled(topology: CpuTopology, strategy: Strategy, count: int, free: int) -> int:
    accumulator = CpuAccumulator(topology, free, count, whole_cores=strategy.whole_cores)
    steps = [accumulator.take_full_outer, accumulator.take_full_inner]
    if strategy.by_cache:
        steps.append(accumulator.take_uncore)
    if strategy.spread:
        steps.append(accumulator.take_remaining_spread)
    elif topology.cores_alike:
        steps += [accumulator.take_full_cores, accumulator.take_remaining_packed]
    else:
        steps.append(accumulator.take_fewest_cores)
    for step in steps:
        if accumulator.need:
            step()
    return accumulator.taken


def _distributed(
    topology: CpuTopology, strategy: Strategy, free: int, count: int, work: SearchBudget | None
) -> int | None:
    """Take the same number from each node that is needed (`takeByTopologyNUMADistributed`).

    None when no set of nodes can be balanced. `prefer-align-cpus-by-uncorecache` plays no part.
    """
    group_size = strategy.group_size or 1
    shares = distribution(topology, free, count, group_size, work)
    if shares is None:
        return None
    taken = 0
    for node in shares:
        portions = (node.base, *(group_size,) * node.extra_groups)
        for portion in portions if topology.cores_alike else (sum(portions),):
            taken |= _packed(topology, strategy, node.cpus & ~taken, portion)
    return taken


class ReservationError(ManagerError):
    """The reservation does not fit the host; the static policy cannot start."""


class EmptyReservationError(ReservationError):
    """No CPU is reserved, so shared containers could end up without CPUs."""

    def __init__(self) -> None:
        super().__init__(
            "the static CPU manager policy needs at least one reserved CPU, none is configured",
            "set reservedSystemCPUs, or cpu in systemReserved or kubeReserved",
        )


class ReservationTooLargeError(ReservationError):
    """The reservation exceeds the online CPUs of the host."""

    def __init__(self, asked: int, online: int) -> None:
        self.asked = asked
        self.online = online
        super().__init__(
            f"unable to reserve {asked} CPUs: {online} are online",
            "lower cpu in systemReserved and kubeReserved",
        )


def reserve_cpus(topology: CpuTopology, options: CpuPolicyOptions, millicores: int) -> Mask:
    """Return the CPUs for a quantity in millicores (systemReserved + kubeReserved), rounded up.

    The CPUs are chosen as for a container, by the same policy options (so that, for example,
    `distribute-cpus-across-numa` reserves on every node). `full-pcpus-only` guarantees whole cores
    to containers, not to the system: where cores differ, the reservation uses as few as possible.
    Raises `EmptyReservationError` or `ReservationTooLargeError`.
    """
    count = -(-millicores // _MILLICORES_PER_CPU)
    if count <= 0:
        raise EmptyReservationError
    try:
        strategy = replace(strategy_of(topology, options), whole_cores=False)
        return take(topology, strategy, topology.all, count)
    except NotEnoughCpusError as error:
        raise ReservationTooLargeError(error.asked, error.available) from error
