from __future__ import annotations

import json
from typing import TYPE_CHECKING

import yaml

from agent.api.documents.history import HistoryDocument, HistoryEntry, RequesterDocument
from agent.api.documents.verification import DriftDocument
from agent.cli.history import history_lines
from agent.cli.options import Output
from agent.cli.output import print_answer
from cgroupfs.state import Writer
from tests.agent.server.support import UID, manifest

if TYPE_CHECKING:
    import pytest

    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running


def test_older_entries_are_left_out(shell: Shell, agent: Running) -> None:
    agent.world.clock.now += 4e9  # the clock of the command is the host's
    shell.run("admit", shell.file(manifest()))
    for since in ("90s", "1h30m", "7d", "1d12h"):
        _, out, _ = shell.run("history", "--since", since)
        assert [line.split()[2] for line in out.splitlines()[::2]] == ["PodAdmitted"]


def difference(**fields: object) -> DriftDocument:
    known: dict[str, object] = {
        "time": 0.0,
        "uid": UID,
        "pod": "shop/web",
        "container": "c0",
        "cgroup": "/x",
        "file": "cpuset.cpus",
        "observed": "1",
        "desired": "2",
        "cause": "unknown",
        "detail": "cpuset.cpus of /x shows 1 instead of 2",
    }
    return DriftDocument(**{**known, **fields})  # type: ignore[arg-type]  # fields of the document


def test_differences_have_a_line_each_with_their_writer() -> None:
    writer = Writer(pid=4711, command="sh", uid=1000, cgroup="/user.slice")
    gone = Writer(pid=4712, command="", uid=None, cgroup="")
    entry = HistoryEntry(
        type="DriftFound",
        time=0.0,
        operation="0cd7d1a61ad5",
        uid=UID,
        pod="shop/web",
        differences=(
            difference(writer=writer, repaired=True),
            difference(writer=gone, container=None),
        ),
    )
    repaired = (
        "    container c0: cpuset.cpus of /x shows 1 instead of 2 (unknown), repaired; "
        "written by sh[4711], uid 1000, in /user.slice"
    )
    left = (
        "    cpuset.cpus of /x shows 1 instead of 2 (unknown), not repaired by that comparison; "
        "written by process[4712]"
    )
    assert list(history_lines(HistoryDocument(entries=(entry,), more=True, damaged=2))) == [
        "1970-01-01 00:00:00Z  DriftFound            shop/web  operation 0cd7d1a61ad5",
        repaired,
        left,
        "there are older entries: -n shows more",
        "note: 2 damaged lines of the history were passed over",
    ]


def test_names_of_processes_send_no_codes_to_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requester = RequesterDocument(
        source="api", uid=0, pid=1, command="\x1b[2J\x9b\U000e0001", login=1000
    )
    assert requester.line().startswith("by uid 0 (logged in as 1000), ")
    entry = HistoryEntry(type="PodRemoved", time=0.0, message="a\rb", requester=requester)
    history = HistoryDocument(entries=(entry,))
    for output in (Output.TEXT, Output.JSON, Output.YAML):
        print_answer(history, output, history_lines)
        text = capsys.readouterr().out
        assert text.replace("\n", "").isprintable()
        if output is Output.TEXT:
            assert "\\x1b[2J\\x9b\\U000e0001[1]" in text
        else:
            shown = yaml.safe_load(text) if output is Output.YAML else json.loads(text)
            assert shown["entries"][0]["requester"]["command"] == requester.command
