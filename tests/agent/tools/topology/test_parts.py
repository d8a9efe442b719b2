from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.tools.topology.parts import alike, cores_summary, node_note, parts_of, size_text, summary
from sysfs.described.shapes import regular_host, with_isolated, with_offline
from sysfs.host import CoreKind, HugePages, Node
from sysfs.mask import Mask


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


def test_a_note_names_memory_and_the_pools_that_have_pages() -> None:
    pools = (HugePages(2 << 20, 3), HugePages(1 << 30, 0))
    assert node_note(Node(0, Mask(), 1 << 30, pools)) == "1 GiB, 3 x 2 MiB pages"
    assert node_note(Node(0, Mask(), 0)) == "no memory"


def test_parts_nest_and_hold_online_cpus_only() -> None:
    host = with_offline(regular_host(packages=2, cores_per_node=2, threads=1), Mask.of(3))
    first, second = parts_of(host)
    assert (first.kind, str(first.cpus), str(second.cpus)) == ("package", "0-1", "2")
    assert [part.kind for part in first.children] == ["node"]
    assert [part.kind for part in first.children[0].children] == ["L3"]


def test_dies_are_shown_where_a_package_has_several() -> None:
    host = regular_host(packages=1, cores_per_node=2, threads=1)
    split = replace(host, cpus=tuple(replace(cpu, die=cpu.id) for cpu in host.cpus))
    (node,) = parts_of(split)[0].children
    (cache,) = node.children
    assert (node.kind, cache.kind) == ("node", "L3")
    assert [part.kind for part in cache.children] == ["die", "die"]


def test_hosts_without_known_caches_have_cores_below_their_nodes() -> None:
    host = regular_host(packages=1, cores_per_node=2, threads=1)
    bare = replace(host, cpus=tuple(replace(cpu, uncore=None) for cpu in host.cpus))
    (node,) = parts_of(bare)[0].children
    assert node.children == ()
    assert [str(core.threads) for core in node.cores] == ["0", "1"]


def test_parts_that_differ_in_ids_alone_are_alike() -> None:
    host = regular_host(packages=3)
    assert [len(run) for run in alike(parts_of(host))] == [3]


@pytest.mark.parametrize("cpu", [0, 4, 11])
def test_an_isolated_cpu_makes_a_part_unlike_its_neighbours(cpu: int) -> None:
    host = with_isolated(regular_host(packages=3, threads=1), Mask.of(cpu))
    assert sorted(len(run) for run in alike(parts_of(host))) != [3]


def test_a_summary_counts_what_is_inside() -> None:
    (package,) = parts_of(regular_host(1, 2, 4, 2, memory_bytes=1 << 30, uncores_per_node=2))
    assert summary(package) == "2 nodes (1 GiB, 2 L3 (2 cores x 2 threads each) each)"


def test_hybrid_cores_are_counted_by_kind() -> None:
    host = regular_host(packages=1, cores_per_node=3, threads=1)
    kinds = (CoreKind.PERFORMANCE, CoreKind.EFFICIENCY, CoreKind.EFFICIENCY)
    cpus = tuple(replace(cpu, kind=kind) for cpu, kind in zip(host.cpus, kinds, strict=True))
    cores = parts_of(replace(host, cpus=cpus))[0].children[0].children[0].cores
    assert cores_summary(cores) == "1 performance core + 2 efficiency cores"
