"""The CPUs reserved for the system: listed, or a quantity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.managers.cpu.assignment import NotEnoughCpusError, take
from agent.managers.cpu.strategy import strategy_of
from agent.managers.errors import ManagerError

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.policy import CpuPolicyOptions
    from sysfs.mask import Mask

_MILLICORES_PER_CPU: Final = 1000


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


def reserved_physical_cpus(topology: CpuTopology, reserved: Mask) -> Mask:
    """Return all threads of the cores that have a reserved CPU (`full-pcpus-only`)."""
    return topology.cores_of(reserved)
