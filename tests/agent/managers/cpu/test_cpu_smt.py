from __future__ import annotations

import pytest

from agent.managers.cpu.manager import smt_misalignment
from agent.managers.cpu.topology import CpuTopology
from sysfs.mask import Mask
from tests.agent.managers.cpu.cpu_hosts import TWO_SOCKETS


@pytest.mark.parametrize("count", [2, 4, 16])
def test_whole_cores_are_aligned(count: int) -> None:
    assert smt_misalignment(TWO_SOCKETS, TWO_SOCKETS.all, count) is None


def test_half_a_core_is_rejected() -> None:
    problem = smt_misalignment(TWO_SOCKETS, TWO_SOCKETS.all, 5)

    assert problem is not None
    assert (problem.asked, problem.free, problem.threads) == (5, 16, 2)
    assert "5 CPUs asked, not a multiple of the 2 CPUs of a core" in problem.message


def test_siblings_of_reserved_cpus_do_not_count_as_free() -> None:
    reserved = Mask.parse("0,1")
    free = TWO_SOCKETS.all - TWO_SOCKETS.cores_of(reserved)

    problem = smt_misalignment(TWO_SOCKETS, free, 14)

    assert problem is not None
    assert "14 CPUs asked, 12 are free" in problem.message
    assert smt_misalignment(TWO_SOCKETS, free, 12) is None


def test_the_average_core_stands_for_all_where_cores_differ() -> None:
    hybrid = CpuTopology.from_rows(
        [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (2, 2, 0, 0, 0), (3, 3, 0, 0, 0)]
    )

    assert smt_misalignment(hybrid, hybrid.all, 3) is None
    assert smt_misalignment(hybrid, hybrid.all, 5) is not None


def test_one_cpu_is_one_cpu() -> None:
    half = smt_misalignment(TWO_SOCKETS, Mask.parse("0-3"), 1)
    assert half is not None
    assert half.message == "1 CPU asked, not a multiple of the 2 CPUs of a core"
    busy = smt_misalignment(TWO_SOCKETS, Mask.of(1), 2)
    assert busy is not None
    assert "2 CPUs asked, 1 is free in physical cores" in busy.message
