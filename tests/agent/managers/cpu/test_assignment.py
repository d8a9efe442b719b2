from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.managers.cpu.reservation import (
    EmptyReservationError,
    ReservationTooLargeError,
    reserve_cpus,
)
from agent.managers.cpu.take import NotEnoughCpusError, take_by_topology
from agent.managers.cpu.topology import CpuTopology
from agent.managers.policy import CpuPolicyOptions
from sysfs.mask import Mask
from tests.agent.managers.cpu.cpu_hosts import (
    TWO_SOCKETS,
    Shape,
    any_hosts,
    masks_of,
    regular_hosts,
    torn,
)

PACKED = CpuPolicyOptions()
FULL = CpuPolicyOptions(full_pcpus_only=True)
SPREAD = CpuPolicyOptions(distribute_cpus_across_cores=True)
DISTRIBUTED = CpuPolicyOptions(distribute_cpus_across_numa=True)
DISTRIBUTED_FULL = CpuPolicyOptions(distribute_cpus_across_numa=True, full_pcpus_only=True)
UNCORE = CpuPolicyOptions(prefer_align_cpus_by_uncorecache=True)
OPTIONS = st.sampled_from([PACKED, FULL, SPREAD, DISTRIBUTED, DISTRIBUTED_FULL, UNCORE])


# Shows in differences.md: distribute-whole-cores
def test_distributing_ends_where_remainders_are_smaller_than_a_group() -> None:
    """The kubelet's stripe of the remainder never ends here (kubernetes issue 140730)."""
    four = Shape(sockets=4, cores=3).topology()
    free = Mask.parse("0-11,12-13,15-16,18-19,21-22")
    for count in range(2, len(free) + 1, 2):
        assert len(take_by_topology(four, DISTRIBUTED_FULL, free, count)) == count


#: Caches of two and of six CPUs.
CACHES = CpuTopology.from_rows((cpu, cpu, 0, 0, int(cpu >= 2)) for cpu in range(8))
#: Two performance cores (0,1) (2,3) and an efficiency core.
HYBRID = CpuTopology.from_rows((cpu, cpu // 2 * 2, 0, 0, 0) for cpu in range(5))
#: The core (0,1) and two cores without siblings: the average is one CPU per core.
OFFLINE = CpuTopology.from_rows((cpu, (0, 0, 2, 3)[cpu], 0, 0, 0) for cpu in range(4))


# Shows in differences.md: uneven-sizes
@pytest.mark.parametrize(
    ("topology", "options", "free", "count", "cpus"),
    [
        pytest.param(CACHES, UNCORE, "0-7", 3, "2-4", id="a cache that has room"),
        pytest.param(CACHES, UNCORE, "0-7", 4, "2-5", id="one cache rather than two"),
        pytest.param(CACHES, UNCORE, "0-7", 7, "0,2-7", id="a whole cache and a rest"),
        pytest.param(HYBRID, PACKED, "0-4", 4, "0-3", id="whole cores"),
        pytest.param(HYBRID, FULL, "0-4", 4, "0-3", id="whole cores by option"),
        pytest.param(HYBRID, PACKED, "0-4", 3, "0-1,4", id="not half of one"),
        pytest.param(OFFLINE, PACKED, "0,2-3", 2, "2-3", id="no busy sibling"),
        pytest.param(OFFLINE, PACKED, "0,2", 2, "0,2", id="unless it has to be"),
    ],
)
def test_where_caches_or_cores_differ(
    topology: CpuTopology, options: CpuPolicyOptions, free: str, count: int, cpus: str
) -> None:
    assert str(take_by_topology(topology, options, Mask.parse(free), count)) == cpus


def test_asking_for_more_than_is_free_names_both_numbers() -> None:
    with pytest.raises(NotEnoughCpusError) as caught:
        take_by_topology(TWO_SOCKETS, PACKED, Mask.parse("0-2,40"), 5)
    assert (caught.value.asked, caught.value.available) == (5, 3)
    assert "5 CPUs asked, 3 available" in str(caught.value)


@st.composite
def requests(
    draw: st.DrawFn, hosts: st.SearchStrategy[CpuTopology]
) -> tuple[CpuTopology, Mask, int]:
    topology = draw(hosts)
    free = draw(masks_of(topology))
    return topology, free, draw(st.integers(min_value=0, max_value=len(free)))


@given(requests(any_hosts()), OPTIONS)
def test_so_many_free_cpus_as_asked_and_always_the_same(
    request: tuple[CpuTopology, Mask, int], options: CpuPolicyOptions
) -> None:
    topology, free, count = request
    taken = take_by_topology(topology, options, free, count)
    assert taken <= free
    assert len(taken) == count
    assert taken == take_by_topology(topology, options, free, count)


@given(requests(regular_hosts()), st.sampled_from([FULL, DISTRIBUTED_FULL]))
def test_full_pcpus_only_never_splits_a_core_of_whole_free_ones(
    request: tuple[CpuTopology, Mask, int], options: CpuPolicyOptions
) -> None:
    topology, free, count = request
    whole = Mask(sum(core.cpus for core in topology.cores if not core.cpus & ~free.bits))
    asked = min(count, len(whole)) // topology.cpus_per_core * topology.cpus_per_core
    taken = take_by_topology(topology, options, whole, asked)
    assert not torn(topology, taken)


# Shows in differences.md: whole-cores-add-up
@given(requests(any_hosts()))
def test_full_pcpus_only_splits_no_core_where_whole_free_ones_add_up(
    request: tuple[CpuTopology, Mask, int],
) -> None:
    topology, free, count = request
    sums = {0}
    for core in topology.cores:
        if not core.cpus & ~free.bits:
            sums |= {total + core.size for total in sums}
    assume(count in sums)
    assert not torn(topology, take_by_topology(topology, FULL, free, count))


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
