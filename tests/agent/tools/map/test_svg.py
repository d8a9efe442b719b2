from __future__ import annotations

import colorsys
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from agent.api.map import MapWarningDocument, map_of_allocations, map_of_host
from agent.managers.policy import Cordon
from agent.tools.dashboard.server import page_files
from agent.tools.map.svg import COLOURS, svg_of
from sysfs.described import regular_host, with_memory_only_nodes
from sysfs.host import Device
from sysfs.mask import Mask
from tests.agent.api.maps import occupied_hosts
from tests.agent.managers.hosts import make_rules
from tests.agent.managers.ledgers import ledger_with
from tests.agent.tools.map.pods import machine_of, pod_with

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from agent.api.map import MapDocument
    from tests.agent.api.maps import Occupied

_SVG = "{http://www.w3.org/2000/svg}"


def drawn(document: MapDocument, focus: str | None = None) -> Element:
    return ET.fromstring(svg_of(document, focus))  # noqa: S314  # our own text


def cpus_in(root: Element) -> dict[int, Element]:
    found = [each for each in root.iter(f"{_SVG}rect") if "data-cpu" in each.attrib]
    by_id = {int(each.attrib["data-cpu"]): each for each in found}
    assert len(by_id) == len(found)
    return by_id


def title_of(element: Element) -> str:
    return element.findtext(f"{_SVG}title") or ""


@settings(max_examples=40, deadline=None)
@given(occupied_hosts())
def test_every_cpu_is_one_element_with_a_title_that_says_whose_it_is(case: Occupied) -> None:
    document = map_of_allocations(case.host, case.rules, case.ledger)
    elements = cpus_in(drawn(document))
    assert elements.keys() == {cpu.id for cpu in document.cpus}
    for cpu in document.cpus:
        assert str(cpu.use) in elements[cpu.id].attrib["class"].split()
        title = title_of(elements[cpu.id])
        assert title.startswith(f"CPU {cpu.id}, {cpu.use}")
        for owner in cpu.owners:
            assert f"shop/{owner.uid.replace('uid', 'pod')}" in title


@pytest.mark.parametrize("shape", [(1, 1, 8, 1), (4, 16, 32, 2)])
def test_small_and_large_hosts_have_all_elements_inside_of_the_picture(
    shape: tuple[int, int, int, int],
) -> None:
    root = drawn(map_of_host(regular_host(*shape)))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for each in root.iter(f"{_SVG}rect"):
        assert float(each.attrib["x"]) + float(each.attrib["width"]) <= width
        assert float(each.attrib["y"]) + float(each.attrib["height"]) <= height


def test_the_picture_has_a_title_and_follows_light_and_dark_and_needs_nothing_else() -> None:
    text = svg_of(map_of_host(regular_host()))
    assert title_of(ET.fromstring(text))  # noqa: S314  # our own text
    assert "prefers-color-scheme: dark" in text
    assert text.count("http") == 1  # the name space


def test_the_picture_names_host_time_and_what_its_cells_mean() -> None:
    host = regular_host(packages=2, cores_per_node=4, threads=2)
    rules = make_rules(machine_of(host))
    policy = replace(rules.policy, cordon=Cordon(nodes=Mask.of(1)))
    document = map_of_allocations(
        host, replace(rules, policy=policy), ledger_with(pod_with("pod-0", "1-2,10"))
    )
    root = drawn(replace(document, hostname="node-7.lab", time=1_700_000_000.0))
    texts = [each.text for each in root.iter(f"{_SVG}text")]
    assert texts[0] == "node-7.lab, 2023-11-14 22:13:20Z"
    for meaning in ("one container's", "cordoned", "core with several users", "shared pool"):
        assert meaning in texts
    assert "allocated twice" not in texts
    assert any(text and "node 1" in text and "(cordoned)" in text for text in texts)


def test_the_picture_names_the_classes_of_memory_where_there_are_several() -> None:
    alike = map_of_host(regular_host(packages=2))
    several = map_of_host(with_memory_only_nodes(regular_host(packages=2), [64 << 30]))
    for document, expected in (
        (alike, ["memory: 16 GiB"] * 2),
        (several, [*["memory: 16 GiB, class dram"] * 2, "memory: 64 GiB, class unknown"]),
    ):
        texts = [each.text or "" for each in drawn(document).iter(f"{_SVG}text")]
        assert [text for text in texts if text.startswith("memory:")] == expected


def test_packages_stand_beside_each_other_where_there_is_room() -> None:
    root = drawn(map_of_host(regular_host(2, 1, 16, 2)))
    boxes = [each for each in root.iter(f"{_SVG}rect") if each.attrib["class"] == "part"]
    assert len({each.attrib["y"] for each in boxes}) == 1
    assert len({each.attrib["x"] for each in boxes}) == 2


def test_warnings_stand_by_their_reason_the_first_of_each() -> None:
    host = regular_host(packages=1, cores_per_node=4, threads=2)
    document = map_of_allocations(host, make_rules(machine_of(host)), ledger_with())
    many = tuple(MapWarningDocument("ContainerNotFound", f"pod-{n}") for n in range(30))
    root = drawn(replace(document, warnings=(*many, MapWarningDocument("SharedCore", "core 1"))))
    texts = [(each.text or "").strip() for each in root.iter(f"{_SVG}text")]
    assert texts[-10:] == [
        "! ContainerNotFound: 30",
        *(f"pod-{n}" for n in range(6)),
        "and 24 more",
        "! SharedCore: 1",
        "core 1",
    ]


def test_the_colours_are_those_of_the_page_and_none_is_near_that_of_warnings() -> None:
    css = page_files()["/map.css"].body.decode()
    assert tuple(re.findall(r"--hue\d: (#\w+);", css)[: len(COLOURS)]) == COLOURS

    def hue(colour: str) -> float:
        return colorsys.rgb_to_hls(*(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)))[0]

    warnings = re.findall(r"--warning: (#\w+)", svg_of(map_of_host(regular_host())))
    assert len(warnings) == 2
    for warning in warnings:
        away = [abs((hue(colour) - hue(warning) + 0.5) % 1 - 0.5) for colour in COLOURS]
        assert min(away) > 0.07


def test_equal_packages_share_a_line_unless_all_is_asked_for() -> None:
    document = map_of_host(regular_host(16, 2, 16))
    assert len(cpus_in(drawn(document))) == 0
    assert len(cpus_in(ET.fromstring(svg_of(document, full=True)))) == 1024  # noqa: S314


def test_all_pods_but_the_focus_are_faint() -> None:
    host = regular_host(packages=1, cores_per_node=4, threads=1)
    pods = (pod_with("pod-0", "1"), pod_with("pod-1", "2"))
    document = map_of_allocations(host, make_rules(machine_of(host)), ledger_with(*pods))
    elements = cpus_in(drawn(document, "uid-1"))
    assert [cpu for cpu, each in elements.items() if "faint" not in each.attrib["class"]] == [2]


def test_threads_of_a_core_with_two_users_are_marked() -> None:
    host = regular_host(packages=1, cores_per_node=4, threads=2)
    document = map_of_allocations(
        host, make_rules(machine_of(host)), ledger_with(pod_with("pod-0", "1-2,6"))
    )
    elements = cpus_in(drawn(document))
    assert {cpu for cpu, each in elements.items() if "mixed" in each.attrib["class"]} == {1, 5}


def test_names_cannot_leave_their_element() -> None:
    name = "</text><script>\x00\udcff&"
    host = replace(regular_host(), devices=(Device("net", name, "", 0),))
    root = drawn(map_of_host(host))
    assert root.find(f".//{_SVG}script") is None
    assert any("<script>\\x00\\udcff&" in (each.text or "") for each in root.iter(f"{_SVG}text"))
