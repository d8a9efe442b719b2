from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.managers.cpu_topology import CpuTopology
from agent.managers.cpu_whole_cores import splits_a_core, unsplit, whole_cores
from sysfs.mask import Mask
from tests.agent.managers.cpu_hosts import TWO_SOCKETS, any_hosts, masks_of

#: Performance cores (0,1) (2,3) on node 0, efficiency cores 4 on node 0 and 5, 6, 7 on node 1.
HYBRID = CpuTopology.from_rows(
    [
        (0, 0, 0, 0, 0),
        (1, 0, 0, 0, 0),
        (2, 2, 0, 0, 0),
        (3, 2, 0, 0, 0),
        (4, 4, 0, 0, 0),
        *((cpu, cpu, 1, 1, 1) for cpu in (5, 6, 7)),
    ]
)


def test_half_a_core_is_a_split() -> None:
    assert splits_a_core(TWO_SOCKETS, Mask.parse("0,8-9").bits)
    assert not splits_a_core(TWO_SOCKETS, Mask.parse("0-1,8-9").bits)


def test_whole_cores_come_from_the_node_with_the_fewest_free_cpus() -> None:
    assert whole_cores(HYBRID, HYBRID.all.bits, 2) == Mask.parse("5-6").bits


def test_a_core_that_would_spoil_the_sum_is_passed_over() -> None:
    free = Mask.parse("0-4").bits

    assert whole_cores(HYBRID, free, 4) == Mask.parse("0-3").bits


def test_no_whole_cores_add_up() -> None:
    assert whole_cores(HYBRID, Mask.parse("0-3").bits, 3) is None
    assert whole_cores(HYBRID, Mask.parse("0,2,4").bits, 2) is None


def test_a_needless_split_is_mended_on_the_same_node() -> None:
    assert unsplit(HYBRID, HYBRID.all.bits, Mask.parse("0-2,4").bits) == Mask.parse("0-3").bits


def test_a_split_stands_when_no_whole_cores_add_up() -> None:
    chosen = Mask.parse("0").bits

    assert unsplit(HYBRID, Mask.parse("0-3").bits, chosen) == chosen


def test_a_split_stands_when_whole_cores_would_be_more() -> None:
    """Three efficiency cores would be whole, but one core more than CPUs 0-2 touch."""
    one_node = CpuTopology.from_rows(
        [
            (0, 0, 0, 0, 0),
            (1, 0, 0, 0, 0),
            (2, 2, 0, 0, 0),
            (3, 2, 0, 0, 0),
            *((cpu, cpu, 0, 0, 0) for cpu in (4, 5, 6)),
        ]
    )
    chosen = Mask.parse("0-2").bits

    assert whole_cores(one_node, one_node.all.bits, 3) == Mask.parse("4-6").bits
    assert unsplit(one_node, one_node.all.bits, chosen) == chosen


@settings(deadline=None, max_examples=200)
@given(any_hosts(), st.data())
def test_whole_cores_are_found_exactly_when_some_add_up(
    topology: CpuTopology, data: st.DataObject
) -> None:
    free = data.draw(masks_of(topology))
    count = data.draw(st.integers(min_value=0, max_value=len(free)))
    sums = {0}
    for core in topology.cores:
        if not core.cpus & ~free.bits:
            sums |= {held + core.size for held in sums}

    whole = whole_cores(topology, free.bits, count)

    assert (whole is not None) == (count in sums)
    if whole is not None:
        assert whole.bit_count() == count
        assert not whole & ~free.bits
        assert not splits_a_core(topology, whole)
