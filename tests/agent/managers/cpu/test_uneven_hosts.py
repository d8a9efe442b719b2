"""Packing where cores, sockets or caches differ: what is narrower is taken."""

from __future__ import annotations

import pytest

from agent.managers.cpu.assignment import take
from agent.managers.cpu.strategy import Strategy
from agent.managers.cpu.topology import CpuTopology
from sysfs.mask import Mask

#: Node 0: efficiency cores 0 to 3. Node 1: performance cores 4-5, 6-7, 8-9, 10-11.
HYBRID = CpuTopology.from_rows(
    [*((cpu, cpu, 0, 0, 0) for cpu in range(4)), *((c, c // 2 * 2, 1, 1, 1) for c in range(4, 12))]
)
#: One node of four sockets: 0-1, 2-3, 4-8 and 9-13; cores have no siblings.
SOCKETS = CpuTopology.from_rows(
    (cpu, cpu, (0, 0, 1, 1, *[2] * 5, *[3] * 5)[cpu], 0, 0) for cpu in range(14)
)
#: The same with a node for each pair of sockets.
NODES = CpuTopology.from_rows(row._replace(node=row.socket // 2) for row in SOCKETS.rows)


def taken(topology: CpuTopology, free: str, count: int, **how: bool) -> str:
    return str(take(topology, Strategy(**how), Mask.parse(free), count))


def test_a_node_that_has_room_is_better_than_a_small_node_and_a_rest_elsewhere() -> None:
    assert taken(HYBRID, "0-11", 6) == "4-9"


def test_large_cores_are_used_up_before_a_node_of_small_ones_is() -> None:
    assert taken(HYBRID, "0-11", 10) == "0-1,4-11"


def test_a_whole_node_is_still_taken_as_one() -> None:
    assert taken(HYBRID, "0-11", 4) == "0-3"
    assert taken(HYBRID, "0-11", 8) == "4-11"


@pytest.mark.parametrize("topology", [SOCKETS, NODES], ids=["one node", "several nodes"])
def test_a_socket_that_has_room_is_better_than_several_small_ones(topology: CpuTopology) -> None:
    assert taken(topology, "0-13", 5) == "4-8"


def test_spread_cpus_are_on_one_socket_too_where_that_takes_no_more_cores() -> None:
    assert taken(SOCKETS, "0-3,5-13", 4, spread=True) == "5-8"


def test_no_sibling_of_a_busy_cpu_is_taken_for_the_sake_of_fewer_nodes() -> None:
    assert taken(HYBRID, "0,4,6,8", 2) == "0,4"
    assert taken(HYBRID, "0-3,4-8", 5) == "0,4-7"


def test_siblings_of_busy_cpus_are_taken_on_fewer_nodes_where_no_core_could_replace_them() -> None:
    assert taken(HYBRID, "4,6,8-11", 3) == "4,8-9"
