from __future__ import annotations

import json
import socket
import string
import subprocess
import sys
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.api.client import AgentClient, Unreachable
from agent.api.documents import EventDocument
from agent.cli import common
from agent.cli.common import changes, print_lines, table, yaml_of
from agent.cli.errors import ExitCode
from agent.cli.main import numawarden, run_command
from agent.cli.options import DOCUMENT, Output
from tests.agent.server.support import OTHER_UID, PATIENCE, UID, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.server.events import Watcher
    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running


TEXTS = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.text(string.digits + ":-x"))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=10,
)


@given(PLAIN)
def test_yaml_says_what_json_says(value: object) -> None:
    assert yaml.safe_load(yaml_of(value)) == value


def test_yaml_breaks_no_line_and_keeps_the_order_of_keys() -> None:
    long = "word " * 100
    assert yaml_of({"b": long, "a": "0-3"}) == f"b: '{long}'\na: 0-3\n"


def test_a_table_has_its_columns_below_each_other_and_a_dash_for_nothing() -> None:
    rows = table(("POD", "CPUS", "UID"), [("shop/web", "", "u"), ("a/b", "0-3,8-11", "")])
    assert list(rows) == [
        "POD        CPUS       UID",
        "shop/web   -          u",
        "a/b        0-3,8-11   -",
    ]


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


def option(command: click.Command, name: str) -> click.Option | None:
    found = (each for each in command.params if name in each.opts)
    return next((each for each in found if isinstance(each, click.Option)), None)


ALL = dict(commands(numawarden))


@pytest.mark.parametrize("path", [path for path in ALL if option(ALL[path], "--output")])
def test_every_output_has_its_short_option(path: tuple[str, ...]) -> None:
    found = option(ALL[path], "--output")
    assert found is not None
    assert "-o" in found.opts


@pytest.mark.parametrize("path", [path for path in ALL if option(ALL[path], "--socket")])
def test_every_command_that_calls_the_agent_has_a_timeout(path: tuple[str, ...]) -> None:
    assert option(ALL[path], "--timeout") is not None


def test_every_document_is_printed_as_yaml_and_by_a_template_too() -> None:
    found = [option(command, "--output") for command in ALL.values()]
    forms = [
        set(each.type.choices) for each in found if each and isinstance(each.type, click.Choice)
    ]
    assert [each for each in forms if each & {*DOCUMENT} not in (set(), {*DOCUMENT})] == []
    assert {Output.JSON} <= set().union(*forms)


def listed(shell: Shell, form: str) -> list[str]:
    code, out, err = shell.run("list", "-o", form)
    assert (code, err) == (ExitCode.OK, "")
    return out.splitlines()


@pytest.fixture
def pods(agent: Running) -> None:
    agent.client.admit(manifest())
    agent.client.admit(manifest("other", OTHER_UID, cpu="500m"))


@pytest.mark.usefixtures("pods")
def test_the_list_is_printed_in_every_form(shell: Shell) -> None:
    assert listed(shell, "name") == ["shop/web", "shop/other"]
    narrow, wide = listed(shell, "table"), listed(shell, "wide")
    assert [line.split()[:2] for line in narrow] == [
        ["POD", "QOS"],
        ["shop/web", "Guaranteed"],
        ["shop/other", "Guaranteed"],
    ]
    assert all(UID not in line for line in narrow)
    assert [UID in line for line in wide] == [False, True, False]
    loaded = json.loads("\n".join(listed(shell, "json")))
    assert yaml.safe_load("\n".join(listed(shell, "yaml"))) == loaded
    assert [pod["uid"] for pod in loaded["pods"]] == [UID, OTHER_UID]
    assert listed(shell, "text")[0].startswith("shop/web  Guaranteed  ")


@pytest.mark.usefixtures("pods")
def test_a_table_of_pods_says_what_each_has_and_lacks(shell: Shell) -> None:
    header, web, other = listed(shell, "table")
    assert header.split("   ")[-1].strip() == "LACKS"
    cells = dict(zip(header.split(), web.split(), strict=False))
    assert cells["EXCLUSIVE"] == "1,9"
    assert (cells["STATE"], cells["CONTAINERS"]) == ("starting", "0/1")
    assert other.split()[-1] == "-"


@pytest.mark.usefixtures("pods")
def test_a_list_has_pods_that_are_not_admitted_below_the_others(
    shell: Shell, agent: Running
) -> None:
    uid = "55555555-0000-4000-8000-000000000009"
    agent.client.admit(manifest("big", uid, cpu="64"))
    since = "2023-11-14 22:30:00Z"
    *admitted, empty, header, row = listed(shell, "table")
    assert [line.split()[0] for line in admitted] == ["POD", "shop/web", "shop/other"]
    assert empty == ""
    assert header.split("  ")[0] == "NOT ADMITTED"
    assert row.split() == ["shop/big", "rejected", *since.split(), "OutOfcpu"]
    *_, row = listed(shell, "wide")
    assert uid in row
    assert "the node has no room for the pod: 64 of cpu asked" in row
    *_, line = listed(shell, "text")
    assert line.startswith(f"shop/big  rejected since {since}  the node has no room")
    document = json.loads("\n".join(listed(shell, "json")))
    assert [pod["uid"] for pod in document["pods"]] == [UID, OTHER_UID]
    assert [(pod["uid"], pod["reason"]) for pod in document["failed"]] == [(uid, "OutOfcpu")]
    assert listed(shell, "name") == ["shop/web", "shop/other"]


def test_an_unknown_form_is_rejected_before_the_agent_is_asked(shell: Shell) -> None:
    code, out, err = shell.run("list", "-o", "json=x")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "'json=x' is not one of 'text', 'table', 'wide', 'json', 'yaml', 'name'" in err


def test_an_equals_sign_before_the_form_is_taken_as_by_kubectl(
    shell: Shell, agent: Running
) -> None:
    agent.client.admit(manifest())
    assert shell.run("list", "-o=name") == (ExitCode.OK, "shop/web\n", "")


@pytest.mark.usefixtures("agent")
def test_what_is_about_one_pod_is_named_by_it(shell: Shell) -> None:
    file = shell.file(manifest())
    for arguments in (["admit", file], ["show", "web"], ["remove", "web"]):
        _, out, err = shell.run(*arguments, "-o", "name")
        assert (out, err) == ("shop/web\n", "")


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize(
    "arguments", [("show", "web"), ("status",), ("check", "--cgroups"), ("map",)]
)
def test_a_document_is_the_same_in_json_and_yaml(shell: Shell, arguments: tuple[str, ...]) -> None:
    def stable(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != "lastReconcile"}

    loaded = json.loads(shell.run(*arguments, "--output", "json")[1])
    assert stable(yaml.safe_load(shell.run(*arguments, "-o", "yaml")[1])) == stable(loaded)


@pytest.mark.usefixtures("agent")
def test_table_is_another_word_for_text_where_there_are_no_columns(shell: Shell) -> None:
    assert shell.run("check", "-o", "table") == shell.run("check", "-o", "text")


@pytest.mark.usefixtures("pods")
def test_watching_a_list_draws_it_again(
    shell: Shell, agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(_: object) -> Iterator[None]:
        agent.client.remove(UID)
        yield

    monkeypatch.setattr(common, "changes", once)
    code, out, _ = shell.run("list", "-w", "-o", "wide")
    assert code == ExitCode.UNREACHABLE  # the events ended
    assert [line.split()[0] for line in out.splitlines()] == [
        "POD", "shop/web", "shop/other", "POD", "shop/other",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["json", "yaml", "name"])
def test_a_list_that_is_not_drawn_is_not_watched(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["list", "-w", "-o", form]) == ExitCode.USAGE
    assert f"--output {form} is printed once" in capsys.readouterr().err


LINES = ["rejected shop/web", "shop/web  Guaranteed  NOT ENFORCED  from api", "admitted a/rejected"]


def test_only_what_needs_attention_is_red(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_lines(LINES)
    assert capsys.readouterr().out.splitlines() == [
        "\x1b[31m\x1b[1mrejected\x1b[0m shop/web",
        "shop/web  Guaranteed  \x1b[31m\x1b[1mNOT ENFORCED\x1b[0m  from api",
        "admitted a/rejected",
    ]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_are_switched_off(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv(name, value)
    print_lines(LINES)
    assert capsys.readouterr().out.splitlines() == LINES


def test_a_pipe_has_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(LINES)
    assert capsys.readouterr().out.splitlines() == LINES


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_timeout_is_a_number_of_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["list", "--timeout", seconds]) == ExitCode.USAGE
    assert "--timeout" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "list", "watch", "map"])
def test_an_agent_that_does_not_answer_ends_a_command_in_time(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "a.sock")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        code = run_command([command, "--socket", path, "--timeout", "0.01"])
    assert code == ExitCode.UNREACHABLE
    assert "no answer within 0.01 s" in capsys.readouterr().err


# --- a command says with its exit code what it found, whatever becomes of its output --------------


#: Prints more than a pipe holds, and then says no.
_LONG: Final = (
    "from agent.cli.errors import open_standard_output, reader_is_gone\n"
    "open_standard_output()\n"
    "for _ in range(1000): print('x' * 1000, flush=True)\n"
    "raise SystemExit(7 if reader_is_gone() else 0)\n"
)


def shell(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script, "bash", *arguments], capture_output=True, text=True, check=False
    )


def test_a_reader_that_went_away_leaves_the_commands_own_exit_code() -> None:
    done = shell('set -o pipefail; "$@" | head -n 1', sys.executable, "-c", _LONG)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("arguments", [("--help",), ("nosuch",)])
def test_neither_does_a_short_answer_that_nothing_reads(arguments: tuple[str, ...]) -> None:
    command = (sys.executable, "-m", "agent.cli.main", *arguments)
    read, unread = (
        shell('"$@" >/dev/null', *command),
        shell('"$@" | true; exit ${PIPESTATUS[0]}', *command),
    )
    assert (unread.returncode, unread.stderr) == (read.returncode, read.stderr)


def test_a_full_disk_is_named_as_that_of_standard_output() -> None:
    done = shell('"$@" > /dev/full', sys.executable, "-m", "agent.cli.main", "completion", "bash")
    assert done.returncode == ExitCode.ENVIRONMENT
    assert done.stderr == "numawarden: error: standard output: No space left on device\n"


def test_standard_output_may_be_closed() -> None:
    done = shell('"$@" >&-', sys.executable, "-m", "agent.cli.main", "completion", "bash")
    assert (done.returncode, done.stderr) == (ExitCode.OK, "")


EVENT = EventDocument(type="PodAdmitted", time=0.0, operation="x")


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("text", "00:00:00Z  PodAdmitted"),
        ("json", '{"type":"PodAdmitted"'),
        ("yaml", "---\ntype: PodAdmitted\n"),
    ],
)
def test_an_event_is_printed_in_every_form(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, form: str, said: str
) -> None:
    monkeypatch.setattr(AgentClient, "watch", lambda _: iter((EVENT, EVENT)))
    code, out, _ = shell.run("watch", "-o", form)
    assert code == ExitCode.UNREACHABLE  # the events ended
    assert out.startswith(said)
    assert out == out[: len(out) // 2] * 2


def test_an_event_of_the_agent_is_a_change(agent: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, loop = agent.controller.events.watch, agent.life.get_loop()

    def admitting() -> AbstractContextManager[Watcher]:
        """Admit a pod as soon as the agent streams its events."""
        loop.call_soon(lambda: loop.run_in_executor(None, agent.client.admit, manifest()))
        return watch()

    monkeypatch.setattr(agent.controller.events, "watch", admitting)
    assert next(changes(agent.client.watch(), PATIENCE)) is None
    assert UID in {pod.uid for pod in agent.client.pods()}


def fed(feed: SimpleQueue[EventDocument | None]) -> Iterator[EventDocument]:
    while (event := feed.get()) is not None:
        yield event


def test_changes_follow_the_events_and_end_with_them() -> None:
    feed: SimpleQueue[EventDocument | None] = SimpleQueue()
    seen = changes(fed(feed), PATIENCE)
    feed.put(EVENT)
    assert next(seen) is None
    feed.put(None)
    assert list(seen) == []


def test_events_that_wait_are_one_change() -> None:
    assert len(list(changes([EVENT] * 500, PATIENCE))) < 500


def test_all_is_drawn_again_after_some_time_without_an_event() -> None:
    feed: SimpleQueue[EventDocument | None] = SimpleQueue()
    seen = changes(fed(feed), 0.0)
    assert (next(seen), next(seen)) == (None, None)
    feed.put(None)


def test_an_agent_that_went_away_is_an_error() -> None:
    class Ended:
        def __iter__(self) -> Iterator[EventDocument]:
            raise Unreachable("/run/x", "it closed the connection")

    with pytest.raises(Unreachable):
        next(changes(Ended(), PATIENCE))
