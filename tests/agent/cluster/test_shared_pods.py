"""Pods that were rejected and run in the shared pool, until their containers start again."""

from __future__ import annotations

import asyncio

import pytest

from agent.cluster.pod_decisions import ASK_SECONDS
from agent.config.cluster import OnReject
from agent.managers.allocation import Source
from agent.server import metrics as names
from agent.state.checkpoint import SharedPod
from tests.agent.cluster.beside import (
    OTHER,
    Api,
    Beside,
    beside,
    created,
    kubelet_pods,
    nothing_given,
    sandbox,
)
from tests.agent.server.sites import Site, pod_of
from tests.agent.server.support import UID


async def test_a_rejected_pod_may_run_shared_which_is_saved_before_it_starts(site: Site) -> None:
    async with beside(site, OnReject.SHARE) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=64")
        assert await created(agent, "db") is None
        saved = site.saved()
        assert saved is not None
        shared = saved.shared[UID]
        assert shared.why.startswith("OutOfcpu: ")
        assert shared.source == Source("kubelet", f"pods/{UID}")
        assert await created(agent, "cache") is None
        await agent.intake.sync()
        (document,) = agent.controller.state.observed.sources.by_name["kubelet"].entries.values()
        assert (document.state, document.message) == ("shared", shared.why)


async def shared_beside_another(agent: Beside) -> None:
    """Have a pod run shared, since another has the CPUs, and then end the other."""
    agent.pods.known[OTHER] = pod_of("big", OTHER, "db=8")
    await agent.intake.sync()
    agent.pods.known[UID] = pod_of("shop", UID, "db=8")
    assert await created(agent, "db") is None
    del agent.pods.known[OTHER]
    await agent.intake.sync()
    assert OTHER not in agent.controller.state.ledger.allocations


async def test_a_pod_that_runs_shared_is_taken_back_when_there_is_room(site: Site) -> None:
    async with beside(site, OnReject.SHARE) as agent:
        await shared_beside_another(agent)
        await agent.intake.sync()
        assert not agent.controller.state.ledger.allocations
        (document,) = agent.controller.state.observed.sources.by_name["kubelet"].entries.values()
        assert document.state == "shared"
        assert "there is room now" in document.message
        given = await created(agent, "db")
        assert given is not None
        assert len(given.cpus or ()) == 8
        assert not agent.controller.state.durable.shared
        saved = site.saved()
        assert saved is not None
        assert not saved.shared
        await agent.intake.sync()
        (document,) = agent.controller.state.observed.sources.by_name["kubelet"].entries.values()
        assert (document.state, document.message) == ("admitted", "")


async def test_a_pod_that_runs_shared_goes_on_as_long_as_there_is_no_room(site: Site) -> None:
    async with beside(site, OnReject.SHARE) as agent:
        agent.pods.known[OTHER] = pod_of("big", OTHER, "db=8")
        await agent.intake.sync()
        agent.pods.known[UID] = pod_of("shop", UID, "db=8 log=1")
        for name in ("db", "log", "db"):
            assert await created(agent, name) is None
        assert [*agent.controller.state.durable.shared] == [UID]
        assert [*agent.controller.state.ledger.allocations] == [OTHER]
        rejections = agent.controller.metrics.counters.value(names.ADMISSIONS, "rejected")
        assert rejections == 1


@pytest.mark.parametrize("on_reject", list(OnReject))
@pytest.mark.parametrize("listed", [True, False])
async def test_nothing_is_final_while_a_pod_may_have_ended(
    site: Site, on_reject: OnReject, *, listed: bool
) -> None:
    """A pod may have ended while the agent or the kubelet was away, before the first list, too."""
    async with beside(site, on_reject) as agent:
        agent.pods.known[OTHER] = pod_of("big", OTHER, "db=8")
        await agent.intake.sync()
        (agent.pods.may_have_ended if listed else agent.pods.unlisted).add(OTHER)
        agent.pods.known[UID] = pod_of("shop", UID, "db=8")
        await nothing_given(agent, r"OutOfcpu.*may have ended.*default/big \(CPUs 4-7,1")
        assert not agent.controller.state.durable.shared
        del agent.pods.known[OTHER]
        agent.pods.may_have_ended.clear()
        agent.pods.unlisted.clear()
        await agent.intake.sync()
        # In the shared pool or not created yet: it has its own now.
        assert set(agent.controller.state.ledger.allocations) == {UID}
        assert await created(agent, "db") is not None


@pytest.mark.parametrize("on_reject", list(OnReject))
async def test_nothing_is_final_before_the_first_list(site: Site, on_reject: OnReject) -> None:
    """A kubelet of v1.37 lists none until it has read its sources; `big` ended meanwhile."""
    first, api = Api(ready=True, big="8"), Api(ready=False, shop="8")
    listed = first.pods_of
    async with beside(site, on_reject, kubelet_pods(first)) as agent:
        assert await agent.pods.list_now(ASK_SECONDS)
        await agent.intake.sync()
        assert [*agent.controller.state.ledger.allocations] == [OTHER]
    async with beside(site, on_reject, kubelet_pods(api)) as agent:
        await nothing_given(agent, r"may have ended.*shop/big")
        assert not agent.controller.state.durable.shared
        api.ready, api.pods_of = True, {OTHER: listed[OTHER], UID: api.pods_of[UID]}
        await nothing_given(agent, "FAILED_PRECONDITION")
        if on_reject is OnReject.SHARE:
            assert [*agent.controller.state.durable.shared] == [UID]


@pytest.mark.parametrize("on_reject", list(OnReject))
async def test_a_shared_pod_goes_on_after_a_restart(site: Site, on_reject: OnReject) -> None:
    async with beside(site, OnReject.SHARE) as agent:
        await shared_beside_another(agent)
    async with beside(site, on_reject) as agent:
        agent.pods.known[UID] = pod_of("shop", UID, "db=8")
        await agent.events.synchronize((sandbox(),), ())
        await agent.intake.sync()
        assert not agent.controller.state.ledger.allocations
        assert UID in agent.controller.state.durable.shared
        del agent.pods.known[UID]
        await agent.intake.sync()
        assert not agent.controller.state.durable.shared
        agent.pods.known[UID] = pod_of("shop", UID, "db=8")
        assert await created(agent, "db") is not None


async def test_an_admission_while_a_pod_is_about_to_run_shared_is_none(site: Site) -> None:
    async with beside(site) as agent:
        pod = agent.pods.known[UID] = pod_of("shop", UID, "db=8")
        shared = SharedPod(UID, pod.name, pod.namespace, Source("kubelet", f"pods/{UID}"), "full")
        sharing = asyncio.create_task(agent.controller.share(shared))
        await asyncio.sleep(0)
        assert not agent.controller.state.durable.shared
        await agent.intake.sync()
        await sharing
        assert not agent.controller.state.ledger.allocations
        assert set(agent.controller.state.durable.shared) == {UID}


async def test_a_pod_that_was_admitted_meanwhile_does_not_run_shared(site: Site) -> None:
    async with beside(site, OnReject.SHARE) as agent:
        pod = agent.pods.known[UID] = pod_of("shop", UID, "db=8")
        await agent.intake.sync()
        shared = SharedPod(UID, pod.name, pod.namespace, Source("kubelet", f"pods/{UID}"), "full")
        await agent.controller.share(shared)
        assert not agent.controller.state.durable.shared
        assert await created(agent, "db") is not None
