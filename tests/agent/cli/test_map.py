from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

from agent.api.map import map_of_allocations
from agent.cli import common
from agent.cli.errors import ExitCode
from agent.cli.host import draw_map
from agent.server.pod_records import STARTING_SECONDS
from sysfs.described import regular_host
from tests.agent.cli.shell import Shell, in_background
from tests.agent.managers.hosts import make_rules
from tests.agent.server.support import UID, manifest
from tests.agent.tools.map.pods import machine_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from agent.api.documents import EventDocument
    from tests.agent.server.support import Running, World

#: `manifest()` asks for two CPUs: a whole core.
PICTURE = [
    "package 0, node 0, L3 0  CPUs 0-3,8-11",
    "  memory        16 GiB",
    "  cpu     0   1   2   3",
    "          R   A   .   .",
    "  +8      .   A   .   .",
]


@pytest.fixture
def agent(world: World) -> Iterator[Running]:
    with in_background(world) as started:
        yield started


@pytest.fixture
def shell(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], agent: Running
) -> Shell:
    """Return a shell beside an agent with a pod that has CPUs 1 and 9."""
    agent.client.admit(manifest())
    world.clock.advance(STARTING_SECONDS)
    agent.client.reconcile()
    return Shell(world, tmp_path, capsys)


def test_the_map_shows_whose_each_cpu_is(shell: Shell) -> None:
    code, out, err = shell.run("map")
    assert (code, err) == (ExitCode.OK, "")
    lines = out.splitlines()
    assert lines[0].startswith("16 CPUs (16 online), 2 packages, 2 nodes, 2 L3 caches, 8 cores")
    assert lines[1] == (
        "CPU static, memory None, topology best-effort (scope container); "
        "2 of 15 CPUs allocated, 1 pod"
    )
    assert lines[2:7] == PICTURE
    assert "A shop/web  CPUs 1,9, 1 not found" in lines
    assert "! shop/web: containers not found: c0" in lines


@pytest.mark.parametrize(
    ("locale", "bar"),
    [
        ({"LC_ALL": "C"}, "...."),
        ({"LC_ALL": "", "LANG": "POSIX"}, "...."),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, "\u2591"),
        ({}, "\u2591"),
    ],
)
def test_bars_are_ascii_in_the_c_locale(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    locale: dict[str, str],
    bar: str,
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    host = regular_host(cores_per_node=8, hugepages=[(2 << 20, 512)])
    rules = make_rules(machine_of(host))
    draw_map(map_of_allocations(host, rules, rules.empty_ledger()))
    (memory, *_) = re.findall("^ +memory .*", capsys.readouterr().out, re.MULTILINE)
    assert bar in memory
    assert memory.isascii() == (bar == "....")


def test_a_pod_by_name_is_shown_with_its_nodes_alone(shell: Shell) -> None:
    code, out, _ = shell.run("map", "shop/web")
    assert code == ExitCode.OK
    assert out.splitlines()[2:7] == PICTURE
    assert "package 1" not in out


def test_a_pod_that_is_not_admitted_is_exit_code_6(shell: Shell) -> None:
    code, out, err = shell.run("map", "shop/other")
    assert (code, out) == (ExitCode.NOT_FOUND, "")
    assert "no pod 'shop/other' is admitted" in err


def test_json_is_the_document_of_the_api(shell: Shell) -> None:
    code, out, _ = shell.run("map", "--output", "json")
    document = json.loads(out)
    assert code == ExitCode.OK
    assert [cpu["id"] for cpu in document["cpus"] if cpu["use"] == "exclusive"] == [1, 9]
    assert document["policy"]["reservedCpus"] == "0"
    assert document["pods"][0]["notFound"] == ["c0"]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_watching_draws_text(shell: Shell, output: str) -> None:
    code, _, err = shell.run("map", "-w", "--output", output)
    assert code == ExitCode.USAGE
    assert f"--output {output} is printed once" in err


def test_watching_draws_again_on_every_change(
    shell: Shell, agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(events: Iterable[EventDocument]) -> Iterator[None]:
        del events
        agent.client.remove(UID)
        yield

    monkeypatch.setattr(common, "changes", once)
    code, out, _ = shell.run("map", "-w")
    assert code == ExitCode.UNREACHABLE  # the events ended
    before, after = [part for part in out.split("16 CPUs (16 online)") if part]
    assert "shop/web" in before
    assert "shop/web" not in after


def interrupting(_: object) -> Iterator[None]:
    raise KeyboardInterrupt


def test_interrupting_ends_the_map(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "changes", interrupting)
    code, out, _ = shell.run("map", "--watch")
    assert (code, "shop/web" in out) == (ExitCode.INTERRUPTED, True)


def _on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_terminal_has_colours_and_no_color_switches_them_off(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_terminal(monkeypatch)
    assert "\x1b[36mA\x1b[0m" in shell.run("map")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shell.run("map")[1]


def test_a_pipe_has_neither_colours_nor_broken_lines(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    _, out, _ = shell.run("map")
    assert out.splitlines()[2:7] == PICTURE


def test_a_narrow_terminal_continues_columns_below(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_terminal(monkeypatch, columns=18)
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [line for line in shell.run("map")[1].splitlines() if line.startswith("  cpu")]
    assert [row.split()[1:] for row in rows] == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]


def test_watching_on_a_terminal_clears_what_was_drawn(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_terminal(monkeypatch)
    monkeypatch.setattr(common, "changes", lambda _: iter([None]))
    assert shell.run("map", "-w")[1].count("\x1b[H\x1b[2J") == 2
