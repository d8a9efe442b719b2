"""How `numawarden map` is drawn on a terminal and drawn again; what it shows is in `golden/`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from agent.api.map import map_of_allocations
from agent.cli import watching
from agent.cli.errors import ExitCode
from agent.cli.host import draw_map
from sysfs.described import regular_host
from tests.agent.managers.hosts import make_rules
from tests.agent.server.support import UID, manifest
from tests.agent.tools.map.pods import machine_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running


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


def test_watching_draws_again_on_every_change_until_it_is_interrupted(
    shell: Shell, agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.client.admit(manifest())

    def once(_: object) -> Iterator[None]:
        agent.client.remove(UID)
        yield

    def interrupting(_: object) -> Iterator[None]:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "changes", once)
    code, out, _ = shell.run("map", "-w")
    assert code == ExitCode.UNREACHABLE  # the events ended
    before, after = [part for part in out.split("16 CPUs (16 online)") if part]
    assert ("shop/web" in before, "shop/web" in after) == (True, False)
    monkeypatch.setattr(watching, "changes", interrupting)
    code, out, _ = shell.run("map", "--watch")
    assert (code, out.count("16 CPUs (16 online)")) == (ExitCode.INTERRUPTED, 1)


def test_a_terminal_has_colours_and_its_width_and_is_cleared_before_it_is_drawn_again(
    shell: Shell, agent: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.client.admit(manifest())
    monkeypatch.setenv("COLUMNS", "18")
    plain = shell.run("map")[1]
    assert "  cpu     0   1   2   3\n" in plain
    assert "\x1b" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[36mA\x1b[0m" in shell.run("map")[1]
    monkeypatch.setattr(watching, "changes", lambda _: iter([None]))
    assert shell.run("map", "-w")[1].count("\x1b[H\x1b[2J") == 2
    monkeypatch.setenv("NO_COLOR", "1")
    narrow = shell.run("map")[1]
    assert "\x1b" not in narrow
    rows = [line.split()[1:] for line in narrow.splitlines() if line.startswith("  cpu")]
    assert rows == [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]
