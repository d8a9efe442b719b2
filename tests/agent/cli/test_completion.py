from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import ShellComplete

from agent.api.documents.maintenance import CordonRequest
from agent.cli import completion
from agent.cli import main as main_module
from agent.cli.main import COMMANDS, numawarden
from tests.agent.server.support import OTHER_UID, PATIENCE, manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent.cli.shell import Command
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
    for target in ("2-3", "node:1"):
        agent.client.cordon(CordonRequest(target=target))
    monkeypatch.setenv("NUMAWARDEN_SOCKET", str(world.socket))
    monkeypatch.setattr(completion, "DEADLINE", PATIENCE)


def test_commands_are_completed_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(main_module, "import_module", fail)
    assert completions("") == list(COMMANDS)
    assert completions("unb") == ["unbind"]


@pytest.mark.usefixtures("two_pods")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        *((f"{name} ", ["shop/web", "shop/database"]) for name in ("show", "remove", "map")),
        *((f"{name} ", ["shop/web", "shop/database"]) for name in ("bind", "unbind")),
        ("show shop/d", ["shop/database"]),
        ("show da", ["database"]),
        ("show x", []),
        ("bind shop/web ", ["c0"]),
        ("bind web c", ["c0"]),
        ("bind web x", []),
        ("bind nothing ", []),
        ("show web --container ", ["c0"]),
        ("list -o ", ["text", "table", "wide", "json", "yaml", "name"]),
        ("list -o json --so", ["--socket"]),
        ("admit --require ", ["exclusive", "aligned", "whole-cores", "near-device"]),
        ("admit --require aligned,exclusive,w", ["aligned,exclusive,whole-cores"]),
        ("run --require aligned,a", []),
        ("playground --host e", ["epyc"]),
        ("playground --host ./my", ["./my"]),
        ("cordon ", ["node:0", "node:1"]),
        ("drain node:1", ["node:1"]),
        ("uncordon ", ["node:1", "2-3"]),
        ("uncordon 2", ["2-3"]),
    ],
)
def test_pods_containers_and_forms_are_completed(typed: str, offered: list[str]) -> None:
    assert completions(*typed.split(" ")) == offered


def test_the_socket_of_the_command_line_is_asked(agent: Running, world: World) -> None:
    agent.client.admit(manifest())
    assert completions("show", "--socket", str(world.socket), "") == ["shop/web"]


def test_an_agent_that_does_not_answer_has_nothing_to_complete_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("show", "--socket", str(tmp_path / "a.sock"), "")
    assert completions(*asked) == []
    monkeypatch.setattr(completion, "DEADLINE", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "a.sock"))
        silent.listen()
        assert completions(*asked) == []


def test_the_argument_pod_is_completed_wherever_it_is_taken() -> None:
    ctx = click.Context(numawarden)
    for name in numawarden.list_commands(ctx):
        command = numawarden.get_command(ctx, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Argument) and parameter.name in {"pod", "container"}:
                assert parameter._custom_shell_complete is not None, name


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_has_the_shells_syntax(shell: str, run: Command, tmp_path: Path) -> None:
    script = run("completion", shell)[1]
    assert f"_NUMAWARDEN_COMPLETE={shell}_complete" in script
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(script)
    subprocess.run([path, "-n", str(file)], check=True)


@pytest.mark.usefixtures("two_pods")
def test_bash_completes_a_pod_by_the_script(run: Command, tmp_path: Path) -> None:
    """The function of the script is called as bash calls it at a press of the key."""
    program = tmp_path / "numawarden"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m agent.cli.main "$@"\n')
    program.chmod(0o755)
    asked = (
        "COMP_WORDS=(numawarden show shop/d) COMP_CWORD=2\n"
        f"_numawarden_completion {program}\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    command = ["bash", "--norc", "-c", run("completion", "bash")[1] + asked]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True)
    assert outcome.stdout.split() == ["shop/database"]
