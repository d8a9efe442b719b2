from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from agent.api.host.mapped import map_of_allocations, map_of_host
from agent.tools.map.svg import svg_of
from sysfs.described.shapes import regular_host
from sysfs.host import Device
from tests.agent.api.maps import occupied_hosts
from tests.agent.managers.hosts import make_rules
from tests.agent.managers.ledgers import ledger_with
from tests.agent.tools.map.pods import machine_of, pod_with

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from agent.api.host.map import MapDocument
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
