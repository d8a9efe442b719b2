from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from agent.api.documents.map import (
    CpuUse,
    MapCpuDocument,
    MapDocument,
    MapOwnerDocument,
    MapPodDocument,
)
from agent.api.map import map_of_allocations, map_of_host
from agent.managers.device.kubelet import KubeletListing
from agent.pods.model import GivenDevice
from agent.tools.map.owners import owner_lines
from agent.tools.map.spans import painted, plain
from agent.tools.map.text import MapLayout, map_lines
from agent.tools.map.words import id_list
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

    from agent.managers.allocation import PodAllocation
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


SMALL = regular_host(packages=1, cores_per_node=4, threads=1)
TWO = regular_host(packages=2, cores_per_node=4, threads=1)
LARGE = regular_host(4, 16, 32, 2, uncores_per_node=2)


def occupied(
    host: Host, *pods: PodAllocation, kubelet: KubeletListing | None = None, reserved: str = "0"
) -> MapDocument:
    rules = make_rules(machine_of(host), reserved=reserved, memory=False)
    listing = KubeletListing() if kubelet is None else kubelet
    return map_of_allocations(host, rules, ledger_with(*pods), kubelet=listing)


def at_odd_distances() -> Host:
    """Return a host whose threads are not equally far from their siblings."""
    host = regular_host(packages=1, cores_per_node=2, threads=2)
    moved = {0: 0, 1: 1, 2: 7, 3: 5}
    cpus = sorted((replace(cpu, id=moved[cpu.id]) for cpu in host.cpus), key=lambda cpu: cpu.id)
    nodes = (replace(host.nodes[0], cpus=Mask.of(0, 1, 5, 7)),)
    return replace(host, cpus=tuple(cpus), nodes=nodes)


def with_caches() -> Host:
    host = regular_host(1, 2, 80, 1, uncores_per_node=10)
    sizes = dict.fromkeys({cpu.uncore for cpu in host.cpus if cpu.uncore is not None}, 32 << 20)
    return replace(host, uncore_bytes={**sizes, 0: 96 << 20})


def over_packages() -> Host:
    host = regular_host(packages=4, nodes_per_package=1, cores_per_node=2, threads=1)
    cpus = tuple(replace(cpu, node=0, uncore=0) for cpu in host.cpus)
    return replace(host, cpus=cpus, nodes=(replace(host.nodes[0], cpus=host.online),))


def nesting_in_no_order() -> Host:
    host = regular_host(packages=2, cores_per_node=2, threads=1)
    places = (0, 1, 0, 1)
    cpus = (replace(cpu, node=place) for cpu, place in zip(host.cpus, places, strict=True))
    return replace(host, cpus=tuple(cpus))


def of_memory_classes() -> MapDocument:
    document = map_of_host(with_memory_only_nodes(regular_host(16, 1, 16), [64 << 30] * 18))
    classes = ("cxl",) * 9 + ("gpu",) * 9
    last = zip(document.nodes[16:], classes, strict=True)
    nodes = (replace(node, memory_class=name) for node, name in last)
    return replace(document, nodes=(*document.nodes[:16], *nodes))


def with_tiers(*tiers: int) -> Host:
    host = regular_host(packages=2)
    nodes = (replace(node, tier=tier) for node, tier in zip(host.nodes, tiers, strict=True))
    return replace(host, nodes=tuple(nodes))


def with_devices() -> Host:
    classes = ("0x020000", "0x020000", "0x060400", "0x0b4000", "0x010802", "0xff0000")
    devices = [
        Device("pci", f"0000:0{number}:00.0", f"0000:0{number}:00.0", 1, device_class=kind)
        for number, kind in enumerate(classes)
    ]
    net = (Device("net", "eth0", "0000:00:00.0", 1), Device("net", "usb0", "", None))
    return replace(regular_host(), devices=(*devices, *net))


def beside_a_kubelet() -> MapDocument:
    nics = tuple(
        GivenDevice("x.org/nic", f"n{number}", Mask.from_ids(nodes))
        for number, nodes in enumerate(((0,), (0,), (1,), (1,), (0, 1)))
    )
    listed = {
        ("shop", "pod-0"): {"main": (nics[1],)},
        ("shop", "pod-1"): {"main": (nics[2],)},
        ("else", "where"): {"main": (nics[3],)},
    }
    pods = (pod_with("pod-0", "1"), pod_with("pod-1", ""))
    return occupied(TWO, *pods, kubelet=KubeletListing(listed, nics))


THREE = (pod_with("pod-0", "1"), pod_with("pod-1", "2"), pod_with("pod-2", "5"))
WITHHELD = replace(SMALL, withheld=(WithheldCpus(Mask.of(2), "/ovs.slice"),))
COUNTED = MapLayout()
#: By the name of the text with the drawing; above 128 CPUs cores are counted unless all is asked.
DRAWINGS: Final = {
    "a core of two users": (
        occupied(regular_host(packages=1, cores_per_node=4), pod_with("pod-0", "1-2,6")),
        FULL,
    ),
    "threads at odd distances": (occupied(at_odd_distances()), FULL),
    "a large host": (
        occupied(LARGE, pod_with("pod-0", "8-10"), pod_with("pod-1", "40,2088"), reserved="0-3"),
        COUNTED,
    ),
    "many warnings": (occupied(LARGE, pod_with("pod-0", "8-40")), COUNTED),
    "a node with a pod": (occupied(regular_host(1, 64, 4, 1), pod_with("pod-0", "100")), COUNTED),
    "equal neighbours": (map_of_host(regular_host(4, 16, 4, 2, uncores_per_node=2)), COUNTED),
    "few large nodes": (map_of_host(regular_host(2, 4, 28, 2)), COUNTED),
    "an isolated CPU": (
        map_of_host(with_isolated(regular_host(9, 1, 16, 1), Mask.of(20))),
        COUNTED,
    ),
    "caches of two sizes": (map_of_host(with_caches()), COUNTED),
    "one pod": (occupied(TWO, *THREE), MapLayout(focus="uid-1")),
    "a node over packages": (map_of_host(over_packages()), FULL),
    "no nesting": (map_of_host(nesting_in_no_order()), FULL),
    "a node of memory": (map_of_host(with_memory_only_nodes(TWO, [64 << 30])), FULL),
    "classes of memory": (of_memory_classes(), COUNTED),
    "two tiers of memory": (map_of_host(with_tiers(4, 22)), FULL),
    "one tier of memory": (map_of_host(with_tiers(4, 4)), FULL),
    "an offline CPU": (map_of_host(with_offline(SMALL, Mask.of(2))), FULL),
    "a withheld CPU": (occupied(WITHHELD, pod_with("pod-0", "1-2")), FULL),
    "devices": (map_of_host(with_devices()), FULL),
    "devices of a kubelet": (beside_a_kubelet(), FULL),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_what_it_was(name: str) -> None:
    """With NUMAWARDEN_GOLDEN set the texts are written anew: look at what changed."""
    file = Path(__file__).parent / "golden" / f"{name.replace(' ', '-')}.txt"
    text = "".join(f"{line}\n" for line in drawn(*DRAWINGS[name]))
    if os.environ.get("NUMAWARDEN_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_full_and_a_focus_draw_the_cores_of_a_large_host() -> None:
    document = occupied(LARGE, pod_with("pod-0", "40"))
    assert len(list(cells(drawn(document)))) == 4096
    found = dict(cells(drawn(document, MapLayout(focus="uid-0"))))
    assert (len(found), found[40]) == (64, "A")


def test_more_pods_than_letters_have_two() -> None:
    host = regular_host(packages=1, cores_per_node=64, threads=1)
    pods = [pod_with(f"pod-{number}", str(number + 1)) for number in range(40)]
    lines = drawn(map_of_allocations(host, make_rules(machine_of(host)), ledger_with(*pods)))
    labels = list(labels_in(lines).values())
    assert len(set(labels)) == 40
    assert (labels[0], labels[22], labels[39]) == ("A", "AA", "AU")
    assert not set("IORX") & set("".join(labels))


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


def test_names_cannot_send_sequences_to_the_terminal() -> None:
    host = replace(regular_host(), devices=(Device("net", "\x1b[2Jeth0\udcff", "", 0),))
    for render in (plain, painted):
        text = "\n".join(render(spans) for spans in map_lines(map_of_host(host)))
        assert "\x1b[2J" not in text
        assert "\\x1b[2Jeth0\\xff" in text


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


def test_the_line_of_a_cordoned_node_says_so() -> None:
    host = with_memory_only_nodes(regular_host(2, 8, 8), [1 << 30])
    rules = make_rules(machine_of(host))
    document = map_of_allocations(host, rules, rules.empty_ledger())
    nodes = tuple(replace(node, cordoned=node.id in (3, *range(8, 17))) for node in document.nodes)
    heads = [text.strip() for text in drawn(replace(document, nodes=nodes), MapLayout())]
    said = [text for text in heads if "(cordoned)" in text]
    assert len(said) == 9
    assert said[0].startswith("node 3 (cordoned), L3 24  CPUs")
    assert any(text.startswith("node 16  no CPUs;") and "; cordoned" in text for text in heads)


def test_who_has_a_cpu_is_said_by_name() -> None:
    owner = partial(MapOwnerDocument, uid="u")
    cpus = (
        MapCpuDocument(id=0, use=CpuUse.POD, owners=(owner(),), node=0),
        MapCpuDocument(id=1, use=CpuUse.POD, owners=(owner(idle=True),)),
        MapCpuDocument(id=2, use=CpuUse.OFFLINE, owners=(owner(container="c"), owner(uid="v"))),
        MapCpuDocument(id=3, use=CpuUse.SHARED, isolated=True),
        MapCpuDocument(id=4, use=CpuUse.CORDONED, cordoned=True),
        MapCpuDocument(id=5, use=CpuUse.CORDONED, cordoned=True),
        MapCpuDocument(id=6, use=CpuUse.ONLINE),
    )
    pod = MapPodDocument(uid="u", name="db", namespace="shop", cpus="0-2", containers=())
    document = MapDocument(cpus=cpus, nodes=(), uncore_bytes={}, pods=(pod,))
    assert list(owner_lines(document, Mask.parse("0-5"))) == [
        "CPU 0: pod shop/db, shared in it, node 0",
        "CPU 1: kept idle for pod shop/db",
        "CPU 2: offline, pod shop/db, container c and pod v, shared in it",
        "CPU 3: in the node's shared pool, isolated",
        "CPUs 4-5: cordoned",
    ]
