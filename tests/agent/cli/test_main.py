from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from agent import __version__
from agent.cli import main as main_module
from agent.cli.errors import CommandError, ExitCode
from agent.cli.main import COMMANDS, numawarden, run_command

#: What a help text must not wait for.
HEAVY = ("aiohttp", "rich", "pyroute2", "asyncio", "structlog", "msgspec", "yaml", "http.client")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)
    assert "7 not enforced" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_explains_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = numawarden.get_command(click.Context(numawarden), name)
    assert command is not None
    assert command.help
    assert run_command([name, "--help"]) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom agent.cli.main import run_command\n"
        f"run_command({arguments!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert outcome.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fly"], "No such command 'fly'"),
        (["admt"], "No such command 'admt', did you mean 'admit'?"),
        (["admit"], "Missing argument 'FILE...'; see 'numawarden admit --help'"),
        (["list", "--output", "xml"], "'xml' is not one of"),
        (["bind", "a", "b"], "give either --cgroup or --pid; see 'numawarden bind --help'"),
        (["bind", "a", "b", "--pid", "0"], "0 is not in the range x>=1"),
        (["agent"], "Missing option '--config'"),
    ],
)
def test_a_wrong_command_line_is_reported_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("numawarden: error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(main_module.numawarden, "main", fail)


def test_an_expected_error_is_a_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, CommandError("no pod\nfirst: 1\n\nsecond: 2", ExitCode.NOT_FOUND))
    assert run_command([]) == ExitCode.NOT_FOUND
    assert capsys.readouterr().err == "numawarden: error: no pod\n  first: 1\n  second: 2\n"


def test_a_defect_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run_command([])


def test_an_interrupted_command_says_so_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert run_command([]) == ExitCode.INTERRUPTED


def test_a_reader_that_goes_away_is_not_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "agent.cli.main", "--help"]
    outcome = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert outcome.returncode == 0
    assert outcome.stderr == b""


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("get", "list"), ("describe", "show"), ("rm", "remove"), ("version", "--version")],
)
def test_commands_of_other_tools_are_answered_with_ours(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([typed]) == ExitCode.USAGE
    assert f"No such command {typed!r}, did you mean {meant!r}?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["config"], ["state"]])
def test_without_a_command_there_is_the_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert said.startswith("Usage: numawarden")
    assert "--help'" not in said


@pytest.mark.parametrize("group", ["config", "state"])
def test_a_groups_help_has_a_whole_sentence_for_each_command(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([group, "--help"]) == ExitCode.OK
    commands = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert commands
    assert [line for line in commands if line.endswith("...") or not line.endswith(".")] == []
