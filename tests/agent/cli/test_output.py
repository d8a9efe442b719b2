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
from agent.api.documents.history import EventDocument
from agent.cli import watching
from agent.cli.errors import ExitCode
from agent.cli.lines import table
from agent.cli.main import numawarden
from agent.cli.options import DOCUMENT
from agent.cli.output import escaped, print_lines, yaml_of
from agent.cli.watching import changes
from tests.agent.server.support import OTHER_UID, PATIENCE, UID, manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.mark.parametrize("text", ["a\x7fb", "a\x9bb", "\u202eü", "plain"])
def test_json_sends_a_terminal_no_command(text: str) -> None:
    shown = escaped(json.dumps(text, ensure_ascii=False).encode()).decode()
    assert shown.isprintable()
    assert json.loads(shown) == text


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


@pytest.mark.parametrize("path", ALL)
def test_options_are_called_the_same_in_every_command(path: tuple[str, ...]) -> None:
    output = option(ALL[path], "--output")
    if output is not None:
        assert "-o" in output.opts
        if isinstance(output.type, click.Choice):
            forms = set(output.type.choices)
            assert forms & {*DOCUMENT} in (set(), {*DOCUMENT})
    if option(ALL[path], "--socket") is not None:
        assert option(ALL[path], "--timeout") is not None


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("arguments", ["list", "show web", "status", "check --cgroups", "map"])
def test_a_document_is_the_same_in_json_and_yaml(shell: Shell, arguments: str) -> None:
    def stable(document: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != "lastReconcile"}

    shell.run("admit", shell.file(manifest()))
    loaded = json.loads(shell.run(*arguments.split(), "--output", "json")[1])
    assert stable(yaml.safe_load(shell.run(*arguments.split(), "-o", "yaml")[1])) == stable(loaded)


@pytest.mark.usefixtures("agent")
def test_table_is_another_word_for_text_where_there_are_no_columns(shell: Shell) -> None:
    assert shell.run("check", "-o", "table") == shell.run("check", "-o", "text")


def test_watching_a_list_draws_it_again(
    shell: Shell, agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(_: object) -> Iterator[None]:
        agent.client.remove(UID)
        yield

    for each in (manifest(), manifest("other", OTHER_UID)):
        agent.client.admit(each)
    monkeypatch.setattr(watching, "changes", once)
    code, out, _ = shell.run("list", "-w", "-o", "wide")
    assert code == ExitCode.UNREACHABLE  # the events ended
    drawn = [line.split()[0] for line in out.splitlines()]
    assert drawn == ["POD", "shop/web", "shop/other", "POD", "shop/other"]


LINES = ["rejected shop/web", "shop/web  Guaranteed  NOT ENFORCED  from api", "admitted a/rejected"]


@pytest.mark.parametrize(
    ("terminal", "variable", "red"),
    [
        (True, ("TERM", "xterm"), True),
        (True, ("TERM", "dumb"), False),
        (True, ("NO_COLOR", "1"), False),
        (False, ("TERM", "xterm"), False),
    ],
)
def test_only_what_needs_attention_is_red_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    terminal: bool,
    variable: tuple[str, str],
    red: bool,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(*variable)
    print_lines(LINES)
    coloured = [
        "\x1b[31m\x1b[1mrejected\x1b[0m shop/web",
        "shop/web  Guaranteed  \x1b[31m\x1b[1mNOT ENFORCED\x1b[0m  from api",
        "admitted a/rejected",
    ]
    assert capsys.readouterr().out.splitlines() == (coloured if red else LINES)


@pytest.mark.parametrize("command", ["status", "list", "watch", "map"])
def test_an_agent_that_does_not_answer_ends_a_command_in_time(command: str, shell: Shell) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(shell.world.socket))
        silent.listen()
        code, _, err = shell.run(command, "--timeout", "0.01")
    assert code == ExitCode.UNREACHABLE
    assert "no answer within 0.01 s" in err


#: Prints more than a pipe holds, and then says no.
_LONG: Final = (
    "from agent.cli.errors import open_standard_output, reader_is_gone\n"
    "open_standard_output()\n"
    "for _ in range(1000): print('x' * 1000, flush=True)\n"
    "raise SystemExit(7 if reader_is_gone() else 0)\n"
)


def in_bash(script: str, *arguments: str) -> tuple[int, str]:
    """Run a command as "$@" in a script: what it found is its exit code, however it is read."""
    command = ["bash", "-c", script, "bash", sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_reader_that_went_away_leaves_the_commands_own_exit_code() -> None:
    assert in_bash('set -o pipefail; "$@" | head -n 1', "-c", _LONG) == (7, "")


@pytest.mark.parametrize("argument", ["--help", "nosuch"])
def test_neither_does_a_short_answer_that_nothing_reads(argument: str) -> None:
    command = ("-m", "agent.cli.main", argument)
    unread = in_bash('"$@" | true; exit ${PIPESTATUS[0]}', *command)
    assert unread == in_bash('"$@" >/dev/null', *command)


@pytest.mark.parametrize(
    ("where", "end"),
    [
        ("> /dev/full", (5, "numawarden: error: standard output: No space left on device\n")),
        (">&-", (5, "numawarden: error: standard output: it is closed\n")),
    ],
)
def test_standard_output_may_be_full_or_closed(where: str, end: tuple[int, str]) -> None:
    for arguments in (("completion", "bash"), ("capture", "-")):
        code, err = in_bash(f'"$@" {where}', "-m", "agent.cli.main", *arguments)
        assert (code, err.splitlines(keepends=True)[-1]) == end, arguments


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


def test_all_is_drawn_again_after_some_time_without_an_event() -> None:
    feed: SimpleQueue[EventDocument | None] = SimpleQueue()
    seen = changes(fed(feed), 0.0)
    assert (next(seen), next(seen)) == (None, None)
    feed.put(None)


def test_events_that_wait_are_one_change() -> None:
    assert len(list(changes([EVENT] * 500, PATIENCE))) < 500


def test_an_agent_that_went_away_is_an_error() -> None:
    class Ended:
        def __iter__(self) -> Iterator[EventDocument]:
            raise Unreachable("/run/x", "it closed the connection")

    with pytest.raises(Unreachable):
        next(changes(Ended(), PATIENCE))
