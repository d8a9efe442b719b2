"""Whatever keeps pods from being admitted: readyz, status, its exit code and the metrics say so."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

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
    from pathlib import Path

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


@asynccontextmanager
async def full_disk(world: World) -> AsyncIterator[Running]:
    async with running(world) as agent:
        store = agent.controller.steps.store
        usual, store._files = store._files, FullDisk()
        with pytest.raises(AgentError, match="No space left"):
            await asyncio.to_thread(agent.client.admit, manifest("db", OTHER_UID))
        yield agent
        store._files = usual
        await agent.ask(agent.client.reconcile)
        assert await said(agent) == (True, ())


@asynccontextmanager
async def a_configuration_that_admits_nothing(world: World) -> AsyncIterator[Running]:
    world.config = replace(world.config, reserved_system_cpus=Mask.of(99))
    async with running(world) as agent:
        yield agent


@asynccontextmanager
async def a_missing_manifest_directory(world: World) -> AsyncIterator[Running]:
    directory = world.manifest_directory()
    directory.rmdir()
    async with running(world) as agent:
        yield agent
        directory.mkdir(mode=0o755)
        await agent.sync_manifests()
        ready, conditions = await said(agent)
        assert ready
        assert not any("does not exist" in line for line in conditions)


@asynccontextmanager
async def a_first_comparison_that_failed(world: World) -> AsyncIterator[Running]:
    kernel = world.kernel
    children = kernel.children

    def unreadable(path: str) -> tuple[str, ...]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    kernel.children = unreadable  # type: ignore[method-assign]  # the kernel fails
    try:
        async with running(world) as agent:
            yield agent
            kernel.children = children  # type: ignore[method-assign]  # as above
            await agent.ask(agent.client.reconcile)
            assert (await said(agent))[0]
    finally:
        kernel.children = children  # type: ignore[method-assign]  # as above


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


@asynccontextmanager
async def a_disk_that_filled_while_nothing_was_asked(world: World) -> AsyncIterator[Running]:
    async with running(world) as agent:
        store = agent.controller.steps.store
        usual, store._files = store._files, SpacelessDisk()
        await agent.ask(agent.client.reconcile)
        yield agent
        store._files = usual
        await agent.ask(agent.client.reconcile)
        assert await said(agent) == (True, ())


@asynccontextmanager
async def reservations_of_every_cpu(world: World) -> AsyncIterator[Running]:
    world.config = replace(world.config, reserved_system_cpus=two_packages().online)
    async with running(world) as agent:
        yield agent


@asynccontextmanager
async def reservations_of_all_memory(world: World) -> AsyncIterator[Running]:
    amounts = MappingProxyType({"memory": Quantity.parse("1Ti")})
    world.config = replace(world.config, system_reserved=amounts)
    async with running(world) as agent:
        yield agent


@asynccontextmanager
async def no_pods_allowed(world: World) -> AsyncIterator[Running]:
    world.config = replace(world.config, max_pods=0)
    async with running(world) as agent:
        yield agent


STATES: Final[dict[str, tuple[Callable[[World], AbstractAsyncContextManager[Running]], str]]] = {
    "full disk": (full_disk, "No space left on device"),
    "configuration": (a_configuration_that_admits_nothing, "this host has no CPU 99"),
    "manifest directory": (a_missing_manifest_directory, "manifests"),
    "comparison": (a_first_comparison_that_failed, "Input/output error"),
    "full disk, nothing asked": (
        a_disk_that_filled_while_nothing_was_asked,
        "No space left on device",
    ),
    "all CPUs reserved": (reservations_of_every_cpu, "nothing of cpu is allocatable"),
    "all memory reserved": (reservations_of_all_memory, "nothing of memory is allocatable"),
    "no pods": (no_pods_allowed, "maxPods allow no pod"),
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

    @in_loop
    async def scenario() -> None:
        async with running(world) as agent:
            await agent.ask(agent.client.admit, manifest())
        async with state(world) as agent:
            ready, conditions = await said(agent)
            assert not ready
            assert any(cause in line for line in conditions)

    scenario()
