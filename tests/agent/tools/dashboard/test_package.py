"""The wheel has the files of the page."""

from __future__ import annotations

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
