"""docs/cli.md says of the forms of output what the commands have, and shows what they print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click
import pytest

from agent.cli.main import numawarden
from agent.cli.options import Output
from tests.docs.consoles import settings_in, shown_in
from tests.docs.hosts import ROOT, PageHost

if TYPE_CHECKING:
    from pathlib import Path

TEXT: Final = (ROOT / "docs/cli.md").read_text()
#: The host of the examples is that of another page.
SETTINGS: Final = settings_in((ROOT / "docs/scopes.md").read_text())


def forms_of_commands() -> dict[str, set[str]]:
    """Return the forms of each command of the top level that has any."""
    ctx, found = click.Context(numawarden), {}
    for name in numawarden.list_commands(ctx):
        command = numawarden.get_command(ctx, name)
        assert command is not None
        for parameter in command.params:
            if "--output" in parameter.opts and isinstance(parameter.type, click.Choice):
                found[name] = {str(each) for each in parameter.type.choices}
    return found


def test_every_form_of_output_is_explained_with_its_commands() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert {form for form, _ in rows} == set(map(str, Output))
    forms = forms_of_commands()
    for form, commands in rows:
        named = set(re.findall(r"`(\w+)`", commands)) & forms.keys()
        if named:
            assert named == {name for name, found in forms.items() if form in found}, form


@pytest.mark.timeout(300)
def test_the_table_that_is_shown_is_printed(tmp_path: Path) -> None:
    (shown,) = shown_in(TEXT)
    with PageHost(tmp_path / "host", SETTINGS) as host:
        for example in ("mixed", "guaranteed"):
            host.run(f"numawarden admit deploy/examples/{example}.yaml")
        assert host.run(shown.command) == shown.output
