from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import click
import pytest

from agent import __version__
from agent.cli import main as main_module
from agent.cli.errors import CommandError, ExitCode
from agent.cli.main import COMMANDS, LazyCommand, LazyGroup, numawarden, run_command

if TYPE_CHECKING:
    from tests.agent.cli.shell import Command

#: What a help text must not wait for.
HEAVY: Final = (
    *("aiohttp", "rich", "pyroute2", "asyncio", "structlog", "msgspec", "yaml", "http.client"),
)
HELP: Final = "from agent.cli.main import run_command; run_command([{!r}])"


def test_help_names_every_command_and_exit_code(run: Command) -> None:
    code, text, _ = run("--help")
    assert code == ExitCode.OK
    assert all(f"  {name} " in text for name in COMMANDS)
    assert "7 not enforced" in text
    assert __version__ in run("--version")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_in_80_columns(name: str, run: Command) -> None:
    command = numawarden.get_command(click.Context(numawarden), name)
    assert command is not None
    assert command.help
    code, text, _ = run(name, "--help")
    assert code == ExitCode.OK
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("group", ["config", "state"])
def test_a_groups_help_has_a_whole_sentence_for_each_command(group: str, run: Command) -> None:
    commands = run(group, "--help")[1].partition("Commands:\n")[2].splitlines()
    assert commands
    assert [line for line in commands if line.endswith("...") or not line.endswith(".")] == []


@pytest.mark.parametrize(
    ("script", "heavy"),
    [
        (HELP.format("--help"), HEAVY),
        (HELP.format("--version"), HEAVY),
        ("import agent.cli.pods", ("agent.sources.manifests",)),
    ],
)
def test_what_a_command_line_does_not_need_is_not_imported(
    script: str, heavy: tuple[str, ...]
) -> None:
    shown = f"import sys; print([name for name in {heavy!r} if name in sys.modules])"
    command = [sys.executable, "-c", f"{script}; {shown}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_target_that_is_not_a_command_is_a_defect() -> None:
    group = LazyGroup(name="g", lazy={"go": LazyCommand("agent.cli.errors:ExitCode", "Go.")})
    with pytest.raises(TypeError, match="is not a command"):
        group.get_command(click.Context(group), "go")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("fly", "No such command 'fly'"),
        ("admt", "No such command 'admt', did you mean 'admit'?"),
        ("get", "No such command 'get', did you mean 'list'?"),
        ("version", "No such command 'version', did you mean '--version'?"),
        ("config checks", "No such command 'checks', did you mean 'check'?; see 'numawarden "),
        ("restart", "'restart', did you mean 'systemctl restart numawarden'?; see"),
        ("topo", "did you mean 'topology'?"),
        ("resta", "No such command 'resta'; see"),
        ("config get", "No such command 'get'; see"),
        ("list --ouput json", "No such option '--ouput', did you mean '--output'?; see"),
        ("history --cpu 1", "No such option '--cpu'; see"),
        ("state import --from x", "No such option '--from'; see"),
        ("map --cpu 12", "No such option '--cpu': 'numawarden map 12' says who has CPU 12"),
        ("list -A", "No such option '-A': pods of all namespaces are listed without it"),
        ("remove -f x", "No such option '-f': name the POD, as 'numawarden list -o name' does"),
        ("--socket /x list", "it stands after the command, as in 'numawarden list --socket PATH'"),
        ("admit -f x", "No such option '-f': name the FILE without an option"),
        ("remove --all", "'numawarden list -o name | xargs numawarden remove' removes all pods"),
        ("admit", "Missing argument 'FILE...'; see 'numawarden admit --help'"),
        ("list --output json=x", "'json=x' is not one of 'text', 'table', 'wide', 'json', "),
        ("list -w -o json", "--output json is printed once"),
        ("map -w -o yaml", "--output yaml is printed once"),
        ("list --timeout 0", "--timeout"),
        ("list --timeout soon", "'soon' is not a time above 0 such as 5, 5s or 2m"),
        ("list --timeout inf", "'inf' is not a time above 0"),
        ("bind a b", "give either --cgroup or --pid; see 'numawarden bind --help'"),
        ("bind a b --pid 0", "0 is not in the range x>=1"),
        ("agent", "Missing option '--config'"),
        ("unpublish", "Missing option '--config'"),
        ("isolation status --config /none", "File '/none' does not exist"),
        ("topology --root /nonexistent", "does not exist"),
        ("capture", "Missing argument"),
        ("config check /nonexistent", "does not exist"),
        ("config show", "name a configuration file, or give --defaults"),
        ("config show /dev/null --defaults", "name a configuration file, or give --defaults"),
        ("interference db --cpus 2", "--cpus asks no agent; leave POD or --cpus out"),
        ("interference --cgroup /a", "--cgroup needs --cpus"),
        ("interference --cpus 9-2", "range '9-2' runs backwards"),
        ("interference --for soon", "'soon' is not a duration above 0 and of at most 168h"),
        ("interference --for 0s", "'0s' is not a duration above 0"),
        ("dashboard --save x --no-open", "serves nothing: leave out --port and --no-open"),
        ("dashboard --save x --port 8080", "serves nothing: leave out --port and --no-open"),
        ("drain node:1", "the agent ends no pods"),
        ("show web --container c1", "--container"),
        ("show web --arguments podman --output json", "--output"),
        ("fit", "give either one FILE or amounts such as --cpus 4 --memory 8Gi"),
        ("fit - --cpus 4", "give either one FILE or amounts"),
        ("fit --count 3 web.yaml", "--count takes no number, it counts up to 1000: leave 3 out"),
        ("fit --device gpu", "'gpu' is not NAME=AMOUNT"),
        ("fit --cpus four", "'four' is not a number of CPUs"),
        ("fit --cpus 0", "'0' is not a number of CPUs above 0"),
        ("fit --cpus 2.5", "exclusive CPUs are whole, such a pod gets none"),
        ("fit --memory 8", "'8' is a number of bytes; write 8Gi or 8Mi"),
        ("fit --memory 8GB", "'8GB' is not a quantity: did you mean 8Gi of memory? write a number"),
        ("fit --hugepages 2Mi=1gib", "--hugepages: '1gib' is not a quantity: did you mean 1Gi of"),
        ("fit --hugepages 2M=1Gi", "--hugepages: '2M=1Gi': write it as hugepages-2Mi"),
        (
            "fit --device gpu=1",
            "--device: 'gpu=1': a container can have cpu, memory, ephemeral-storage, hugepages-",
        ),
        ("fit --device a.com/b=x", "--device: 'x' is not a quantity: write a number such as 2"),
        ("run --memory 8gi true", "--memory: '8gi' is not a quantity: did you mean 8Gi of memory?"),
        ("fit --device a.com/b=1 --device a.com/b=2", "'a.com/b' is given twice"),
        ("run --cpus 1.5 true", "exclusive CPUs are whole, a part of a CPU needs --shared"),
        ("run --cpus 0 true", "'0' is not a number of CPUs above 0"),
        ("run --cpus many true", "'many' is not a number of CPUs"),
        ("run --device gpu true", "'gpu' is not NAME=AMOUNT"),
        ("run --cpus 1", "Missing argument"),
    ],
)
def test_a_wrong_command_line_is_reported_in_one_line(
    arguments: str, said: str, run: Command
) -> None:
    code, out, err = run(*arguments.split())
    assert (code, out, err.count("\n")) == (ExitCode.USAGE, "", 1)
    assert err.startswith("numawarden: error: ")
    assert said in err


@pytest.mark.parametrize(
    "since", ["x", "1x", "-1h", "d", "1d2", "999999d", "1.5d", "", "\N{VULGAR FRACTION ONE HALF}d"]
)
def test_what_is_not_a_duration_is_reported(run: Command, since: str) -> None:
    code, _, err = run("history", "--since", since)
    assert code == ExitCode.USAGE
    assert "is not a duration such as 90s, 15m, 1h30m or 7d" in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            CommandError("no pod\nfirst: 1\n\nsecond: 2", ExitCode.NOT_FOUND),
            ExitCode.NOT_FOUND,
            "numawarden: error: no pod\n  first: 1\n  second: 2\n",
        ),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
    ],
)
def test_an_expected_end_has_an_exit_code_and_a_defect_is_not_dressed_up(
    error: BaseException, code: int, said: str, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise errors[0]

    errors = [error]
    monkeypatch.setattr(main_module.numawarden, "main", fail)
    assert run() == (code, "", said)
    errors[0] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        run_command([])


@pytest.mark.parametrize("group", ["", "config", "isolation", "state"])
def test_no_summary_of_a_command_is_cut(group: str, run: Command) -> None:
    code, out, _ = run(*group.split(), "--help")
    assert code == ExitCode.OK
    assert "..." not in out.partition("Commands:")[2]


@pytest.mark.parametrize("arguments", [[], ["config"], ["state"]])
def test_without_a_command_there_is_the_help(arguments: list[str], run: Command) -> None:
    code, _, said = run(*arguments)
    assert code == ExitCode.USAGE
    assert said.startswith("Usage: numawarden")
    assert "--help'" not in said
