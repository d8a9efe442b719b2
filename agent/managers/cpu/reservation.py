"""Which CPUs are reserved for the system: the static policy never allocates them exclusively.

In go the host's topology, the policy options and an amount (systemReserved + kubeReserved). Out
comes a set of CPUs, chosen as for a container on an empty host. It is never empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.managers.cpu.strategy import Strategy
from agent.managers.cpu.take import NotEnoughCpusError, take
from agent.managers.errors import ManagerError
from agent.managers.versions import NEWEST, KubernetesVersion
from sysfs.mask import EMPTY

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


def reserve_cpus(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    millicores: int,
    version: KubernetesVersion = NEWEST,
    *,
    apart: Mask = EMPTY,
) -> Mask:
    """Return the CPUs for `millicores`, rounded up, none of those that are `apart`.

    Under `distribute-cpus-across-numa` every node gives CPUs. Raises `EmptyReservationError` or
    `ReservationTooLargeError`.
    """
    count = -(-millicores // _MILLICORES_PER_CPU)
    if count <= 0:
        raise EmptyReservationError
    # full-pcpus-only guarantees whole cores to containers only: where cores differ in size, the
    # reservation uses as few cores as possible instead.
    strategy = replace(Strategy.of(topology, options, version), whole_cores=False)
    try:
        return take(topology, strategy, topology.all - apart, count)
    except NotEnoughCpusError as error:
        raise ReservationTooLargeError(error.asked, error.available) from error
