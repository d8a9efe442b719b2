from __future__ import annotations

from types import MappingProxyType

from agent.tools.topology.distances import distance_lines
from sysfs.described.shapes import regular_host
from sysfs.host import Host, Node
from sysfs.mask import Mask


def test_few_nodes_are_a_matrix_with_aligned_columns() -> None:
    rows = {0: {0: 10, 250: 80}, 250: {0: 40, 250: 10}}
    nodes = tuple(Node(node, Mask(), 0, (), MappingProxyType(row)) for node, row in rows.items())
    assert list(distance_lines(Host((), nodes))) == [
        "            0 250",
        "node    0  10  80",
        "node  250  40  10",
    ]


def test_many_nodes_are_grouped_by_equal_rows() -> None:
    host = regular_host(packages=2, nodes_per_package=9, cores_per_node=1)
    assert list(distance_lines(host)) == [
        "nodes 0-8: 10 to itself, 12 to 0-8, 21 to 9-17",
        "nodes 9-17: 10 to itself, 12 to 9-17, 21 to 0-8",
    ]


def test_a_node_alone_is_not_among_its_own_neighbours() -> None:
    ids = range(17)
    rows = {node: {other: 10 if other == node else 100 + node for other in ids} for node in ids}
    nodes = tuple(Node(node, Mask(), 0, (), MappingProxyType(rows[node])) for node in ids)
    assert list(distance_lines(Host((), nodes)))[3] == "node 3: 10 to itself, 103 to 0-2,4-16"
