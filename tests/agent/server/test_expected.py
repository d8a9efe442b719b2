"""What happens to a sound agent is a line in its log, never a traceback, and is written once.

A traceback means a defect of the agent, and operators are asked to report it (docs/operations.md).
"""

from __future__ import annotations

import ast
import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from agent.api.client import AgentError
from agent.server.errors import EXPECTED
from sysfs.files import SysfsError
from tests.agent.server.support import OTHER_UID, in_loop, manifest, running
from tests.agent.server.test_agreement import FullDisk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.agent.server.support import Running, World

ROOT: Final = Path(__file__).parents[3]


# --- what can happen --------------------------------------------------------------------------


def a_directory_that_does_not_exist(world: World) -> None:
    world.manifest_directory().rmdir()


def a_file_in_place_of_the_directory(world: World) -> None:
    directory = world.manifest_directory()
    directory.rmdir()
    directory.write_text("")


def a_directory_open_to_others(world: World) -> None:
    world.manifest_directory().chmod(0o777)


def a_directory_of_another_user(world: World) -> None:
    os.chown(world.manifest_directory(), 12345, -1)


async def nothing(_agent: Running) -> None:
    return


async def a_directory_that_vanishes(agent: Running) -> None:
    assert agent.world.config.static_pod_path is not None
    agent.world.config.static_pod_path.rmdir()


async def a_full_disk(agent: Running) -> None:
    agent.controller.steps.store._files = FullDisk()
    with pytest.raises(AgentError):
        await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))


async def a_full_disk_for_a_file(agent: Running) -> None:
    agent.controller.steps.store._files = FullDisk()
    assert agent.world.config.static_pod_path is not None
    (agent.world.config.static_pod_path / "db.yaml").write_bytes(manifest("db", OTHER_UID))


async def a_state_directory_that_vanishes(agent: Running) -> None:
    directory = agent.world.config.agent.state_directory
    directory.rename(directory.with_name("gone"))
    with pytest.raises(AgentError):
        await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))


async def a_host_that_cannot_be_read(agent: Running) -> None:
    def unreadable() -> object:
        raise SysfsError("/sys/devices", "cannot be read", "mount sysfs")

    async def take_over() -> None:
        await agent.controller.take_over(unreadable)  # type: ignore[arg-type]  # it only raises

    await agent.service._attempt(take_over, "take over")


async def a_tree_that_cannot_be_read(agent: Running) -> None:
    def unreadable(path: str) -> tuple[str, ...]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    agent.world.kernel.children = unreadable  # type: ignore[method-assign]  # the kernel fails
    with suppress(AgentError):
        await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))


HAPPENINGS: Final[
    dict[str, tuple[Callable[[World], object], Callable[[Running], Awaitable[None]], str]]
] = {
    "no directory": (a_directory_that_does_not_exist, nothing, "does not exist"),
    "a file": (a_file_in_place_of_the_directory, nothing, "is not a directory"),
    "open": (a_directory_open_to_others, nothing, "can be written by others"),
    "of another user": (a_directory_of_another_user, nothing, "belongs to user 12345"),
    "vanishes": (
        lambda world: world.manifest_directory(),
        a_directory_that_vanishes,
        "does not exist",
    ),
    "full disk": (lambda _: None, a_full_disk, "No space left"),
    "full disk, file": (
        lambda world: world.manifest_directory(),
        a_full_disk_for_a_file,
        "No space left",
    ),
    "state directory": (lambda _: None, a_state_directory_that_vanishes, "removed or replaced"),
    "host": (lambda _: None, a_host_that_cannot_be_read, "cannot be read"),
    "tree": (lambda _: None, a_tree_that_cannot_be_read, "Input/output error"),
}


@pytest.mark.parametrize("name", HAPPENINGS)
def test_what_happens_to_a_sound_agent_is_said_without_a_traceback(world: World, name: str) -> None:
    before, during, said = HAPPENINGS[name]
    if name == "of another user" and os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    before(world)

    @in_loop
    async def scenario() -> None:
        with capture_logs() as log:
            async with running(world) as agent:
                await during(agent)
                for _ in range(3):
                    if world.config.static_pod_path is not None:
                        await agent.sync_manifests()
                    await agent.ask(agent.client.reconcile)
                conditions = agent.controller.state.condition_lines()
        assert not [line for line in log if line.get("exc_info") or "exception" in line]
        assert any(said in line for line in conditions)
        worst = [line for line in log if line["log_level"] == "error"]
        assert any(said in str(line) for line in worst)
        # More rounds, three and one when the directory is watched, say nothing new, but that a
        # file's pod could not be admitted again.
        assert len(worst) <= (6 if name == "full disk, file" else 2)

    scenario()


@in_loop
async def test_a_defect_is_a_traceback(world: World) -> None:
    async def broken() -> None:
        raise KeyError("a mistake")

    async with running(world) as agent:
        with capture_logs() as log:
            await agent.service._attempt(broken, "reconcile")
        assert [line["event"] for line in log if line.get("exc_info")] == [
            "periodic action failed unexpectedly"
        ]
        assert any(
            "internal error (KeyError" in x
            for x in agent.controller.state.observed.conditions.values()
        )


# --- tracebacks in the code -------------------------------------------------------------------


def tracebacks() -> Iterator[tuple[str, int, ast.expr | None]]:
    """Yield every `log.exception` with the exceptions that its handler catches."""
    for folder in ("agent", "cgroupfs", "sysfs", "systemd"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text()
            for handler in ast.walk(ast.parse(text)) if ".exception(" in text else ():
                if not isinstance(handler, ast.ExceptHandler):
                    continue
                for call in ast.walk(handler):
                    if (
                        isinstance(call, ast.Call)
                        and isinstance(call.func, ast.Attribute)
                        and call.func.attr == "exception"
                        and isinstance(call.func.value, ast.Name)
                    ):
                        yield str(file.relative_to(ROOT)), call.lineno, handler.type


def test_only_what_nothing_expects_is_logged_with_a_traceback() -> None:
    found = list(tracebacks())
    assert len(found) > 3
    narrow = [
        (file, line)
        for file, line, caught in found
        if not (isinstance(caught, ast.Name) and caught.id == "Exception")
    ]
    assert narrow == []


def test_the_expected_errors_are_no_defects() -> None:
    """A mistake in the code raises one of these, so none of them may be expected."""
    assert not [
        kind
        for kind in (KeyError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError)
        if issubclass(kind, EXPECTED)
    ]
