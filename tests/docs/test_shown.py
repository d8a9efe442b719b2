"""What the pages show is what their commands print.

`make docs` puts into the pages what is printed now.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.docs.consoles import shown_in
from tests.docs.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.docs.consoles import Shown

COMMANDS = [
    (name, number, shown)
    for name, page in PAGES.items()
    for number, shown in enumerate(shown_in(page.file.read_text()))
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    return cache(lambda name: PAGES[name].printed(tmp_path_factory.mktemp(name)))


# All commands of a page run for the first of its tests, some fifty programs one after the other.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("page", "number", "shown"),
    COMMANDS,
    ids=[f"{name}-{number}" for name, number, _ in COMMANDS],
)
def test_what_is_shown_is_printed(
    printed: Callable[[str], list[str]], page: str, number: int, shown: Shown
) -> None:
    assert printed(page)[number] == shown.output, f"{page}.md: {shown.command}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_with_a_prompt_is_run(page: str) -> None:
    text = PAGES[page].file.read_text()
    prompts = [line for line in text.splitlines() if line.partition(" ")[0].endswith("$")]
    assert len(prompts) == len(shown_in(text)) > 0
