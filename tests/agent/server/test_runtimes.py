"""The service and the containers of container runtimes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from agent.state.store import CHECKPOINT_NAME
from tests.agent.bundles import ID, bundle, cri
from tests.agent.server.support import UID, in_loop, manifest, running

if TYPE_CHECKING:
    from tests.agent.server.support import World

POD = f"kubepods/pod{UID}"


@in_loop
async def test_what_is_not_known_of_a_container_is_logged_once(world: World) -> None:
    bundle(world.runtimes, {})
    with capture_logs() as said:
        async with running(world) as agent:
            await agent.ask(agent.client.admit, manifest(containers=2))
            world.kernel.mkdir(f"{POD}/{ID}")
            for _ in range(2):
                await agent.ask(agent.client.reconcile)
    lines = [line for line in said if f"{ID}/config.json: its annotations" in str(line.get("why"))]
    assert [line["log_level"] for line in lines] == ["warning"]


@in_loop
async def test_without_a_checkpoint_containers_keep_their_cpus_under_their_names(
    world: World,
) -> None:
    sandbox, first, second = (f"{number}" * 64 for number in (1, 3, 2))
    for id_, container in ((sandbox, None), (first, "c0"), (second, "c1")):
        bundle(world.runtimes, cri(container, UID), id_=id_)
    cgroups = [f"{POD}/{id_}" for id_ in (sandbox, first, second)]
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(containers=2))
        for pid, cgroup in enumerate(cgroups, start=1):
            world.kernel.mkdir(cgroup)
            world.kernel.spawn(cgroup, pid)
        settled = await asyncio.to_thread(agent.client.reconcile)
        assert (settled.differences, settled.notes) == ((), ())
        before = [world.cpus_of(cgroup) for cgroup in cgroups]
    (world.config.agent.state_directory / CHECKPOINT_NAME).unlink()
    async with running(world) as agent:
        (recovered,) = await asyncio.to_thread(agent.client.pods)
        assert {each.name: each.cpus for each in recovered.containers} == {
            "c0": before[1],
            "c1": before[2],
        }
        confirmed = await asyncio.to_thread(agent.client.admit, manifest(containers=2))
        assert confirmed.already_admitted
        await agent.ask(agent.client.reconcile)
        assert [world.cpus_of(cgroup) for cgroup in cgroups] == before
