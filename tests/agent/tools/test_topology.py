from __future__ import annotations

import io
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from rich.console import Console

from agent.tools.topology import (
    alike,
    cores_summary,
    distance_lines,
    id_list,
    node_note,
    parts_of,
    picture,
    plain_lines,
    size_text,
    summary,
)
from sysfs.described.shapes import regular_host, with_offline
from sysfs.host import CoreKind, Device, Host, HugePages, Node
from sysfs.mask import Mask
from tests.sysfs.hosts import hosts, with_isolated


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


def _drawn(host: Host, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    for part in picture(host):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@settings(max_examples=30, deadline=None)
@given(hosts())
def test_any_host_fits_80_columns_and_names_every_node(host: Host) -> None:
    lines = _drawn(host).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    text = " ".join(lines)
    assert all(f"node {node.id} " in text for node in host.nodes)


def test_devices_stand_by_their_node_and_interfaces_by_name() -> None:
    pci = ("0x020000", "0x020000", "0x060400", "0x030200", "0x120000", "0xff0000")
    addresses = [f"0000:0{number}:00.0" for number in range(len(pci))]
    devices = (
        *(
            Device("pci", address, address, 1, device_class=device_class)
            for address, device_class in zip(addresses, pci, strict=True)
        ),
        Device("net", "eth0", addresses[0], 1),
        Device("net", "usb0", "", None),
    )
    text = _drawn(replace(regular_host(), devices=devices), width=200)
    assert (
        "  node 1: network 0000:01:00.0, display 0000:03:00.0, accelerator 0000:04:00.0, "
        "eth0 (0000:00:00.0), 1 x bridge, 1 x other\n" in text
    )
    assert "  no node: usb0\n" in text


def test_square_brackets_in_a_name_are_shown_as_they_are() -> None:
    host = replace(regular_host(), devices=(Device("net", "[red]eth0", "", 0),))
    assert "node 0: [red]eth0" in _drawn(host)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0-63,128-191", "0-63,128-191"),
        (",".join(str(cpu) for cpu in range(0, 100, 2)), "0,2,4,...,98 (50 CPUs)"),
    ],
)
def test_a_list_too_long_to_read_shows_its_ends(text: str, shown: str) -> None:
    assert id_list(Mask.parse(text)) == shown


def test_a_cache_of_many_cores_shows_the_first_and_the_last() -> None:
    text = _drawn(regular_host(packages=1, cores_per_node=20))
    assert "20 cores x 2 threads: 0+20 1+21 2+22 ... 19+39" in text


def test_cpus_of_no_node_are_shown() -> None:
    host = regular_host(packages=1, cores_per_node=1, threads=1)
    assert "no node  CPUs 0" in _drawn(
        replace(host, cpus=tuple(replace(cpu, node=None) for cpu in host.cpus))
    )


def _plain(host: Host, *, full: bool) -> list[str]:
    return [line for part in picture(host, full=full) for line in plain_lines(part)]


@settings(max_examples=30, deadline=None)
@given(hosts())
def test_any_node_is_drawn_around_its_packages_or_inside_of_one_and_has_its_memory_once(
    host: Host,
) -> None:
    lines = _plain(host, full=False)
    for node in host.nodes:
        drawn = [line for line in lines if f"── node {node.id}  " in line]
        assert sum("memory as above" not in line for line in drawn) == 1


def _packages_of_one_node() -> Host:
    host = regular_host(packages=4, nodes_per_package=1, cores_per_node=2, threads=1)
    cpus = tuple(replace(cpu, node=0, uncore=0) for cpu in host.cpus)
    return replace(host, cpus=cpus, nodes=(replace(host.nodes[0], cpus=host.online),))


def test_a_node_over_several_packages_is_drawn_once_around_them() -> None:
    assert _plain(_packages_of_one_node(), full=False)[1:] == [
        "machine",
        "└── node 0  16 GiB, CPUs 0-7",
        "    └── L3 0  CPUs 0-7",
        "        ├── package 0  CPUs 0-1",
        "        │   └── 2 cores: 0 1",
        "        ├── package 1  CPUs 2-3",
        "        │   └── 2 cores: 2 3",
        "        ├── package 2  CPUs 4-5",
        "        │   └── 2 cores: 4 5",
        "        └── package 3  CPUs 6-7",
        "            └── 2 cores: 6 7",
    ]


def test_a_node_that_nests_in_no_order_has_its_memory_once() -> None:
    host = regular_host(packages=2, cores_per_node=2, threads=1)
    cpus = tuple(replace(cpu, node=0 if cpu.id < 3 else 1) for cpu in host.cpus)
    cpus = (*cpus[:1], replace(cpus[1], node=1), *cpus[2:])
    nodes = [line for line in _plain(replace(host, cpus=cpus), full=False) if "── node" in line]
    assert ["16 GiB" in line for line in nodes] == [True, True, False, False]


@settings(max_examples=15, deadline=None)
@given(hosts())
def test_the_full_picture_shows_every_core_of_any_host(host: Host) -> None:
    _shows_all(host)


@pytest.mark.parametrize("shape", [(2, 4, 28, 2), (8, 1, 64, 2), (1, 1, 300, 1)])
def test_the_full_picture_shows_all_at_any_size(shape: tuple[int, int, int, int]) -> None:
    _shows_all(regular_host(*shape))


def _shows_all(host: Host) -> None:
    lines = _plain(host, full=True)
    assert not any("..." in line for line in lines)
    for node in host.nodes:
        if node.cpus:
            assert any(f"── node {node.id}  " in line for line in lines)
    cores: dict[int | None, list[int]] = {}
    for cpu in host.cpus:
        if cpu.online:
            cores.setdefault(cpu.core, []).append(cpu.id)
    shown = {word.replace("*", "") for line in lines if "core" in line for word in line.split()}
    assert {"+".join(map(str, threads)) for threads in cores.values()} <= shown


@settings(max_examples=15, deadline=None)
@given(hosts())
def test_plain_lines_are_what_a_wide_terminal_shows(host: Host) -> None:
    wide = [line.rstrip() for line in _drawn(host, width=4000).splitlines()]
    assert _plain(host, full=False) == wide


def test_ids_of_packages_are_not_called_cpus() -> None:
    packages = Mask.from_ids(range(0, 300, 3))
    assert id_list(packages, "package").endswith("(100 packages)")
