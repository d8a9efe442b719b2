from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest

from agent.api.documents import DriftDocument, HistoryDocument, HistoryEntry, RequesterDocument
from agent.cli.errors import ExitCode
from agent.cli.history import history_lines
from cgroupfs.state import Writer
from tests.agent.server.support import OTHER_UID, UID, manifest

if TYPE_CHECKING:
    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running


@pytest.mark.usefixtures("agent")
def test_the_history_of_a_pod_says_who_asked_and_in_which_operation(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest()))
    shell.run("admit", shell.file(manifest("other", OTHER_UID)))
    shell.run("remove", UID)
    code, out, err = shell.run("history", "shop/web")
    assert (code, err) == (ExitCode.OK, "")
    lines = out.splitlines()
    line = r"20..-..-.. ..:..:..Z  {}  +shop/web  by uid {}, \S+\[{}\]  operation [0-9a-f]{{12}}"
    assert lines[1::2] == ["    exclusive CPUs 1,9"] * 2
    for found, kind in zip(lines[::2], ("PodRemoved", "PodAdmitted"), strict=True):
        assert re.fullmatch(line.format(kind, os.getuid(), os.getpid()), found)


@pytest.mark.usefixtures("agent")
def test_json_is_the_document_of_the_api(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest()))
    code, out, _ = shell.run("history", "--output", "json", "-n", "1")
    assert code == ExitCode.OK
    answer = json.loads(out)
    assert [entry["type"] for entry in answer["entries"]] == ["PodAdmitted"]
    assert answer["more"] is True


def test_older_entries_are_left_out(shell: Shell, agent: Running) -> None:
    agent.world.clock.now += 4e9  # the clock of the command is the host's
    shell.run("admit", shell.file(manifest()))
    for since in ("90s", "1h30m", "7d", "1d12h"):
        _, out, _ = shell.run("history", "--since", since)
        assert [line.split()[2] for line in out.splitlines()[::2]] == ["PodAdmitted"]


@pytest.mark.usefixtures("agent")
def test_nothing_found_is_said(shell: Shell) -> None:
    code, out, _ = shell.run("history", "shop/other")
    assert (code, out) == (ExitCode.OK, "nothing of that kind is in the history\n")


@pytest.mark.parametrize("since", ["x", "1x", "-1h", "d", "1d2", "999999d", "1.5d", "", "½d"])
def test_what_is_not_a_duration_is_reported(shell: Shell, since: str) -> None:
    code, _, err = shell.run("history", "--since", since)
    assert code == ExitCode.USAGE
    assert "is not a duration such as 90s, 15m, 1h30m or 7d" in err


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


def test_names_of_processes_send_no_codes_to_a_terminal() -> None:
    requester = RequesterDocument(source="api", uid=0, pid=1, command="\x1b[2J")
    entry = HistoryEntry(type="PodRemoved", time=0.0, message="a\rb", requester=requester)
    text = "\n".join(history_lines(HistoryDocument(entries=(entry,))))
    assert text.replace("\n", "").isprintable()
    assert "\\x1b[2J[1]" in text
