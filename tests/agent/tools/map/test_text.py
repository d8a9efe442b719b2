from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from agent.api.map import CpuUse, MapDocument, map_of_allocations, map_of_host
from agent.managers.device.kubelet import KubeletListing
from agent.pods.model import GivenDevice
from agent.tools.map.parts import painted, plain
from agent.tools.map.text import MapLayout, id_list, map_lines
from sysfs.described import regular_host, with_memory_only_nodes, with_offline
from sysfs.discover import discover
from sysfs.host import Device, WithheldCpus
from sysfs.mask import Mask
from tests.agent.api.maps import occupied_hosts
from tests.agent.managers.hosts import make_rules
from tests.agent.managers.ledgers import ledger_with
from tests.agent.tools.map.pods import machine_of, pod_with
from tests.shared import needs_shared, shared_dir
from tests.sysfs.hosts import hosts, with_isolated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.api.map import MapCpuDocument
    from sysfs.host import Host
    from tests.agent.api.maps import Occupied

FULL = MapLayout(full=True)


def drawn(document: MapDocument, layout: MapLayout = FULL) -> list[str]:
    return [plain(spans) for spans in map_lines(document, layout)]


def cells(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each CPU with its mark, as a reader finds them: id above, mark below in the column."""
    columns: dict[int, int] = {}
    fresh = False
    for text in lines:
        found = re.match(r"( *)(cpu   |\+\d+ *|      )(?=[ \dA-Za-z.*]*!?)", text)
        if text.lstrip().startswith("cpu "):
            columns = {each.end(): int(each[0]) for each in re.finditer(r"\d+", text)}
            fresh = True
            continue
        step = re.match(r" *\+(\d+) ", text)
        if not columns or not (fresh or step) or found is None:
            columns = {}
            continue
        start = step.end() if step else 0
        for mark in re.finditer(r"[A-Za-z.*]+", text[start:]):
            yield columns[start + mark.end()] + (int(step[1]) if step else 0), mark[0]
        fresh = False


def mark_of(cpu: MapCpuDocument, labels: dict[str, str]) -> str:
    if cpu.use is CpuUse.OFFLINE:
        return "x"
    if len(cpu.owners) > 1:
        return "*"
    if cpu.owners:
        label = labels[cpu.owners[0].uid]
        return label if cpu.owners[0].container else label.lower()
    if cpu.use is CpuUse.RESERVED:
        return "R"
    return "i" if cpu.isolated else "."


def labels_in(lines: list[str]) -> dict[str, str]:
    found = (re.match(r"([A-Z]+) +shop/pod-(\d+)(?:  |$)", line) for line in lines)
    return {f"uid-{each[2]}": each[1] for each in found if each}


@settings(max_examples=60, deadline=None)
@given(occupied_hosts())
def test_every_cpu_is_drawn_once_with_its_mark(case: Occupied) -> None:
    document = map_of_allocations(case.host, case.rules, case.ledger)
    lines = drawn(document)
    labels = labels_in(lines)
    found = sorted(cells(lines))
    assert found == [(cpu.id, mark_of(cpu, labels)) for cpu in document.cpus]


@settings(max_examples=40, deadline=None)
@given(occupied_hosts())
def test_every_cpu_is_drawn_once_in_a_narrow_terminal(case: Occupied) -> None:
    document = map_of_allocations(case.host, case.rules, case.ledger)
    lines = drawn(document, MapLayout(width=40, full=True))
    assert sorted(cpu for cpu, _ in cells(lines)) == [cpu.id for cpu in case.host.cpus]


@settings(max_examples=40, deadline=None)
@given(hosts())
def test_every_cpu_of_a_host_without_an_agent_is_drawn_once(host: Host) -> None:
    lines = [*drawn(map_of_host(host)), "distances"]
    parts = lines[: lines.index("distances")]
    rows = [line for line in parts if re.match(r" *(cpu   |      )[ \d*]*$", line)]
    ids = [int(each) for row in rows for each in re.findall(r"\d+", row)]
    assert sorted(ids) == [cpu.id for cpu in host.cpus]
    isolated = {int(each) for row in rows for each in re.findall(r"(\d+)\*", row)}
    assert isolated == set(host.isolated & host.online)


@settings(max_examples=40, deadline=None)
@given(hosts())
def test_every_node_has_its_memory_once(host: Host) -> None:
    lines = drawn(map_of_host(host))
    for node in host.nodes:
        assert any(re.search(rf"\bnode {node.id}\b", line) for line in lines)
    assert sum(re.match(r" *memory  ", line) is not None for line in lines) == len(host.nodes)


def captures() -> list[Path]:
    folder = shared_dir()
    if folder is None:
        return []
    return sorted(each for each in (folder / "hosts").glob("*.t*") if ".t" in each.name)


@needs_shared("hosts")
@pytest.mark.parametrize("capture", captures(), ids=lambda path: path.name)
def test_every_cpu_of_a_capture_is_drawn_once(
    capture: Path, captured_root: dict[Path, Path]
) -> None:
    host = discover(captured_root[capture])
    rules = make_rules(machine_of(host), reserved=str(host.online.lowest), memory=False)
    pod = pod_with("pod-0", str(host.online.highest))
    document = map_of_allocations(host, rules, ledger_with(pod))
    found = sorted(cells(drawn(document)))
    labels = {"uid-0": "A"}
    assert found == [(cpu.id, mark_of(cpu, labels)) for cpu in document.cpus]


def test_a_core_with_two_users_is_marked_on_both_threads() -> None:
    host = regular_host(packages=1, cores_per_node=4, threads=2)
    rules = make_rules(machine_of(host), reserved="0")
    lines = drawn(map_of_allocations(host, rules, ledger_with(pod_with("pod-0", "1-2,6"))))
    assert "  cpu    0  1  2  3" in lines
    assert "         R  A! A  ." in lines
    assert "  +4     .  .! A  ." in lines
    assert any(line.startswith("! core 1 is shared: CPU 1 of shop/pod-0") for line in lines)


def test_threads_at_different_distances_have_their_ids_above() -> None:
    host = regular_host(packages=1, cores_per_node=2, threads=2)
    moved = {0: 0, 1: 1, 2: 7, 3: 5}
    cpus = sorted((replace(cpu, id=moved[cpu.id]) for cpu in host.cpus), key=lambda cpu: cpu.id)
    nodes = (replace(host.nodes[0], cpus=Mask.of(0, 1, 5, 7)),)
    odd = replace(host, cpus=tuple(cpus), nodes=nodes)
    lines = drawn(map_of_allocations(odd, make_rules(machine_of(odd)), ledger_with()))
    place = lines.index("  cpu    0  1")
    assert lines[place : place + 4] == [
        "  cpu    0  1",
        "         R  .",
        "  cpu    7  5",
        "         .  .",
    ]


def test_more_pods_than_letters_have_two() -> None:
    host = regular_host(packages=1, cores_per_node=64, threads=1)
    pods = [pod_with(f"pod-{number}", str(number + 1)) for number in range(40)]
    lines = drawn(map_of_allocations(host, make_rules(machine_of(host)), ledger_with(*pods)))
    labels = list(labels_in(lines).values())
    assert len(set(labels)) == 40
    assert (labels[0], labels[22], labels[39]) == ("A", "AA", "AU")
    assert not set("IORX") & set("".join(labels))


def test_a_large_host_is_counted_and_full_shows_every_core() -> None:
    host = regular_host(4, 16, 32, 2, uncores_per_node=2)
    assert len(host.cpus) == 4096
    pods = [pod_with("pod-0", "8-10"), pod_with("pod-1", "40,2088")]
    rules = make_rules(machine_of(host), reserved="0-3")
    document = map_of_allocations(host, rules, ledger_with(*pods))
    lines = drawn(document, MapLayout())
    assert len(lines) < 60
    assert any("4 reserved" in line and "3 A" in line and "25 shared" in line for line in lines)
    assert any("2 B" in line and "30 shared" in line for line in lines)
    assert len(list(cells(drawn(document)))) == 4096


def test_a_node_with_a_pod_shares_no_line_with_its_neighbours() -> None:
    host = regular_host(1, 64, 4, 1)
    rules = make_rules(machine_of(host), reserved="0")
    document = map_of_allocations(host, rules, ledger_with(pod_with("pod-0", "100")))
    lines = drawn(document, MapLayout())
    assert any(line.strip().startswith("node 25, L3 100  CPUs 100-103") for line in lines)
    assert any("24 nodes 1-24  CPUs 4-99: each" in line and "4 shared" in line for line in lines)


def test_equal_neighbours_that_differ_in_ids_alone_share_a_line_above_128_cpus() -> None:
    lines = drawn(map_of_host(regular_host(4, 16, 4, 2, uncores_per_node=2)), MapLayout())
    assert len(lines) < 24
    assert max(map(len, lines)) <= 100
    assert any("16 nodes 16-31  CPUs 64-127,320-383: each 16 GiB, 2 L3" in line for line in lines)


def test_the_cpus_of_each_of_few_nodes_are_named_above_128_cpus() -> None:
    host = regular_host(2, 4, 28, 2)
    lines = drawn(map_of_host(host), MapLayout())
    for node in host.nodes:
        assert any(f"node {node.id}, L3" in line and f"CPUs {node.cpus}" in line for line in lines)


def test_isolated_cpus_make_a_part_unlike_its_neighbours() -> None:
    host = with_isolated(regular_host(9, 1, 16, 1), Mask.of(20))
    lines = drawn(map_of_host(host), MapLayout())
    assert any(line.startswith("package 1, node 1, L3 16  CPUs 16-31") for line in lines)
    assert not any(line.startswith("9 packages") for line in lines)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_columns_continue_below_where_a_terminal_ends(width: int) -> None:
    document = map_of_host(regular_host(packages=1, cores_per_node=60, threads=2))
    rows = [row for row in drawn(document, MapLayout(width=width)) if row.startswith("  cpu")]
    assert len(rows) > 1
    assert max(map(len, rows)) <= width


@pytest.mark.parametrize("width", [60, 80])
def test_long_lines_of_text_are_broken_where_a_terminal_ends(width: int) -> None:
    host = regular_host(cores_per_node=8, hugepages=[(2 << 20, 512)])
    rules = make_rules(machine_of(host))
    document = map_of_allocations(host, rules, rules.empty_ledger())
    whole, lines = drawn(document), drawn(document, MapLayout(width=width))
    assert max(map(len, whole)) > width >= max(map(len, lines))
    assert " ".join(lines).split() == " ".join(whole).split()


def test_caches_have_their_size_and_those_of_another_size_share_no_line() -> None:
    host = regular_host(1, 2, 80, 1, uncores_per_node=10)
    sizes = dict.fromkeys({cpu.uncore for cpu in host.cpus if cpu.uncore is not None}, 32 << 20)
    lines = drawn(map_of_host(replace(host, uncore_bytes={**sizes, 0: 96 << 20})), MapLayout())
    assert any("L3 0 (96 MiB)  CPUs 0-7" in line for line in lines)
    assert any("9 L3 8,16,24" in line and "each 32 MiB, 8 cores" in line for line in lines)


def test_lines_into_a_pipe_are_never_broken() -> None:
    document = map_of_host(regular_host(packages=1, cores_per_node=100, threads=1))
    (row,) = [row for row in drawn(document) if row.startswith("  cpu")]
    assert row.split() == ["cpu", *map(str, range(100))]


def test_colours_are_added_to_the_same_text() -> None:
    host = regular_host(packages=1, cores_per_node=4, threads=2)
    document = map_of_allocations(
        host, make_rules(machine_of(host)), ledger_with(pod_with("pod-0", "1"))
    )
    lines = list(map_lines(document))
    coloured = [painted(spans) for spans in lines]
    assert any("\x1b[" in text for text in coloured)
    without = [re.sub(r"\x1b\[[\d;]*m", "", text).rstrip() for text in coloured]
    assert without == [plain(spans) for spans in lines]


def test_a_focus_shows_the_nodes_of_one_pod_and_hides_whose_the_others_are() -> None:
    host = regular_host(packages=2, cores_per_node=4, threads=1)
    pods = [pod_with("pod-0", "1"), pod_with("pod-1", "2"), pod_with("pod-2", "5")]
    document = map_of_allocations(host, make_rules(machine_of(host)), ledger_with(*pods))
    lines = drawn(document, MapLayout(focus="uid-1"))
    assert dict(cells(lines)) == {0: "R", 1: "o", 2: "B", 3: "."}
    assert labels_in(lines) == {"uid-1": "B"}


def test_a_focus_draws_the_cores_of_a_large_host() -> None:
    host = regular_host(4, 16, 32, 2)
    document = map_of_allocations(
        host, make_rules(machine_of(host)), ledger_with(pod_with("pod-0", "40"))
    )
    found = dict(cells(drawn(document, MapLayout(focus="uid-0"))))
    assert (len(found), found[40]) == (64, "A")


def test_a_node_over_several_packages_is_drawn_once_around_them() -> None:
    host = regular_host(packages=4, nodes_per_package=1, cores_per_node=2, threads=1)
    cpus = tuple(replace(cpu, node=0, uncore=0) for cpu in host.cpus)
    wide = replace(host, cpus=cpus, nodes=(replace(host.nodes[0], cpus=host.online),))
    assert drawn(map_of_host(wide))[1:] == [
        "node 0, L3 0  CPUs 0-7",
        "  memory        16 GiB",
        "  package 0  CPUs 0-1",
        "    cpu    0  1",
        "  package 1  CPUs 2-3",
        "    cpu    2  3",
        "  package 2  CPUs 4-5",
        "    cpu    4  5",
        "  package 3  CPUs 6-7",
        "    cpu    6  7",
    ]


def test_a_node_that_nests_in_no_order_has_its_memory_once() -> None:
    host = regular_host(packages=2, cores_per_node=2, threads=1)
    places = (0, 1, 0, 1)
    cpus = tuple(replace(cpu, node=place) for cpu, place in zip(host.cpus, places, strict=True))
    lines = drawn(map_of_host(replace(host, cpus=cpus)))
    assert sum("memory        16 GiB" in line for line in lines) == 2
    assert sum("memory and devices as above" in line for line in lines) == 2


def test_memory_only_nodes_have_the_nodes_with_cpus_that_are_nearest() -> None:
    host = with_memory_only_nodes(regular_host(packages=2), [64 << 30])
    lines = drawn(map_of_host(host))
    place = lines.index("node 2  no CPUs; nearest CPUs: nodes 0-1 (distance 28)")
    assert lines[place + 1 : place + 3] == ["  memory class  unknown", "  memory        64 GiB"]


def test_nodes_share_a_line_with_those_of_their_class_of_memory() -> None:
    document = map_of_host(with_memory_only_nodes(regular_host(16, 1, 16), [64 << 30] * 18))
    first, second = document.nodes[16:25], document.nodes[25:]
    nodes = (
        *document.nodes[:16],
        *(replace(node, memory_class="cxl") for node in first),
        *(replace(node, memory_class="gpu") for node in second),
    )
    lines = drawn(replace(document, nodes=nodes), MapLayout())
    assert [line.partition(", nearest")[0] for line in lines if "no CPUs" in line] == [
        "9 nodes 16-24  no CPUs: each 64 GiB, class cxl",
        "9 nodes 25-33  no CPUs: each 64 GiB, class gpu",
    ]


def test_memory_tiers_are_named_where_there_are_several() -> None:
    host = regular_host(packages=2)
    for tiers, expected in (((4, 22), ["memory tier   4", "memory tier   22"]), ((4, 4), [])):
        nodes = tuple(
            replace(node, tier=tier) for node, tier in zip(host.nodes, tiers, strict=True)
        )
        lines = drawn(map_of_host(replace(host, nodes=nodes)))
        assert [line.strip() for line in lines if "tier" in line] == expected


def test_offline_cpus_stand_apart_by_their_node() -> None:
    host = with_offline(regular_host(packages=1, cores_per_node=3, threads=1), Mask.of(2))
    lines = drawn(map_of_host(host))
    place = lines.index("offline, node 0  CPUs 2")
    assert [line.split() for line in lines[place + 1 : place + 3]] == [["cpu", "2"], ["x"]]


def test_withheld_cpus_stand_in_their_core_and_are_no_pods() -> None:
    host = replace(
        regular_host(packages=1, cores_per_node=4, threads=1),
        withheld=(WithheldCpus(Mask.of(2), "/ovs.slice"),),
    )
    ledger = ledger_with(pod_with("pod-0", "1-2"))
    document = map_of_allocations(host, make_rules(machine_of(host), memory=False), ledger)
    lines = drawn(document)
    assert dict(cells([line.replace("-", "x") for line in lines])) == {
        0: "R", 1: "A", 2: "x", 3: ".",
    }  # fmt: skip
    assert any("1 of 2 CPUs allocated" in line for line in lines)
    assert any("withheld by another cgroup" in line for line in lines)


def test_devices_stand_by_their_node_and_pods_beside_what_they_have() -> None:
    classes = ("0x020000", "0x020000", "0x060400", "0x0b4000", "0x010802", "0xff0000")
    addresses = [f"0000:0{number}:00.0" for number in range(len(classes))]
    devices = (
        *(
            Device("pci", address, address, 1, device_class=device_class)
            for address, device_class in zip(addresses, classes, strict=True)
        ),
        Device("net", "eth0", addresses[0], 1),
        Device("net", "usb0", "", None),
    )
    lines = drawn(map_of_host(replace(regular_host(), devices=devices)))
    assert (
        "  devices       network 0000:01:00.0, processor 0000:03:00.0, NVMe 0000:04:00.0, "
        "eth0 (0000:00:00.0), 1 x bridge, 1 x other"
    ) in lines
    assert "no node  devices       usb0" in lines


def test_names_cannot_send_sequences_to_the_terminal() -> None:
    host = replace(regular_host(), devices=(Device("net", "\x1b[2Jeth0\udcff", "", 0),))
    for render in (plain, painted):
        text = "\n".join(render(spans) for spans in map_lines(map_of_host(host)))
        assert "\x1b[2J" not in text
        assert "\\x1b[2Jeth0\\udcff" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0-63,128-191", "0-63,128-191"),
        (",".join(str(cpu) for cpu in range(0, 100, 2)), "0,2,4,...,98 (50 CPUs)"),
    ],
)
def test_a_list_too_long_to_read_shows_its_ends(text: str, shown: str) -> None:
    assert id_list(Mask.parse(text)) == shown


def test_ids_of_packages_are_not_called_cpus() -> None:
    assert id_list(Mask.from_ids(range(0, 300, 3)), "package").endswith("(100 packages)")


def test_devices_of_the_kubelet_stand_at_their_nodes_with_their_pods() -> None:
    host = regular_host(packages=2, cores_per_node=4, threads=1)
    pods = [pod_with("pod-0", "1"), pod_with("pod-1", "")]
    nics = tuple(
        GivenDevice("x.org/nic", f"n{number}", Mask.from_ids(nodes))
        for number, nodes in enumerate(((0,), (0,), (1,), (1,), (0, 1)))
    )
    listed = {
        ("shop", "pod-0"): {"main": (nics[1],)},
        ("shop", "pod-1"): {"main": (nics[2],)},
        ("else", "where"): {"main": (nics[3],)},
    }
    document = map_of_allocations(
        host,
        make_rules(machine_of(host)),
        ledger_with(*pods),
        kubelet=KubeletListing(listed, nics),
    )
    found = [line.strip() for line in drawn(document) if "x.org/nic" in line]
    assert found == [
        "x.org/nic (kubelet): n0, n1 (A main)",
        "x.org/nic (kubelet): n2 (shop/pod-1 main), n3 (else/where)",
        "nodes 0-1  x.org/nic (kubelet): n4",
    ]
