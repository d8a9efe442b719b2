"""`plan` says which pods would have to move, `apply` moves them, `admit` then has room."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.cli.errors import ExitCode
from agent.managers.policy import TopologyManagerPolicy
from agent.pods.model import MOVE
from tests.agent.server.support import OTHER_UID, UID, manifest

if TYPE_CHECKING:
    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running, World

NEW: bytes = manifest("new", "u-new", cpu="4")


@pytest.fixture
def world(world: World) -> World:
    """Have pods on one node each."""
    single = TopologyManagerPolicy.SINGLE_NUMA_NODE
    world.config = replace(world.config, topology_manager_policy=single)
    return world


@pytest.fixture(autouse=True)
def _fragmented(agent: Running, shell: Shell) -> None:
    """Leave three CPUs on node 0 and two on node 1."""
    del agent
    annotation = f"  annotations: {{{MOVE}: cpus}}\nspec:\n".encode()
    moves = manifest().replace(b"spec:\n", annotation)
    for body in (moves, manifest("two", OTHER_UID), manifest("six", "u-six", cpu="6")):
        assert shell.run("admit", shell.file(body))[0] == ExitCode.OK


def test_a_pod_has_room_once_its_plan_was_applied(shell: Shell) -> None:
    file = shell.file(NEW)
    code, out, _ = shell.run("plan", "--for", file)
    assert code == ExitCode.OK
    assert out.splitlines()[0] == "shop/new does not fit now"
    assert "move shop/web: CPUs 1,9 to 7,15; no memory moves" in out
    assert out.splitlines()[-1].startswith("then shop/new fits: CPUs ")
    plan = shell.file(shell.run("plan", "--for", file, "-o", "json")[1].encode())
    moved = "CPUs 1,9 to 7,15\nshop/new has room: admit it\n"
    assert shell.run("apply", plan)[:2] == (ExitCode.OK, f"moved shop/web: {moved}")
    assert shell.run("apply", plan)[:2] == (ExitCode.OK, f"there already shop/web: {moved}")
    file = shell.file(NEW)
    assert shell.run("plan", "--for", file)[1].startswith("shop/new fits now: CPUs ")
    assert shell.run("admit", file)[0] == ExitCode.OK


def test_a_plan_that_no_longer_fits_ends_and_says_what_is_left(shell: Shell) -> None:
    plan = json.loads(shell.run("plan", "--for", shell.file(NEW), "-o", "json")[1])
    for uid, cpus in (("u-3", "3"), ("u-2", "2")):
        assert shell.run("admit", shell.file(manifest(f"late-{uid}", uid, cpu=cpus)))[0] == 0
    code, out, _ = shell.run("apply", shell.file(json.dumps(plan).encode()))
    assert code == ExitCode.REJECTED
    assert out.startswith("not moved: shop/web: CPUs 1,9 to 7,15\n  TopologyAffinityError: ")
    assert out.endswith("left: shop/web: CPUs 1,9 to 7,15\n")
    plan["moves"][0]["uid"] = "gone"
    assert shell.run("apply", shell.file(json.dumps(plan).encode()))[0] == ExitCode.NOT_FOUND
    assert json.loads(shell.run("show", UID, "-o", "json")[1])["exclusiveCpus"] == "1,9"


def test_what_no_move_helps_and_what_is_no_plan(shell: Shell) -> None:
    code, out, _ = shell.run("plan", "--for", shell.file(manifest("all", "u-all", cpu="8")))
    assert code == ExitCode.REJECTED
    assert "no moves of pods that allow it make room\n" in out
    code, out, _ = shell.run("plan", "--for", shell.file(manifest("five", "u-5", cpu="5")))
    assert f"(uid {OTHER_UID}) would: allow it with" not in out
    for text in (b"{", b"\xff", b'{"uid": 1}', b"[]"):
        code, _, err = shell.run("apply", shell.file(text))
        assert code == ExitCode.BAD_INPUT
        assert "is no plan" in err
