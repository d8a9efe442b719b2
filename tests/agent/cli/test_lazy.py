from __future__ import annotations

import subprocess
import sys

import click
import pytest

from agent.cli.main import LazyCommand, LazyGroup


def group(target: str) -> LazyGroup:
    return LazyGroup(name="g", lazy={"go": LazyCommand(target, "Go.")})


def test_a_command_is_imported_when_it_is_called() -> None:
    lazy = group("agent.cli.health:status")
    command = lazy.get_command(click.Context(lazy), "go")
    assert command is not None
    assert command.name == "status"
    assert lazy.get_command(click.Context(lazy), "stay") is None


def test_what_few_command_lines_need_is_imported_by_them() -> None:
    rare = {"agent.sources.manifests"}
    script = f"import sys, agent.cli.pods; print({rare} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_a_target_that_is_not_a_command_is_a_defect() -> None:
    lazy = group("agent.cli.errors:ExitCode")
    with pytest.raises(TypeError, match="is not a command"):
        lazy.get_command(click.Context(lazy), "go")
