from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.managers.cpu.hints import cpu_hints
from agent.managers.cpu.take import take_by_topology
from agent.managers.cpu.topology import CpuTopology
from agent.managers.cpu.uneven_cores import fewest_cores, most_in_whole_cores
from agent.managers.policy import CpuPolicyOptions
from agent.managers.topology.hint import choices, is_listed
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.cpu.cpu_hosts import (
    asymmetric_hosts,
    cores_touched,
    masks_of,
    needlessly_shared,
    torn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def host(*sizes: int) -> CpuTopology:
    """Return a host of one node whose cores have so many CPUs, numbered one after the other."""
    cores = [core for core, size in enumerate(sizes) for _ in range(size)]
    return CpuTopology.from_rows((cpu, core, 0, 0, 0) for cpu, core in enumerate(cores))


#: Performance cores 0-1, 2-3 and efficiency cores 4, 5, 6.
HYBRID = (2, 2, 1, 1, 1)


@pytest.mark.parametrize(
    ("sizes", "free", "count", "whole", "cpus"),
    [
        pytest.param(HYBRID, "0-6", 2, False, "0-1", id="a large core before small ones"),
        pytest.param(HYBRID, "0-6", 4, False, "0-3", id="two large cores before small ones"),
        pytest.param(HYBRID, "0-6", 1, False, "4", id="a single CPU has no siblings"),
        pytest.param(HYBRID, "0-6", 3, False, "0-1,4", id="the last CPU has no siblings"),
        pytest.param(HYBRID, "1-6", 1, False, "4", id="a free core before a busy one's sibling"),
        pytest.param(HYBRID, "1-6", 2, False, "2-3", id="a large free core before it as well"),
        pytest.param(HYBRID, "1-3", 1, False, "1", id="that sibling before half a free core"),
        pytest.param((4, 1, 1), "0-5", 2, False, "0-1", id="one is broken rather than two used"),
        pytest.param((4, 1, 1), "0-5", 2, True, "4-5", id="unless cores are to be whole"),
        pytest.param((3, 2, 2), "0-6", 4, False, "3-6", id="what spoils the sum is passed over"),
        pytest.param((4, 4, 4), "0,4-5,8-10", 2, False, "4-5", id="the fullest that has room"),
    ],
)
def test_the_cores_that_are_chosen(
    sizes: tuple[int, ...], free: str, count: int, cpus: str, *, whole: bool
) -> None:
    chosen = fewest_cores(host(*sizes), Mask.parse(free).bits, count, whole=whole)
    assert Mask(chosen) == Mask.parse(cpus)


#: `full-pcpus-only` with options about where CPUs are, but for those of sockets.
PLACES = st.builds(
    CpuPolicyOptions,
    full_pcpus_only=st.just(value=True),
    distribute_cpus_across_numa=st.booleans(),
    prefer_align_cpus_by_uncorecache=st.booleans(),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[CpuTopology, Mask, int]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    topology = host(*sizes)
    free = Mask(draw(st.integers(1, topology.all.bits)))
    return topology, free, draw(st.integers(1, len(free)))


def every_set(free: Mask, count: int) -> Iterator[Mask]:
    return map(Mask.from_ids, combinations(free, count))


# Shows in differences.md: uneven-cores
@given(requests())
def test_no_set_without_needless_sharing_is_on_fewer_cores(
    request: tuple[CpuTopology, Mask, int],
) -> None:
    topology, free, count = request
    busy = topology.all - free
    taken = Mask(fewest_cores(topology, free.bits, count, whole=False))
    assert taken <= free
    assert len(taken) == count
    assert not needlessly_shared(topology, free, busy, taken)
    assert cores_touched(topology, taken) == min(
        cores_touched(topology, cpus)
        for cpus in every_set(free, count)
        if not needlessly_shared(topology, free, busy, cpus)
    )


# Shows in differences.md: whole-cores-add-up
@given(requests())
def test_no_set_has_more_cpus_in_whole_cores(request: tuple[CpuTopology, Mask, int]) -> None:
    topology, free, count = request
    taken = Mask(fewest_cores(topology, free.bits, count, whole=True))
    assert taken <= free
    assert len(taken) == count
    least = min(torn(topology, cpus) for cpus in every_set(free, count))
    assert torn(topology, taken) == least
    assert most_in_whole_cores(topology, free.bits, count) == count - least


# Shows in differences.md: whole-cores-add-up
@settings(max_examples=300)
@given(topology=asymmetric_hosts(), options=PLACES, data=st.data())
def test_whole_cores_are_taken_wherever_they_add_up(
    topology: CpuTopology, options: CpuPolicyOptions, data: st.DataObject
) -> None:
    free = data.draw(masks_of(topology))
    whole = topology.whole_cores_in(free)
    count = data.draw(st.integers(0, len(whole)))
    assume(not topology.cores_alike)
    assume(most_in_whole_cores(topology, free.bits, count) == count)
    taken = take_by_topology(topology, options, free, count)
    assert len(taken) == count
    assert taken <= whole
    assert topology.cores_of(taken) == taken


# Shows in differences.md: whole-cores-add-up
@settings(max_examples=300)
@given(topology=asymmetric_hosts(), data=st.data())
def test_hints_are_the_nodes_whose_whole_cores_add_up(
    topology: CpuTopology, data: st.DataObject
) -> None:
    assume(is_listed(topology.node_bits))
    free = data.draw(masks_of(topology))
    count = data.draw(st.integers(1, 8))
    hints = cpu_hints(topology, CpuPolicyOptions(), free, EMPTY, count, whole=True)
    assert {hint.nodes for hint in hints} == {
        each.mask
        for each in choices(topology.node_bits)
        if most_in_whole_cores(
            topology, free.bits & topology.cpus_in_nodes(Mask(each.mask)).bits, count
        )
        == count
    }


# Shows in differences.md: uneven-cores
@settings(max_examples=300)
@given(topology=asymmetric_hosts(), whole=st.booleans(), data=st.data())
def test_no_core_of_a_whole_host_is_shared_while_one_that_serves_is_free(
    topology: CpuTopology, data: st.DataObject, *, whole: bool
) -> None:
    assume(not topology.cores_alike)
    free = data.draw(masks_of(topology))
    count = data.draw(st.integers(0, len(free)))
    taken = take_by_topology(topology, CpuPolicyOptions(full_pcpus_only=whole), free, count)
    assert not needlessly_shared(topology, free, topology.all - free, taken)
