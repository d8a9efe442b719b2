from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.api.documents.map import MapMemoryDocument, MapNodeDocument
from agent.api.map import map_of_host
from agent.tools.map.distances import distance_lines
from agent.tools.map.memory import BAR, memory_lines, memory_text, nearest_text, segments
from agent.tools.map.spans import plain
from agent.tools.map.words import size_text
from sysfs.described import regular_host
from sysfs.host import Host, Node
from sysfs.mask import Mask
from tests.strategies import built

SIZES = st.integers(0, 1 << 45)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1024, "1 KiB"),
        (2 << 20, "2 MiB"),
        (1536 << 20, "1.5 GiB"),
        (1 << 30, "1 GiB"),
        (3 << 40, "3 TiB"),
        ((1 << 30) - 1024, "1024.0 MiB"),
    ],
)
def test_sizes_are_in_the_largest_unit_that_they_reach(size: int, text: str) -> None:
    assert size_text(size) == text


def _node(memory: int | None, *, allocated: int | None = None, reserved: int = 0) -> list[str]:
    document = map_of_host(Host((), (Node(0, Mask(), memory),))).nodes[0]
    part = MapMemoryDocument(type="memory", total=memory, allocated=allocated, reserved=reserved)
    changed = type(document)(id=0, cpus="", memory=(part,), distances={})
    return [plain(spans) for spans in memory_lines(changed, ascii_only=True)]


def test_a_bar_shows_allocated_free_and_reserved() -> None:
    assert _node(16 << 30, allocated=8 << 30, reserved=4 << 30) == [
        "memory        ########....----  16 GiB: 8 GiB allocated, 4 GiB free, 4 GiB reserved"
    ]


def test_huge_pages_are_counted_apart_from_what_is_reserved() -> None:
    sizes = (("memory", 16 << 30, 0, 6 << 30), ("hugepages-2Mi", 4 << 30, 1 << 30, 0))
    parts = tuple(
        MapMemoryDocument(type=name, total=total, allocated=allocated, reserved=reserved)
        for name, total, allocated, reserved in sizes
    )
    node = MapNodeDocument(id=0, cpus="", memory=parts, distances={})
    assert [plain(spans).rpartition("  ")[2] for spans in memory_lines(node)] == [
        "16 GiB: 0 B allocated, 10 GiB free, 2 GiB reserved, 4 GiB in huge pages",
        "4 GiB: 1 GiB allocated, 3 GiB free",
    ]


def test_memory_without_a_policy_or_of_unknown_size_has_no_bar() -> None:
    assert _node(16 << 30) == ["memory        16 GiB"]
    assert _node(None) == ["memory        size unknown"]
    assert _node(0) == ["memory        none"]


@given(
    built(MapMemoryDocument, type=st.just("memory"), total=SIZES, reserved=SIZES, allocated=SIZES)
)
def test_a_bar_has_its_length_and_shows_all_that_is_not_nothing(memory: MapMemoryDocument) -> None:
    allocated, free, reserved = segments(memory)
    assert min(allocated, free, reserved) >= 0
    assert allocated + free + reserved == BAR
    assert bool(allocated) == bool(memory.allocated)
    assert reserved <= (BAR if memory.reserved else 0)


def test_nodes_are_described_in_a_few_words() -> None:
    node = map_of_host(regular_host(memory_bytes=3 << 30, hugepages=[(2 << 20, 8)])).nodes[0]
    assert memory_text(node, {}) == "3 GiB, hugepages-2Mi 16 MiB"


def test_the_nearest_nodes_with_cpus_are_named() -> None:
    rows = MappingProxyType({0: 17, 1: 17, 2: 10, 3: 11})
    node = map_of_host(Host((), (Node(2, Mask(), 0, (), rows),))).nodes[0]
    assert nearest_text(node, Mask.of(0, 1)) == "nearest CPUs: nodes 0-1 (distance 17)"
    assert nearest_text(node, Mask.of(3)) == "nearest CPUs: node 3 (distance 11)"
    assert nearest_text(node, Mask.of(9)) == ""


def _distances(host: Host) -> list[str]:
    return list(distance_lines(map_of_host(host).nodes))


def test_few_nodes_are_a_matrix_with_aligned_columns() -> None:
    rows = {0: {0: 10, 250: 80}, 250: {0: 40, 250: 10}}
    nodes = tuple(Node(node, Mask(), 0, (), MappingProxyType(row)) for node, row in rows.items())
    assert _distances(Host((), nodes)) == [
        "            0 250",
        "node    0  10  80",
        "node  250  40  10",
    ]


def test_many_nodes_are_grouped_by_equal_rows() -> None:
    assert _distances(regular_host(packages=2, nodes_per_package=9, cores_per_node=1)) == [
        "nodes 0-8: 10 to itself, 12 to 0-8, 21 to 9-17",
        "nodes 9-17: 10 to itself, 12 to 9-17, 21 to 0-8",
    ]


def test_a_node_alone_is_not_among_its_own_neighbours() -> None:
    ids = range(17)
    rows = {node: {other: 10 if other == node else 100 + node for other in ids} for node in ids}
    nodes = tuple(Node(node, Mask(), 0, (), MappingProxyType(rows[node])) for node in ids)
    assert _distances(Host((), nodes))[3] == "node 3: 10 to itself, 103 to 0-2,4-16"
