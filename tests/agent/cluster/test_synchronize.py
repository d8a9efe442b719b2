"""A runtime that connects: what started meanwhile is adjusted, what is unknown asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.cluster import pod_decisions
from agent.cluster.nri.messages import ContainerResources
from tests.agent.cluster.beside import OTHER, beside, container, created, sandbox
from tests.agent.server.sites import Site, pod_of
from tests.agent.server.support import UID, until

if TYPE_CHECKING:
    import pytest


async def test_a_runtime_that_connects_gets_updates_for_what_started_meanwhile(site: Site) -> None:
    async with beside(site) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=2 log=500m")
        agent.pods.on_request[OTHER] = pod_of("late", OTHER, "db=2")
        given = await created(agent, "db")
        assert given is not None
        right = ContainerResources(str(given.cpus), str(given.mems), -1, 100_000)
        running = [
            replace(container("db"), resources=right),
            replace(container("db"), resources=replace(right, cpus="0-15"), id="db-2"),
            container("unknown", OTHER),
        ]
        updates = await agent.events.synchronize([sandbox(), sandbox(OTHER)], running)
        assert [*updates] == ["db-2"]
        assert updates["db-2"].cpus == given.cpus
        # What was not in the ledger is decided in the background.
        assert await created(agent, "db", OTHER) is not None
        assert OTHER in agent.controller.state.ledger.allocations


def uid_of(number: int) -> str:
    return f"{number:04d}3333-2222-3333-4444-555555555555"


async def test_known_pods_are_decided_while_others_are_asked_for(site: Site) -> None:
    unknown = [uid_of(number) for number in range(20)]

    async with beside(site) as agent:
        agent.pods.answering.clear()
        agent.pods.known[UID] = pod_of("shop", UID, "db=2")
        agent.pods.on_request = {uid: pod_of(f"web{uid[:8]}", uid, "web~10m") for uid in unknown}
        await agent.events.synchronize(list(map(sandbox, (UID, *unknown))), ())
        await until(lambda: sorted(agent.pods.asked) == unknown)
        allocations = agent.controller.state.ledger.allocations
        assert set(allocations) == {UID}
        assert await created(agent, "db") is not None
        agent.pods.answering.set()
        await until(lambda: len(agent.controller.state.ledger.allocations) == 21)


async def test_a_silent_kubelet_is_waited_for_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with beside(site) as agent:
        monkeypatch.setattr(pod_decisions, "ASK_ALL_SECONDS", 0.01)
        agent.pods.answering.clear()
        await agent.events.synchronize(list(map(sandbox, map(uid_of, range(1000)))), ())
        await until(lambda: agent.pods.asked)
        # Thousands of tasks would hold up all others when they are made, and when they are ended.
        assert len(asyncio.all_tasks()) < 200
        await until(lambda: not agent.events._decisions._following)
        assert len(agent.pods.asked) < 200


async def test_a_runtime_that_connects_again_amid_the_decision_has_its_new_pods_decided(
    site: Site,
) -> None:
    async with beside(site) as agent:
        agent.pods.on_request[UID] = pod_of("shop", UID, "db=2")
        agent.pods.on_request[OTHER] = pod_of("late", OTHER, "db=2")
        await agent.events.synchronize([sandbox()], ())
        await agent.events.synchronize([sandbox(), sandbox(OTHER)], ())
        await until(lambda: {UID, OTHER} <= agent.controller.state.ledger.allocations.keys())
