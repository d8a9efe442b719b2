"""What another process undid is named in full, whichever comparison finds it first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.server.reports import DRIFT_KEPT, DRIFT_NAMED
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    in_loop,
    manifest,
    next_event,
    running,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.api.client import AgentClient
    from tests.agent.server.support import World

POD = f"kubepods/pod{UID}"

#: Who may find that something was undone.
FINDERS: dict[str, Callable[[AgentClient], object]] = {
    "an admission": lambda client: client.admit(manifest("other", OTHER_UID)),
    "a removal": lambda client: client.remove(OTHER_UID),
}


@pytest.mark.parametrize("finder", FINDERS)
@in_loop
async def test_drift_names_everything_in_event_log_status_and_counter(
    world: World, finder: str
) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(containers=2))
        if finder == "a removal":
            await agent.ask(agent.client.admit, manifest("other", OTHER_UID))
        for name in ("c0", "c1"):
            world.kernel.mkdir(f"{POD}/{name}")
        await agent.ask(agent.client.reconcile)
        before = world.kernel.read(f"{POD}/c1", "cpuset.cpus").strip()
        world.kernel.write(f"{POD}/c1", "cpuset.cpus", "5-6")
        with agent.controller.events.watch() as watcher, capture_logs() as logs:
            await agent.ask(FINDERS[finder], agent.client)
            # A change that does not look there leaves it to the next comparison.
            if not agent.controller.state.observed.drift:
                await agent.ask(agent.client.reconcile)
            event = await next_event(watcher, "DriftFound")
        status = await asyncio.to_thread(agent.client.status)
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
    line = (
        f"shop/web, container c1: cpuset.cpus of /{POD}/c1 shows 5-6 instead of {before} (unknown)"
    )
    assert (event.uid, event.pod, event.message) == (UID, "shop/web", line)
    assert [entry["settings"] for entry in logs if entry["event"] == "drift found"] == [[line]]
    (drift,) = status.drift
    assert (drift.uid, drift.line()) == (UID, line)
    assert 'numawarden_drift_found_total{cause="unknown"} 1.0' in text


@in_loop
async def test_drift_of_many_settings_at_once_is_bounded_and_counted_in_full(world: World) -> None:
    many = 3 * DRIFT_NAMED
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        cgroups = [f"{POD}/x{number}" for number in range(many)]
        for path in cgroups:
            world.kernel.mkdir(path)
        await agent.ask(agent.client.reconcile)
        with agent.controller.events.watch() as watcher:
            for _ in range(3):
                for path in cgroups:
                    world.kernel.write(path, "cpuset.cpus", "1")
                await agent.ask(agent.client.reconcile)
            first = await next_event(watcher, "DriftFound")
            rest = await next_event(watcher, "DriftFound")
        status = await asyncio.to_thread(agent.client.status)
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
    assert first.message.count("shows 1 instead of 1,9") == DRIFT_NAMED
    assert f"{many - DRIFT_NAMED} more settings differ" in rest.message
    assert len(status.drift) == DRIFT_KEPT
    assert f'numawarden_drift_found_total{{cause="unknown"}} {3.0 * many}' in text
