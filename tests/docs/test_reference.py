"""The references are what keys and documents declare; `make docs` writes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from agent.config.keys import paths
from agent.config.model import Config
from deploy.site.configuration import configuration_page
from tests.docs.reference import CHANGED, REFERENCES, example_file

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("name", REFERENCES)
def test_the_reference_is_that_of_the_declarations(name: str) -> None:
    file, written = REFERENCES[name]
    assert file.read_text() == written(), f"{file.name} is not up to date: run `make docs`"


def test_every_key_has_its_place_on_the_page() -> None:
    headings = re.findall(r"^### `(.*)`$", configuration_page(), flags=re.MULTILINE)
    assert headings == [path for path, _ in paths(Config)]


@pytest.mark.parametrize("written", [configuration_page, example_file])
def test_no_line_of_the_reference_is_longer_than_a_hundred_characters(
    written: Callable[[], str],
) -> None:
    assert [line for line in written().splitlines() if len(line) > 100] == []


def test_what_the_example_changes_are_keys() -> None:
    assert set(CHANGED) <= {path for path, _ in paths(Config)}
