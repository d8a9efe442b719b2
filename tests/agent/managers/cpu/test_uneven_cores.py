from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.managers.cpu.topology import CpuTopology
from agent.managers.cpu.uneven import fewest_cores, most_in_whole_cores
from sysfs.mask import Mask
from tests.agent.managers.cpu.hosts_of_uneven_cores import cores_touched, needlessly_shared, torn

if TYPE_CHECKING:
    from collections.abc import Iterator


def host(*sizes: int) -> CpuTopology:
    """Return a host of one node whose cores have so many CPUs, numbered one after the other."""
    cores = [core for core, size in enumerate(sizes) for _ in range(size)]
    return CpuTopology.from_rows((cpu, core, 0, 0, 0) for cpu, core in enumerate(cores))


# --- beside trying every set of CPUs --------------------------------------------------------------


@st.composite
def requests(draw: st.DrawFn) -> tuple[CpuTopology, Mask, int]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    topology = host(*sizes)
    free = Mask(draw(st.integers(1, topology.all.bits)))
    return topology, free, draw(st.integers(1, len(free)))


def every_set(free: Mask, count: int) -> Iterator[Mask]:
    return map(Mask.from_ids, combinations(free, count))


@settings(deadline=None, max_examples=100)
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


@settings(deadline=None, max_examples=100)
@given(requests())
def test_no_set_has_more_cpus_in_whole_cores(request: tuple[CpuTopology, Mask, int]) -> None:
    topology, free, count = request

    taken = Mask(fewest_cores(topology, free.bits, count, whole=True))

    assert taken <= free
    assert len(taken) == count
    least = min(torn(topology, cpus) for cpus in every_set(free, count))
    assert torn(topology, taken) == least
    assert most_in_whole_cores(topology, free.bits, count) == count - least
