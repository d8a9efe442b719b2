from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import ShellComplete

from agent.cli import common
from agent.cli import main as main_module
from agent.cli.errors import ExitCode
from agent.cli.main import COMMANDS, numawarden, run_command
from tests.agent.server.support import OTHER_UID, PATIENCE, manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.server.support import Running, World


def completions(*arguments: str) -> list[str]:
    """Return what is offered for the last argument after the others."""
    *before, incomplete = arguments
    shell = ShellComplete(numawarden, {}, "numawarden", "_NUMAWARDEN_COMPLETE")
    return [item.value for item in shell.get_completions(before, incomplete)]


@pytest.fixture
def two_pods(agent: Running, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Admit two pods of the agent that NUMAWARDEN_SOCKET names."""
    agent.client.admit(manifest())
    agent.client.admit(manifest("database", OTHER_UID, cpu="500m"))
    monkeypatch.setenv("NUMAWARDEN_SOCKET", str(world.socket))
    monkeypatch.setattr(common, "DEADLINE", PATIENCE)


def test_commands_are_completed_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(main_module, "import_module", fail)
    assert completions("") == list(COMMANDS)
    assert completions("unb") == ["unbind"]


@pytest.mark.usefixtures("two_pods")
@pytest.mark.parametrize("command", ["show", "remove", "map", "bind", "unbind"])
def test_pods_are_completed(command: str) -> None:
    assert completions(command, "") == ["shop/web", "shop/database"]
    assert completions(command, "shop/d") == ["shop/database"]
    assert completions(command, "da") == ["database"]
    assert completions(command, "x") == []


@pytest.mark.usefixtures("two_pods")
def test_containers_of_the_pod_are_completed() -> None:
    assert completions("bind", "shop/web", "") == ["c0"]
    assert completions("bind", "web", "c") == ["c0"]
    assert completions("bind", "web", "x") == []
    assert completions("bind", "nothing", "") == []
    assert completions("show", "web", "--container", "") == ["c0"]


def test_the_socket_of_the_command_line_is_asked(agent: Running, world: World) -> None:
    agent.client.admit(manifest())
    assert completions("show", "--socket", str(world.socket), "") == ["shop/web"]


def test_an_agent_that_is_away_has_nothing_to_complete(tmp_path: Path) -> None:
    assert completions("show", "--socket", str(tmp_path / "none"), "") == []


def test_an_agent_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "DEADLINE", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "a.sock"))
        silent.listen()
        assert completions("show", "--socket", str(tmp_path / "a.sock"), "") == []


def test_forms_of_output_are_completed() -> None:
    forms = ["text", "table", "wide", "json", "yaml", "name"]
    assert completions("list", "-o", "") == forms
    assert completions("list", "-o", "json", "--so") == ["--socket"]


def test_the_argument_pod_is_completed_wherever_it_is_taken() -> None:
    ctx = click.Context(numawarden)
    for name in numawarden.list_commands(ctx):
        command = numawarden.get_command(ctx, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Argument) and parameter.name in {"pod", "container"}:
                assert parameter._custom_shell_complete is not None, name


@pytest.mark.parametrize("shell", common.SHELLS)
def test_a_script_has_the_shells_syntax(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_command(["completion", shell]) == ExitCode.OK
    script = capsys.readouterr().out
    assert f"_NUMAWARDEN_COMPLETE={shell}_complete" in script
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(script)
    subprocess.run([path, "-n", str(file)], check=True)


@pytest.mark.usefixtures("two_pods")
def test_bash_completes_a_pod_by_the_script(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The function of the script is called as bash calls it at a press of the key."""
    assert run_command(["completion", "bash"]) == ExitCode.OK
    program = tmp_path / "numawarden"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m agent.cli.main "$@"\n')
    program.chmod(0o755)
    asked = (
        "COMP_WORDS=(numawarden show shop/d) COMP_CWORD=2\n"
        f"_numawarden_completion {program}\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    outcome = subprocess.run(
        ["bash", "--norc", "-c", capsys.readouterr().out + asked],
        capture_output=True,
        text=True,
        check=True,
    )
    assert outcome.stdout.split() == ["shop/database"]
