from __future__ import annotations

import asyncio
import errno
import os
import ssl
from typing import TYPE_CHECKING

import aiohttp
import pytest
from msgspec.structs import replace

from agent.config.agent import MetricsConfig
from agent.reconcile.tasks import Task
from agent.server.intruders import COUNT_SECONDS
from sysfs.mask import Mask
from tests.agent.server.support import UID, in_loop, manifest, running

if TYPE_CHECKING:
    from pathlib import Path

    from agent.server.gauges import GaugeInput
    from tests.agent.server.support import Running, World


async def fetch(agent: Running, path: str, tls: ssl.SSLContext | None = None) -> tuple[int, str]:
    scheme = "http" if tls is None else "https"
    async with aiohttp.ClientSession() as session:
        url = f"{scheme}://127.0.0.1:{agent.port}{path}"
        response = await session.get(url, ssl=tls if tls is not None else True)
        return response.status, await response.text()


@in_loop
async def test_what_is_configured_for_metrics_is_exported(world: World) -> None:
    metrics = MetricsConfig(port=0, containers=1)
    agent_config = replace(world.config.agent, metrics=metrics)
    world.config = replace(world.config, agent=agent_config, cpu_manager_reconcile_period=25.0)
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(cpu="1", containers=2))
        _, text = await fetch(agent, "/metrics")
    assert "\nnumawarden_reconcile_period_seconds 25.0\n" in text
    assert text.count("\nnumawarden_container_info{") == 1
    assert "\nnumawarden_containers_omitted 1.0\n" in text


@in_loop
async def test_intruding_tasks_are_counted_by_a_comparison_that_could_read_the_tree(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: str) -> tuple[str, ...]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        for task, broken, threads in (
            (Task(4711, "own", Mask.of(1), f"kubepods/pod{UID}/c0"), True, "0.0"),
            (Task(4712, "busy", Mask.of(1), "system.slice", threads=3), False, "3.0"),
        ):
            world.tasks.append(task)
            world.clock.now += COUNT_SECONDS
            with monkeypatch.context() as patched:
                if broken:
                    patched.setattr(world.kernel, "children", unreadable)
                await agent.ask(agent.client.reconcile)
            _, text = await fetch(agent, "/metrics")
            assert f'\nnumawarden_intruding_tasks{{kind="confined"}} {threads}\n' in text


@in_loop
async def test_an_agent_that_does_not_compare_is_not_healthy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(world) as agent:
        monkeypatch.setattr(agent.controller, "reconcile", asyncio.Event().wait)
        world.clock.advance(300)
        status, text = await fetch(agent, "/healthz")
    assert status == 503
    assert "comparison with the kernel has made no progress for 210 s" in text


@in_loop
async def test_nothing_can_be_changed_there(world: World) -> None:
    async with running(world) as agent, aiohttp.ClientSession() as session:
        base = f"http://127.0.0.1:{agent.port}"
        for path in ("/v1/pods", "/metrics", "/healthz"):
            response = await session.post(base + path, data=manifest())
            assert response.status in (404, 405)
        assert not agent.controller.state.ledger.allocations


@in_loop
async def test_with_a_certificate_it_speaks_tls_alone(world: World, certificate: Path) -> None:
    metrics = MetricsConfig(port=0, tls_certificate=certificate, tls_key=certificate)
    world.config = replace(world.config, agent=replace(world.config.agent, metrics=metrics))
    trusting = ssl.create_default_context(cafile=certificate)
    async with running(world) as agent:
        assert (await fetch(agent, "/readyz", trusting))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await fetch(agent, "/readyz")


@in_loop
async def test_scrapes_within_a_second_are_one_rendering_unless_something_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(world) as agent:
        renderings = 0
        render = agent.controller.metrics.render

        def counted(reading: GaugeInput) -> bytes:
            nonlocal renderings
            renderings += 1
            return render(reading)

        async def compared() -> float:
            _, text = await fetch(agent, "/metrics")
            name = "numawarden_reconcile_duration_seconds_count "
            return float(text.partition(f"\n{name}")[2].partition("\n")[0])

        monkeypatch.setattr(agent.controller.metrics, "render", counted)
        world.clock.advance(1)
        shown = {await compared() for _ in range(5)}
        assert (renderings, len(shown)) == (1, 1)
        world.clock.advance(0.9)
        assert {await compared()} == shown
        assert renderings == 1
        world.clock.advance(0.1)
        await compared()
        assert renderings == 2
        before = shown.pop()
        for number in (1, 2):
            await agent.ask(agent.client.reconcile)
            assert await compared() == before + number
