"""`plan` says which pods would have to move, `apply` moves them, `admit` then has room."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from agent.cli import moves
from agent.cli.errors import ExitCode
from agent.managers import move_plans
from agent.managers.policy import MemoryManagerPolicy, TopologyManagerPolicy
from agent.pods.model import MOVE
from tests.agent.server.support import OTHER_UID, UID, manifest

if TYPE_CHECKING:
    from sysfs.mask import Mask
    from tests.agent.cli.shell import Shell
    from tests.agent.server.support import Running, World

MOVED: Final = "CPUs 1,9 to 7,15, memory of node 0 to 1"
NEW: Final = manifest("new", "u-new", cpu="4")


@pytest.fixture(params=[MemoryManagerPolicy.NONE])
def world(world: World, request: pytest.FixtureRequest) -> World:
    """Have pods on one node each, with pinned memory or without."""
    world.config = replace(
        world.config,
        topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE,
        memory_manager_policy=request.param,
    )
    return world


@pytest.fixture(autouse=True)
def _fragmented(agent: Running, shell: Shell) -> None:
    """Leave three CPUs on node 0 and two on node 1."""
    del agent
    annotation = f"  annotations: {{{MOVE}: memory}}\nspec:\n".encode()
    movable = manifest().replace(b"spec:\n", annotation)
    for body in (movable, manifest("two", OTHER_UID), manifest("six", "u-six", cpu="6")):
        assert shell.run("admit", shell.file(body))[0] == ExitCode.OK


def test_a_pod_has_room_once_its_plan_was_applied(shell: Shell) -> None:
    file = shell.file(NEW)
    code, out, _ = shell.run("plan", "--for", file)
    assert code == ExitCode.OK
    assert out.splitlines()[0] == "shop/new does not fit now"
    assert "move shop/web: CPUs 1,9 to 7,15; no memory moves" in out
    assert out.splitlines()[-1].startswith("then shop/new fits: CPUs ")
    plan = shell.file(shell.run("plan", "--for", file, "-o", "json")[1].encode())
    moved = "CPUs 1,9 to 7,15\nall moves are made: admit shop/new\n"
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
    assert "not made: " not in out, "it is said once"
    plan["moves"][0]["uid"] = "gone"
    assert shell.run("apply", shell.file(json.dumps(plan).encode()))[0] == ExitCode.NOT_FOUND
    assert json.loads(shell.run("show", UID, "-o", "json")[1])["exclusiveCpus"] == "1,9"
    shell.world.socket.unlink()
    code, out, _ = shell.run("apply", shell.file(json.dumps(plan).encode()))
    assert (code, out) == (ExitCode.UNREACHABLE, "not made: shop/web: CPUs 1,9 to 7,15\n")


def test_what_no_move_helps_and_what_is_no_plan(shell: Shell) -> None:
    code, out, _ = shell.run("plan", "--for", shell.file(manifest("all", "u-all", cpu="8")))
    assert code == ExitCode.REJECTED
    assert "no move of pods that allow it makes room\n" in out
    code, out, _ = shell.run("plan", "--for", shell.file(manifest("five", "u-5", cpu="5")))
    assert f"(uid {OTHER_UID}) would: allow it with" not in out
    for text in (b"{", b"\xff", b'{"uid": 1}', b"[]"):
        code, _, err = shell.run("apply", shell.file(text))
        assert code == ExitCode.BAD_INPUT
        assert "is no plan" in err


def test_that_not_all_was_tried_is_said(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "not all moves were tried, there are too many\n"
    file = shell.file(manifest("all", "u-all", cpu="8"))
    for asked in (("--for", file), ("--defragment",)):
        assert said not in shell.run("plan", *asked)[1]
    monkeypatch.setattr(move_plans, "MOST_TRIED", 0)
    for asked in (("--for", file), ("--defragment",)):
        assert shell.run("plan", *asked)[1].endswith(said)


@pytest.fixture
def migrated(
    agent: Running, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, str, str]]:
    """Run a process in the pod that moves; return the migrations of its pages."""
    kernel, found = shell.world.kernel, list[tuple[int, str, str]]()
    kernel.mkdir(f"kubepods/pod{UID}/c0")
    kernel.spawn(f"kubepods/pod{UID}/c0", 7)
    agent.client.reconcile()
    monkeypatch.setattr(kernel, "close", lambda: None, raising=False)
    monkeypatch.setattr(moves, "KernelTree", lambda _: kernel)

    def migrate(pid: int, old: Mask, new: Mask) -> None:
        found.append((pid, str(old), str(new)))

    monkeypatch.setattr(moves, "migrate", migrate)
    return found


@pytest.mark.parametrize("world", [MemoryManagerPolicy.STATIC], indirect=True)
def test_pages_move_before_their_pod(shell: Shell, migrated: list[tuple[int, str, str]]) -> None:
    mems = f"kubepods/pod{UID}/c0", "cpuset.mems"
    assert shell.world.kernel.read(*mems).strip() == "0"
    plan = shell.file(shell.run("plan", "--for", shell.file(NEW), "-o", "json")[1].encode())
    assert shell.run("apply", plan)[1].startswith(f"moved shop/web: {MOVED}\n")
    assert migrated == [(7, "0", "1")]
    assert shell.world.kernel.read(*mems).strip() == "1"


@pytest.mark.parametrize("world", [MemoryManagerPolicy.STATIC], indirect=True)
def test_pages_go_back_where_the_move_is_rejected_then(
    agent: Running,
    shell: Shell,
    migrated: list[tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = shell.file(shell.run("plan", "--for", shell.file(NEW), "-o", "json")[1].encode())

    def overtaken(pid: int, old: Mask, new: Mask) -> None:
        if not migrated:
            for uid, cpus in (("u-3", "3"), ("u-2", "2")):
                assert agent.client.admit(manifest(f"late-{uid}", uid, cpu=cpus)).admitted
        migrated.append((pid, str(old), str(new)))

    monkeypatch.setattr(moves, "migrate", overtaken)
    code, out, _ = shell.run("apply", plan)
    assert code == ExitCode.REJECTED
    assert out.startswith(f"not moved: shop/web: {MOVED}\n")
    assert migrated == [(7, "0", "1"), (7, "1", "0")]


@pytest.mark.parametrize("world", [MemoryManagerPolicy.STATIC], indirect=True)
def test_pages_go_back_where_the_command_is_interrupted(
    shell: Shell, migrated: list[tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = shell.file(shell.run("plan", "--for", shell.file(NEW), "-o", "json")[1].encode())

    def interrupted(pid: int, old: Mask, new: Mask) -> None:
        migrated.append((pid, str(old), str(new)))
        if len(migrated) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(moves, "migrate", interrupted)
    code, out, _ = shell.run("apply", plan)
    assert code == ExitCode.INTERRUPTED
    assert out == f"not made: shop/web: {MOVED}\n"
    assert migrated == [(7, "0", "1"), (7, "1", "0")]


@pytest.mark.parametrize("world", [MemoryManagerPolicy.STATIC], indirect=True)
def test_pages_that_do_not_go_back_are_named(
    shell: Shell, migrated: list[tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = shell.file(shell.run("plan", "--for", shell.file(NEW), "-o", "json")[1].encode())

    def failing(pid: int, old: Mask, new: Mask) -> None:
        migrated.append((pid, str(old), str(new)))
        if len(migrated) == 1:
            raise KeyboardInterrupt
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(moves, "migrate", failing)
    code, _, err = shell.run("apply", plan)
    assert code == ExitCode.INTERRUPTED
    assert "memory of shop/web is left on node 1: " in err
    assert "itself" not in err


@pytest.mark.parametrize("world", [MemoryManagerPolicy.STATIC], indirect=True)
def test_a_move_without_an_answer_is_not_called_unmade(
    shell: Shell, migrated: list[tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = shell.file(shell.run("plan", "--for", shell.file(NEW), "-o", "json")[1].encode())

    def unreachable(pid: int, old: Mask, new: Mask) -> None:
        migrated.append((pid, str(old), str(new)))
        shell.world.socket.unlink()

    monkeypatch.setattr(moves, "migrate", unreachable)
    code, out, _ = shell.run("apply", plan)
    assert (code, out) == (
        ExitCode.UNREACHABLE,
        f"not known whether made: shop/web: {MOVED}\n",
    )
    assert migrated == [(7, "0", "1")], "its pages may be where they are to be"


@pytest.mark.usefixtures("migrated")
@pytest.mark.parametrize("world", [MemoryManagerPolicy.STATIC], indirect=True)
def test_without_the_permission_the_agent_moves_the_pages(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(moves, "migrate", denied)
    plan = shell.file(shell.run("plan", "--for", shell.file(NEW), "-o", "json")[1].encode())
    code, out, err = shell.run("apply", plan)
    assert (code, out.splitlines()[0]) == (ExitCode.OK, f"moved shop/web: {MOVED}")
    assert "the agent moves the memory of shop/web itself: " in err


def test_moves_give_one_node_more_free_cpus(shell: Shell) -> None:
    code, out, _ = shell.run("plan", "--defragment")
    assert (code, out.splitlines()) == (
        ExitCode.OK,
        [
            "5 CPUs are free, at most 3 on one NUMA node",
            "move shop/web: CPUs 1,9 to 7,15; no memory moves",
            "then 5 are free on one NUMA node",
        ],
    )
    file = shell.file(shell.run("plan", "--defragment", "-o", "json")[1].encode())
    code, out, _ = shell.run("apply", file)
    assert code == ExitCode.OK
    assert out == "moved shop/web: CPUs 1,9 to 7,15\nall moves are made\n"
    code, out, _ = shell.run("plan", "--defragment")
    assert code == ExitCode.REJECTED
    assert out.endswith("no move of pods that allow it gives one NUMA node more\n")
    code, out, err = shell.run("plan")
    assert code == ExitCode.USAGE
    assert "give either --for FILE or --defragment" in err
