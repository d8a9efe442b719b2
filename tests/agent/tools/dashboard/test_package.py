"""The files of the page: all are in the wheel, none needs another site."""

from __future__ import annotations

import colorsys
import re
from pathlib import Path
from typing import Final

from hatchling.builders.wheel import WheelBuilder

from agent.tools.dashboard.server import FOLDER, page_files

ROOT: Final = Path(__file__).resolve().parents[4]


def test_the_wheel_has_every_file_of_the_page() -> None:
    builder = WheelBuilder(str(ROOT))
    packed = {file.distribution_path for file in builder.recurse_included_files()}
    expected = {file.relative_to(ROOT).as_posix() for file in FOLDER.iterdir()}
    assert expected
    assert expected <= packed


def test_files_name_only_each_other() -> None:
    files = page_files()
    for name, file in files.items():
        text = file.body.decode()
        asked = re.findall(r'(?:from|src=|href=)\s*"([^"#]+)"', text)
        assert {f"/{path.removeprefix('./')}" for path in asked} <= files.keys(), name


def test_no_file_names_another_site() -> None:
    for name, file in page_files().items():
        addresses = set(re.findall(rb"https?://[^\s\"'<>]+", file.body))
        assert addresses <= {b"http://www.w3.org/2000/svg"}, name


def test_no_colour_of_a_pod_is_near_that_of_warnings() -> None:
    files = page_files()

    def hues(name: str, file: str) -> list[float]:
        found = re.findall(rf"--{name}: #(\w{{6}});", files[file].body.decode())
        return [colorsys.rgb_to_hls(*(byte / 255 for byte in bytes.fromhex(c)))[0] for c in found]

    pods, warnings = hues(r"hue\d", "/map.css"), hues("bad", "/style.css")
    assert (len(pods), len(warnings)) == (16, 2)
    for warning, colours in zip(warnings, (pods[:8], pods[8:]), strict=True):
        assert min(abs((colour - warning + 0.5) % 1 - 0.5) for colour in colours) > 0.07
