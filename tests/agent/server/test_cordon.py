"""Cordons of a whole agent: enforced at once, kept over restarts, shown everywhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.client import AgentError
from agent.api.documents.maintenance import CordonRequest
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.policy import MemoryManagerPolicy
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, UID, in_loop, make_world, manifest, running

if TYPE_CHECKING:
    from pathlib import Path

    from agent.api.documents.maintenance import CordonsDocument
    from tests.agent.server.support import Running, World

POD = f"kubepods/pod{UID}"
SHARING = "33333333-2222-3333-4444-555555555555"


async def share(agent: Running) -> None:
    """Admit a pod that shares CPUs."""
    text = manifest("sharing", SHARING).replace(b"limits: {cpu: '2', memory: 1Gi}", b"limits: {}")
    await agent.ask(agent.client.admit, text)
    assert shared_cpus(agent)


def shared_cpus(agent: Running) -> str:
    """Return the CPUs of the pods that share CPUs."""
    return agent.world.cpus_of("kubepods/burstable")


async def cordon(agent: Running, target: str, reason: str = "") -> CordonsDocument:
    request = CordonRequest(target=target, reason=reason)
    return await asyncio.to_thread(agent.client.cordon, request)


async def uncordon(agent: Running, target: str) -> CordonsDocument:
    return await asyncio.to_thread(agent.client.uncordon, CordonRequest(target=target))


async def rejected(agent: Running, target: str, *, ending: bool = False) -> AgentError:
    with pytest.raises(AgentError) as raised:
        await (uncordon if ending else cordon)(agent, target)
    return raised.value


@in_loop
async def test_the_shared_pool_leaves_at_once_and_a_running_pod_keeps_its_cpus(
    world: World,
) -> None:
    """The pod has CPUs 1 and 9, one core."""
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        await share(agent)
        answer = await cordon(agent, "1-3", "DIMM A1")
        assert (answer.cpus, answer.shared_pool) == ("1-3", "0,4-8,10-15")
        assert shared_cpus(agent) == "0,4-8,10-15"
        assert world.cpus_of(POD) == "1,9"
        assert [(pod.uid, pod.cpus) for pod in answer.pods] == [(UID, "1")]
        assert answer.differences == ()
        status = await asyncio.to_thread(agent.client.status)
        assert [(each.cpus, each.reason) for each in status.cordons] == [("1-3", "DIMM A1")]
        assert status.cordoned_cpus == "1-3"
        assert status.conditions == ()
        assert status.last_reconcile is None or not status.last_reconcile.found
        releases = agent.controller.state.observed.releases
        after = await uncordon(agent, "2-3")
        tried_again = agent.controller.state.observed.releases - releases
        assert tried_again == 1
        assert after.cpus == "1"
        assert shared_cpus(agent) == "0,2-8,10-15"


@in_loop
async def test_a_cordon_outlives_a_restart_hotplug_and_a_configuration_that_no_longer_fits(
    tmp_path: Path,
) -> None:
    world = make_world(tmp_path)
    async with running(world) as agent:
        await share(agent)
        await cordon(agent, "node:1", "package 1")
        await cordon(agent, "2")
    async with running(world) as agent:
        rules = agent.controller.state.configured.rules
        assert str(rules.cordoned_cpus) == "2,4-7,12-15"
        assert shared_cpus(agent) == "0-1,3,8-11"
        (first, second) = (await asyncio.to_thread(agent.client.status)).cordons
        assert (first.nodes, first.reason, second.cpus) == ("1", "package 1", "2")
        world.change_host(regular_host(packages=2, cores_per_node=8))
        agent.service.resync()
        while len(agent.controller.state.configured.host.cpus) != 32:  # noqa: ASYNC110  # threads
            await asyncio.sleep(0)
        assert str(agent.controller.state.configured.rules.policy.cordon.nodes) == "1"
    world.config = replace(world.config, reserved_system_cpus=Mask.of(99))
    async with running(world) as agent:
        assert agent.controller.state.configured.frozen
        assert agent.controller.state.configured.rules.cordoned_cpus


@in_loop
async def test_a_cordon_that_would_leave_no_shared_cpu_is_rejected_with_the_reason(
    world: World,
) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(cpu="4"))
        before = agent.controller.state.durable
        taken = exclusive_cpus(before.ledger)
        for target, reason in (
            ("0-15", "no CPU would be left"),
            (str(Mask.parse("0-15") - taken), f"{taken} are allocated exclusively"),
        ):
            error = await rejected(agent, target)
            assert (error.status, error.error.code) == (409, "CordonRejected")
            assert reason in error.error.message
        assert agent.controller.state.durable is before


@pytest.mark.parametrize(
    ("reason", "fault"),
    [
        pytest.param("x" * 257, "reason has 257 characters, at most 256", id="too long"),
        pytest.param("ok \x1b]0;pwned\x07", "control characters", id="an escape of terminals"),
        pytest.param("two\nlines", "control characters", id="two lines"),
    ],
)
@in_loop
async def test_a_reason_that_is_no_short_line_is_rejected(
    world: World, reason: str, fault: str
) -> None:
    async with running(world) as agent:
        with pytest.raises(AgentError, match=fault):
            await cordon(agent, "1-3", reason)
        assert (await cordon(agent, "1-3", "x" * 256)).cpus == "1-3"


#: Targets that the host does not have, and what is said of them.
UNKNOWN = {
    "99": "this host has no CPU 99; it has CPUs 0-15",
    "node:2": "this host has no node 2; it has nodes 0-1",
    "core:9": "this host has no core 9; its cores are 0-7",
    "socket:0": "'socket' is neither core nor node",
    "1-": "1-",
    "": "names nothing",
}


@in_loop
async def test_a_core_is_all_of_its_threads_and_what_the_host_does_not_have_is_named(
    world: World,
) -> None:
    async with running(world) as agent:
        for target, found in UNKNOWN.items():
            error = await rejected(agent, target)
            assert (error.status, error.error.code) == (400, "InvalidRequest")
            assert found in error.error.message
        assert (await cordon(agent, "core:2-3")).cpus == "2-3,10-11"


@in_loop
async def test_what_is_not_cordoned_cannot_be_uncordoned_and_the_later_cordon_counts(
    world: World,
) -> None:
    async with running(world) as agent:
        await cordon(agent, "node:1")
        error = await rejected(agent, "2", ending=True)
        message = "CPU 2 is not cordoned; cordoned: node 1"
        assert (error.status, error.error.message) == (409, message)
        error = await rejected(agent, "4", ending=True)
        assert "uncordon node:1 as a whole" in error.error.message
        assert (await uncordon(agent, "node:1")).cordons == ()
        await cordon(agent, "2-5", "first")
        found = [
            (each.cpus, each.reason) for each in (await cordon(agent, "4-6", "second")).cordons
        ]
        assert found == [("2-3", "first"), ("4-6", "second")]


@in_loop
async def test_rejections_fit_metrics_and_the_map_know_the_cordon(world: World) -> None:
    world.config = replace(world.config, memory_manager_policy=MemoryManagerPolicy.NONE)
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest())
        await cordon(agent, "node:1")
        await cordon(agent, "1-3")
        answer = await asyncio.to_thread(
            agent.client.admit, manifest("more", OTHER_UID, cpu="8"), dry_run=True
        )
        assert answer.rejection is not None
        cordoned = "11 CPUs (1-7,12-15) and the memory of node 1 are cordoned"
        assert cordoned in answer.rejection.message
        fit = await asyncio.to_thread(agent.client.fit, manifest(cpu="1"), 100)
        assert fit.free.free == 3
        text = agent.controller.metrics.render(agent.controller.state.reading()).decode()
        for state, count in (("allocated", 1.0), ("idle", 10.0)):
            assert f'numawarden_cordoned_cpus{{state="{state}"}} {count}' in text
        shown = await asyncio.to_thread(agent.client.map)
        uses = {cpu.id: str(cpu.use) for cpu in shown.cpus}
        found = [uses[cpu] for cpu in (0, 1, 2, 4)]
        assert found == ["reserved", "exclusive", "cordoned", "cordoned"]
        assert [cpu.id for cpu in shown.cpus if cpu.cordoned] == [*range(1, 8), *range(12, 16)]
        assert [node.cordoned for node in shown.nodes] == [False, True]


@in_loop
async def test_a_drain_is_asked_and_changes_nothing(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest(cpu="4"))
        await agent.ask(agent.client.admit, manifest("big", OTHER_UID, cpu="6"))
        before = agent.controller.state.durable
        plan = await asyncio.to_thread(agent.client.drain, "node:0")
        assert agent.controller.state.durable is before
        assert [(pod.name, pod.outcome) for pod in plan.pods] == [("web", "rejected")]
        assert plan.stay == 1
        both = await asyncio.to_thread(agent.client.drain, "node:0,node:1")
        assert both.nodes == "0-1"
        plan = await asyncio.to_thread(agent.client.drain, "1,9")
        assert [(pod.name, pod.outcome, pod.cpus) for pod in plan.pods] == [("web", "fits", "1,9")]
        assert plan.rejection == ""
        with pytest.raises(AgentError, match="the agent ends no pods"):
            await asyncio.to_thread(agent.client._request, "POST", "/v1/drain", b'{"target":"1"}')
