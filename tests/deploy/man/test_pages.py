from __future__ import annotations

import os
import re
import shutil
import subprocess
from datetime import date
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.errors import ExitCode
from agent.cli.main import COMMANDS
from deploy.man import roff
from deploy.man.pages import EXAMPLES, contexts, page, page_name, write
from tests.docs.test_command_lines import faults

if TYPE_CHECKING:
    from pathlib import Path

DAY: Final = date(2026, 11, 22)
PAGES: Final = {page_name(ctx): ctx for ctx in contexts()}
MAN: Final = shutil.which("man")
needs_man: Final = pytest.mark.skipif(
    MAN is None or shutil.which("groff") is None, reason="man and groff are not installed"
)


def rendered(file: Path) -> subprocess.CompletedProcess[str]:
    """Show a page as on a wide terminal, with all warnings of groff."""
    environment = {**os.environ, "MANWIDTH": "1000", "LC_ALL": "C.UTF-8", "MANROFFOPT": ""}
    return subprocess.run(
        [str(MAN), "--warnings", "--no-hyphenation", "--no-justification", "-l", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


def plain(text: str) -> str:
    """Return what a page shows without overstrikes, as one line."""
    return " ".join(re.sub(r".\x08", "", text).split())


def test_every_command_and_subcommand_has_its_page() -> None:
    assert {"numawarden", "numawarden-config-check", "numawarden-state-import"} <= PAGES.keys()
    assert {f"numawarden-{name}" for name in COMMANDS} <= PAGES.keys()


def test_pages_are_written_below_their_names(tmp_path: Path) -> None:
    files = write(tmp_path / "man", DAY)
    assert sorted(file.name for file in files) == sorted(f"{name}.1" for name in PAGES)
    assert all(file.read_text().startswith(".TH ") for file in files)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_the_option_for_help(name: str) -> None:
    assert roff.bold("-h, --help") in page(PAGES[name], DAY)


def test_the_same_day_gives_the_same_page() -> None:
    assert page(PAGES["numawarden-list"], DAY) == page(PAGES["numawarden-list"], DAY)
    assert '"2026\\-11\\-22"' in page(PAGES["numawarden-list"], DAY)


def test_a_command_with_exit_codes_of_its_own_has_these() -> None:
    for name, said in (("check", "4 the agent does"), ("run", "126 when"), ("fit", "with 0 if")):
        status = page(PAGES[f"numawarden-{name}"], DAY).partition('"EXIT STATUS"')[2]
        assert said in status
        assert ExitCode.BAD_INPUT.meaning not in status


def test_examples_are_command_lines_of_the_program() -> None:
    assert EXAMPLES.keys() <= PAGES.keys()
    for name, examples in EXAMPLES.items():
        for example in examples:
            line = example[example.rindex(name.replace("-", " ")) :].partition(" ")[2]
            assert list(faults(line)) == []


@pytest.mark.parametrize("name", PAGES)
@needs_man
def test_a_page_renders_without_warnings_and_says_what_help_says(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.1"
    file.write_text(page(PAGES[name], DAY))
    shown = rendered(file)
    assert shown.stderr == ""
    text = plain(shown.stdout)
    ctx = PAGES[name]
    for parameter in ctx.command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            assert " ".join(record[0].split()) in text
            assert " ".join(record[1].split()) in text
    for part in (ctx.command.help or "").split("\n\n"):
        assert " ".join(part.split()) in text
    status = text.partition(" EXIT STATUS ")[2].partition(" ENVIRONMENT ")[0]
    own = {f"{code.value} {code.meaning}" for code in ExitCode if code.meaning in status}
    assert len(own) in (0, len(ExitCode))
    assert ("All others are those of numawarden(1)." in status) is not bool(own)


@needs_man
@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126)), max_size=3))
def test_no_text_is_taken_for_a_request(texts: list[str]) -> None:
    """Dots, quotes and backslashes at the beginning of a line would be commands to roff."""
    lines = [roff.title("x", "2026-11-22", "1"), *roff.section("name", ["x \\- y"])]
    lines += roff.section("text", [line for text in texts for line in roff.entry("term", text)])
    shown = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-P-cbou", "-rLL=9999n", "-rHY=0"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    found = " ".join(shown.stdout.split())
    assert all(" ".join(text.split()) in found for text in texts)
