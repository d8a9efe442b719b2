from __future__ import annotations

import pytest

from agent.managers.cpu.take import EmptyReservationError, ReservationTooLargeError, reserve_cpus
from agent.managers.cpu.topology import CpuTopology
from agent.managers.policy import CpuPolicyOptions
from sysfs.mask import Mask
from tests.agent.managers.cpu.cpu_hosts import TWO_SOCKETS

PACKED = CpuPolicyOptions()


@pytest.mark.parametrize(("millicores", "cpus"), [(1, "0"), (1000, "0"), (1001, "0,8")])
def test_a_quantity_is_rounded_up_to_whole_cpus(millicores: int, cpus: str) -> None:
    assert str(reserve_cpus(TWO_SOCKETS, PACKED, millicores)) == cpus


def test_a_quantity_is_chosen_by_the_policy_options() -> None:
    distributed = CpuPolicyOptions(distribute_cpus_across_numa=True)
    spread = CpuPolicyOptions(distribute_cpus_across_cores=True)

    assert str(reserve_cpus(TWO_SOCKETS, distributed, 10_000)) == "0-2,4-6,8-9,12-13"
    assert str(reserve_cpus(TWO_SOCKETS, spread, 2000)) == "0-1"


# Shows in differences.md: reserve-distributed
def test_a_quantity_is_spread_over_the_first_nodes() -> None:
    """The kubelet forgets the best distribution on four nodes and more and reserves 0-2,5."""
    topology = CpuTopology.from_rows([(n, n, n // 3, n, n // 3) for n in range(6)])
    spread = CpuPolicyOptions(distribute_cpus_across_numa=True)
    assert reserve_cpus(topology, spread, 4000) == Mask.parse("0-3")


# Shows in differences.md: reserve-quantity
def test_whole_cores_are_not_promised_to_the_system() -> None:
    """Half of the large core touches one core; whole cores would be two."""
    cores = (0, 0, 0, 0, 4, 5)
    uneven = CpuTopology.from_rows((cpu, core, 0, 0, 0) for cpu, core in enumerate(cores))

    assert str(reserve_cpus(uneven, CpuPolicyOptions(full_pcpus_only=True), 2000)) == "0-1"


# Shows in differences.md: reserve-quantity
def test_a_quantity_lies_on_few_cores_where_cores_differ() -> None:
    hybrid = CpuTopology.from_rows(
        [(0, 0, 0, 0, 0), (1, 1, 0, 0, 0), (2, 2, 0, 0, 0), (3, 2, 0, 0, 0)]
    )

    assert str(reserve_cpus(hybrid, PACKED, 2000)) == "2-3"


def test_no_reservation_is_rejected() -> None:
    with pytest.raises(EmptyReservationError, match="set reservedSystemCPUs"):
        reserve_cpus(TWO_SOCKETS, PACKED, 0)


def test_a_reservation_larger_than_the_host_is_rejected() -> None:
    with pytest.raises(ReservationTooLargeError, match="unable to reserve 17 CPUs") as caught:
        reserve_cpus(TWO_SOCKETS, PACKED, 16_500)

    assert (caught.value.asked, caught.value.online) == (17, 16)
