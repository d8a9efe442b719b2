"""A request, or the file of a pod, gives it other amounts while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.documents.admissions import ResizeRequest
from agent.server import metrics as names
from agent.server.errors import RequestError
from agent.server.resizes import resize_of
from tests.agent.managers.drafts import allocated
from tests.agent.managers.hosts import make_rules
from tests.agent.pods.pods import app, guaranteed, init, pod, sidecar
from tests.agent.server.support import OTHER_UID, UID, in_loop, manifest, next_event, running

if TYPE_CHECKING:
    from agent.api.documents.admissions import AdmissionDocument
    from agent.pods.model import Container
    from tests.agent.server.support import Running, World


async def resize(agent: Running, cpus: str, *, dry_run: bool = False) -> AdmissionDocument:
    request = ResizeRequest(cpus=cpus)
    answer = None

    def ask() -> None:
        nonlocal answer
        answer = agent.client.resize(UID, request, dry_run=dry_run)

    await agent.ask(ask)
    assert answer is not None
    return answer


async def admit(agent: Running, body: bytes) -> None:
    await agent.ask(agent.client.admit, body)


def cpus(agent: Running, uid: str = UID) -> str:
    return str(agent.controller.state.ledger.allocations[uid].exclusive_cpus)


OWN = guaranteed("cpu=1 memory=64Mi")


@pytest.mark.parametrize(
    ("containers", "named", "expected"),
    [
        ((app("main", OWN),), "", "main"),
        ((init("first", OWN), app("main", OWN)), "", "main"),
        ((app("main", OWN), app("other", OWN)), "other", "other"),
        ((app("main", OWN), app("other", OWN)), "", "name the container: main, other"),
        ((sidecar("proxy", OWN), app("main", OWN)), "", "name the container: proxy, main"),
        (
            (app("main", OWN),),
            "gone",
            "pod default/p has no container 'gone'; its containers are main",
        ),
    ],
)
def test_without_a_name_the_container_is_the_one_that_can_be_resized(
    containers: tuple[Container, ...], named: str, expected: str
) -> None:
    allocation = allocated(make_rules(), pod(*containers))
    asked = resize_of(allocation.uid, ResizeRequest(container=named, cpus="2"))
    if " " not in expected:
        assert asked.change(allocation).container == expected
        return
    with pytest.raises(RequestError) as caught:
        asked.change(allocation)
    assert str(caught.value) == expected


@in_loop
async def test_a_running_pod_is_resized_saved_enforced_and_reported(world: World) -> None:
    async with running(world) as agent:
        await admit(agent, manifest())
        cgroup = f"kubepods/pod{UID}"
        before = cpus(agent)
        planned = await resize(agent, "4", dry_run=True)
        assert planned.plan is not None
        assert f"/{cgroup}" in {write.cgroup for write in planned.plan.writes}
        assert cpus(agent) == before
        with agent.controller.events.watch() as watcher:
            answer = await resize(agent, "4")
            assert answer.admitted
            event = await next_event(watcher, "PodResized")
            assert event.message.startswith(f"exclusive CPUs {cpus(agent)}; enforced after ")
        assert world.kernel.read(cgroup, "cpuset.cpus").strip() == cpus(agent)
        again = await resize(agent, "4")
        assert again.already_admitted
        counters = agent.controller.metrics.counters
        assert counters.value(names.RESIZES, "resized") == 1
    async with running(world) as agent:
        allocation = agent.controller.state.ledger.allocations[UID]
        assert {name: str(mask) for name, mask in allocation.originals.items()} == {"c0": before}
        assert (await resize(agent, "2")).admitted
        assert cpus(agent) == before


@in_loop
async def test_a_rejected_resize_changes_nothing_and_leaves_no_failed_pod(world: World) -> None:
    async with running(world) as agent:
        await admit(agent, manifest())
        await admit(agent, manifest("other", OTHER_UID, cpu="4"))
        before = agent.controller.state.durable
        with agent.controller.events.watch() as watcher:
            answer = await resize(agent, "12")
            event = await next_event(watcher, "PodResizeRejected")
        assert answer.rejection is not None
        assert answer.rejection.reason == "Deferred"
        assert event.message.startswith("Deferred: ")
        [advice] = answer.rejection.advice or ()
        assert (await resize(agent, str(advice.amount // 1000), dry_run=True)).admitted
        assert agent.controller.state.durable is before
        assert agent.controller.state.observed.records.failed(UID) is None
        assert agent.controller.metrics.counters.value(names.RESIZES, "rejected") == 1


@in_loop
async def test_a_file_resizes_its_pod_and_a_request_does_not(world: World) -> None:
    directory = world.manifest_directory()
    file = directory / "web.yaml"
    file.write_bytes(manifest())
    async with running(world) as agent:
        before = cpus(agent)
        for size, state in (("4", "admitted"), ("40", "rejected"), ("2", "admitted")):
            file.write_bytes(manifest(cpu=size))
            await agent.sync_manifests()
            [entry] = agent.controller.state.observed.sources.entries()
            assert (size, entry.state) == (size, state)
        assert cpus(agent) == before
        file.write_bytes(manifest(containers=2))
        await agent.sync_manifests()
        [entry] = agent.controller.state.observed.sources.entries()
        assert entry.state == "conflict", "more than amounts differ"


@in_loop
async def test_a_host_that_the_configuration_does_not_fit_resizes_no_pod(world: World) -> None:
    async with running(world) as agent:
        await admit(agent, manifest())
        state = agent.controller.state
        state.configured = replace(
            state.configured, frozen=True, mismatches=("reserved CPUs 99 are missing",)
        )
        answer = await resize(agent, "4")
        assert answer.rejection is not None
        assert "does not fit this host" in answer.rejection.message
