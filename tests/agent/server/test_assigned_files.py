"""`agent.assignedFiles`: the agent writes the files with the admission, and removes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tests.agent.server.support import UID, in_loop, manifest, running

if TYPE_CHECKING:
    from tests.agent.server.support import World


@in_loop
async def test_files_are_there_with_the_answer_after_a_restart_and_until_the_removal(
    world: World,
) -> None:
    directory = world.directory / "pods"
    agent_keys = replace(world.config.agent, assigned_files=directory)
    world.config = replace(world.config, agent=agent_keys)
    file = directory / UID / "c0/assigned.cpuset"
    async with running(world) as agent:
        answer = await asyncio.to_thread(agent.client.admit, manifest())
        assert answer.pod is not None
        assert file.read_text() == answer.pod.containers[0].cpus
    file.unlink()
    async with running(world) as agent:
        assert file.read_text() == answer.pod.containers[0].cpus
        file.parent.joinpath("assigned.memset").unlink()
        file.parent.joinpath("assigned.memset").mkdir()
        await agent.controller.reconcile()
        found = agent.controller.state.present_conditions()
        assert [each.type for each in found] == ["ContainersInformed"]
        file.parent.joinpath("assigned.memset").rmdir()
        await agent.ask(agent.client.remove, UID)
        assert list(directory.iterdir()) == []
        assert agent.controller.state.present_conditions() == ()
