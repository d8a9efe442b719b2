"""The commands of maintenance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.cli.errors import ExitCode
from tests.agent.server.support import manifest

if TYPE_CHECKING:
    from tests.agent.cli.shell import Shell

pytestmark = pytest.mark.usefixtures("agent")


def test_cordon_and_uncordon_print_what_is_cordoned_and_who_uses_it(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest()))
    code, out, _ = shell.run("cordon", "1-3", "--reason", "DIMM A1")
    assert code == ExitCode.OK
    assert out.splitlines() == [
        "cordoned: CPUs 1-3, since 2023-11-14 22:30:00Z: DIMM A1",
        "shared pool: CPUs 0,4-8,10-15",
        "still in use by shop/web: CPUs 1",
    ]
    assert "  cordoned   CPUs 1-3, since 2023-11-14 22:30:00Z: DIMM A1" in shell.run("status")[1]
    code, out, _ = shell.run("uncordon", "1-3", "--output", "json")
    assert (code, json.loads(out)["cordons"]) == (ExitCode.OK, [])


def test_all_cordons_are_lifted_at_once(shell: Shell) -> None:
    shell.run("cordon", "1-3")
    shell.run("cordon", "node:1")
    code, out, _ = shell.run("uncordon", "--all")
    assert code == ExitCode.OK
    assert out.splitlines() == ["nothing is cordoned", "shared pool: CPUs 0-15"]


def test_what_cannot_be_cordoned_says_why(shell: Shell) -> None:
    code, _, err = shell.run("cordon", "0-15")
    assert code == ExitCode.REJECTED
    assert err.startswith("numawarden: error: CPUs 0-15 cannot be cordoned: no CPU would be left")
    assert shell.run("cordon", "node:7")[0] == ExitCode.BAD_INPUT
    assert shell.run("uncordon", "2")[0] == ExitCode.REJECTED


def test_a_drain_names_each_pod_and_its_exit_code_says_whether_all_fit(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest()))
    code, out, _ = shell.run("drain", "--dry-run", "core:1")
    assert code == ExitCode.OK
    assert out.splitlines() == [
        "1 pod would have to end, 1 would fit elsewhere (tried in this order):",
        "  shop/web: CPUs 1,9; fits on node 0 with CPUs 2,10",
        "pods that stay: 0",
        "then the shared pool is CPUs 0,3-8,11-15, and 11 CPUs are free",
    ]
    shell.run("cordon", "2-8,10-15")
    code, out, _ = shell.run("drain", "--dry-run", "1")
    assert code == ExitCode.REJECTED
    assert "does not fit: " in out


def test_a_drain_without_dry_run_is_a_usage_error(shell: Shell) -> None:
    code, _, err = shell.run("drain", "node:1")
    assert code == ExitCode.USAGE
    assert "the agent ends no pods" in err


def test_the_map_marks_what_is_cordoned(shell: Shell) -> None:
    shell.run("admit", shell.file(manifest()))
    shell.run("cordon", "1-2")
    shell.run("cordon", "node:1")
    _, text, _ = shell.run("map")
    assert "cordoned  node 1, CPUs 1-2,4-7,12-15, still allocated 1" in text
    assert "/ cordoned" in text
