from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.managers.cpu.topology import lowest, rank, rank_nodes
from sysfs.mask import Mask, iter_bits
from tests.agent.managers.cpu.cpu_hosts import TWO_SOCKETS, Shape


def test_groups_with_the_fewest_free_cpus_come_first_then_the_lowest_id() -> None:
    free = Mask.parse("0-2,5").bits

    assert [core.id for core in rank(TWO_SOCKETS.cores, free | 1 << 8)] == [1, 2, 5, 0]


def test_groups_without_free_cpus_are_left_out() -> None:
    assert [node.id for node in rank(TWO_SOCKETS.nodes, Mask.of(4).bits)] == [1]


def test_nodes_of_one_socket_stand_together_where_sockets_are_the_outer_level() -> None:
    quad = Shape(sockets=2, nodes=2, cores=4, threads=1).topology()
    free = Mask.parse("0-3,7,8-10,12-13").bits

    assert [node.id for node in rank(quad.nodes, free)] == [1, 3, 2, 0]
    assert [node.id for node in rank_nodes(quad, free)] == [1, 0, 3, 2]


@given(st.integers(min_value=0, max_value=2**70), st.integers(min_value=1, max_value=80))
def test_lowest_takes_the_first_members(bits: int, count: int) -> None:
    assert list(iter_bits(lowest(bits, count))) == list(iter_bits(bits))[:count]
