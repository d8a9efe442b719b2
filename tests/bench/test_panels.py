"""The picture is well-formed, and higher where it took longer."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tests.bench.panels import Panel, picture

pytestmark = pytest.mark.nightly

SVG = "{http://www.w3.org/2000/svg}"


def test_every_panel_has_its_title_and_a_dot_per_point() -> None:
    panels = [Panel("a < b", ((1, 100), (2, 1000))), Panel("c", ((5, 50),)), Panel("d", ())]
    root = ET.fromstring(picture(panels))  # noqa: S314  (our own text)
    groups = root.findall(f"{SVG}g")
    assert [len(group.findall(f"{SVG}circle")) for group in groups] == [2, 1, 0]
    title = groups[0].find(f"{SVG}text")
    assert title is not None
    assert title.text == "a < b"


def test_ten_times_as_long_is_as_far_above_everywhere() -> None:
    root = ET.fromstring(picture([Panel("", ((1, 10), (2, 100), (3, 1000)))]))  # noqa: S314
    low, middle, high = (int(dot.attrib["cy"]) for dot in root.iter(f"{SVG}circle"))
    assert low > middle > high
    assert abs((low - middle) - (middle - high)) <= 1
