"""Whatever keeps pods from being admitted: readyz, status, its exit code, metrics, log say so."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias
from unittest.mock import Mock, patch

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.api.client import AgentError
from agent.cli.errors import ExitCode
from agent.cli.main import run_command
from agent.pods.quantity import Quantity
from agent.server.conditions import ConditionType
from agent.server.monitoring import RENDERED_SECONDS
from agent.state.store import OsFiles
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, in_loop, manifest, running, two_packages
from tests.agent.server.test_monitoring import fetch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.agent.server.support import Running, World


async def written(agent: Running) -> None:
    """Return once a thread of its own has written the history so far, or could not."""
    with suppress(AgentError):  # it cannot be read either
        await asyncio.to_thread(agent.client.history, limit=1)


async def said(agent: Running) -> tuple[bool, tuple[str, ...]]:
    """Return whether the agent is ready and its conditions, having asked in all four ways."""
    await written(agent)
    agent.world.clock.advance(2 * RENDERED_SECONDS)
    readyz, why = await fetch(agent, "/readyz")
    status = await asyncio.to_thread(agent.client.status)
    command = ["status", "--socket", str(agent.world.socket)]
    code = await asyncio.to_thread(run_command, command)
    _, metrics = await fetch(agent, "/metrics")
    ready = readyz == HTTPStatus.OK
    assert status.ready is ready, why
    assert why.strip() == (status.unready or "ok")
    listed = Counter(condition.type for condition in status.conditions)
    for kind in map(str, ConditionType):
        assert f'\nnumawarden_conditions{{type="{kind}"}} {listed[kind]:.1f}\n' in metrics
    assert f"\nnumawarden_ready {ready:.1f}\n" in metrics
    assert code == (ExitCode.OK if ready and not status.condition_lines() else ExitCode.REJECTED)
    assert ready or status.condition_lines(), "what keeps it from being ready is named"
    assert ready or any(why.strip() in line for line in status.condition_lines()) or "yet" in why
    return ready, status.condition_lines()


class FullDisk(OsFiles):
    """A disk on which nothing can be written."""

    def write(self, fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fd, None, len(data))


class SpacelessDisk(FullDisk):
    """A full disk that says so."""

    def free(self, path: Path) -> int:
        del path
        return 0


State: TypeAlias = "Callable[[World], AbstractAsyncContextManager[Running]]"


def disk(files: FullDisk, *, asked: bool) -> State:
    """Return the state of a disk that filled, when a pod was asked for or while nothing was."""

    @asynccontextmanager
    async def state(world: World) -> AsyncIterator[Running]:
        async with running(world) as agent:
            store = agent.controller.steps.store
            usual, store._files = store._files, files
            if asked:
                with pytest.raises(AgentError, match="No space left"):
                    await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))
            else:
                await agent.ask(agent.client.reconcile)
            yield agent
            store._files = usual
            await agent.ask(agent.client.reconcile)
            assert await said(agent) == (True, ())

    return state


def configured(**changes: object) -> State:
    @asynccontextmanager
    async def state(world: World) -> AsyncIterator[Running]:
        world.config = replace(world.config, **changes)
        async with running(world) as agent:
            yield agent

    return state


def manifests(spoil: Callable[[Path], object]) -> State:
    """Return the state of a manifest directory that cannot be read."""

    @asynccontextmanager
    async def state(world: World) -> AsyncIterator[Running]:
        directory = world.manifest_directory()
        spoil(directory)
        async with running(world) as agent:
            yield agent
            if directory.exists():
                directory.rename(directory.with_name("spoilt"))
            directory.mkdir(mode=0o755)
            await agent.sync_manifests()
            assert (await said(agent))[0]

    return state


def to_a_file(directory: Path) -> None:
    directory.rmdir()
    directory.write_text("")


@asynccontextmanager
async def a_first_comparison_that_failed(world: World) -> AsyncIterator[Running]:
    unreadable = Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO)))
    with patch.object(world.kernel, "children", unreadable) as patched:
        async with running(world) as agent:
            yield agent
            patched.side_effect = type(world.kernel).children.__get__(world.kernel)
            await agent.ask(agent.client.reconcile)
            assert (await said(agent))[0]


@asynccontextmanager
async def a_replaced_state_directory(world: World) -> AsyncIterator[Running]:
    directory = world.config.agent.state_directory
    async with running(world) as agent:
        await written(agent)
        directory.rename(directory.with_name("gone"))
        directory.mkdir(mode=0o700)
        await agent.ask(agent.client.reconcile)
        yield agent
        directory.rmdir()
        directory.with_name("gone").rename(directory)
        await agent.ask(agent.client.reconcile)
        assert await said(agent) == (True, ())


ALL_MEMORY = MappingProxyType({"memory": Quantity.parse("1Ti")})
STATES: Final[dict[str, tuple[State, str]]] = {
    "full disk": (disk(FullDisk(), asked=True), "No space left on device"),
    "full disk, nothing asked": (disk(SpacelessDisk(), asked=False), "No space left on device"),
    "configuration": (configured(reserved_system_cpus=Mask.of(99)), "this host has no CPU 99"),
    "all CPUs reserved": (
        configured(reserved_system_cpus=two_packages().online),
        "nothing of cpu is allocatable",
    ),
    "all memory reserved": (
        configured(system_reserved=ALL_MEMORY),
        "nothing of memory is allocatable",
    ),
    "no pods": (configured(max_pods=0), "maxPods allow no pod"),
    "no manifest directory": (manifests(Path.rmdir), "does not exist"),
    "a file": (manifests(to_a_file), "is not a directory"),
    "open to others": (manifests(lambda path: path.chmod(0o777)), "can be written by others"),
    "of another user": (manifests(lambda path: os.chown(path, 12345, -1)), "to user 12345"),
    "comparison": (a_first_comparison_that_failed, "Input/output error"),
    "state directory": (a_replaced_state_directory, "was removed or replaced"),
}


@in_loop
async def test_a_working_agent_is_ready_and_says_so_everywhere(world: World) -> None:
    async with running(world) as agent:
        assert await said(agent) == (True, ())


@pytest.mark.parametrize("name", STATES)
def test_what_keeps_pods_from_being_admitted_is_said_alike_everywhere(
    world: World, name: str
) -> None:
    state, cause = STATES[name]
    if name == "of another user" and os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")

    @in_loop
    async def scenario() -> None:
        async with running(world) as agent:
            await agent.ask(agent.client.admit, manifest())
        with capture_logs() as log:
            async with state(world) as agent:
                for _ in range(3):  # more rounds say nothing new
                    ready, conditions = await said(agent)
                    assert not ready
                    assert any(cause in line for line in conditions)
                    await agent.ask(agent.client.reconcile)
        assert not [line for line in log if line.get("exc_info") or "exception" in line]
        worst = [line for line in log if line["log_level"] == "error"]
        assert any(cause in str(line) for line in worst), worst
        assert len(worst) <= 2

    scenario()
