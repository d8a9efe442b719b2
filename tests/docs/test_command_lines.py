"""Every command line that a page names exists, with its options."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

import click
import pytest

from agent.cli.main import COMMANDS, numawarden
from tests.docs.hosts import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES: Final = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")})
#: A command in code: a line, or between backticks; without the program's name one with options.
_NAMED: Final = re.compile(
    r"(?:^ {4}\s*|^\$ |`|^)(?:sudo )?numawarden ([a-z][^`\n]*)", re.MULTILINE
)
_SHORT: Final = re.compile(rf"`((?:{'|'.join(COMMANDS)}) -[^`\n]*)`")
#: Where a command ends in a line of the shell.
_END: Final = re.compile(r"[|;&<>]|\s{2,}|\s#|\$\(|, ")


def faults(line: str) -> Iterator[str]:
    """Yield what of a command line the program does not know."""
    try:
        words = shlex.split(_END.split(line)[0], comments=True)
    except ValueError:  # a quotation that goes on in the next line
        return
    command: click.Command = numawarden
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0).rstrip(".:")
        found = command.get_command(click.Context(command), name)
        if found is None:
            if command is not numawarden:
                yield f"{command.name} has no {name!r}"
            return
        command = found
    known = {text for each in command.params for text in (*each.opts, *each.secondary_opts)}
    for word in words:
        option = word.partition("=")[0].rstrip(".,:;)")
        if word == "--" or (not command.allow_interspersed_args and not word.startswith("-")):
            return
        if re.fullmatch(r"--[a-z][a-z-]*", option) and option not in {
            *known,
            "--help",
            "--version",
        }:
            yield f"{command.name} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_of_a_page_are_those_of_the_program(page: Path) -> None:
    text = page.read_text()
    lines = [found[1] for pattern in (_NAMED, _SHORT) for found in pattern.finditer(text)]
    assert [(line, fault) for line in lines for fault in faults(line)] == []


def test_a_command_line_that_does_not_exist_is_noticed() -> None:
    assert list(faults("run --config /etc/numawarden/config.yaml")) == ["run has no --config"]
    assert list(faults("config look")) == ["config has no 'look'"]
    assert list(faults("agent --config FILE --set cgroupDriver=cgroupfs")) == []
