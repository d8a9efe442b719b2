"""A name has one pod at a time; another one takes its place only where that is asked for."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.server import metrics as names
from agent.state.store import Store, peek
from sysfs.mask import Mask
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    in_loop,
    manifest,
    next_event,
    running,
)

if TYPE_CHECKING:
    from agent.api.documents.admissions import AdmissionDocument
    from tests.agent.server.support import Running, World

#: The host has 16 CPUs, one of them reserved.
SAME_NAME = manifest("web", OTHER_UID, cpu="4")
TOO_LARGE = manifest("web", OTHER_UID, cpu="16")


async def pods(agent: Running) -> list[tuple[str, str, str]]:
    found = await asyncio.to_thread(agent.client.pods)
    return [(pod.uid, pod.name, pod.exclusive_cpus) for pod in found]


async def ask(agent: Running, body: bytes, *, replace_pod: bool = False) -> AdmissionDocument:
    asked = partial(agent.client.admit, body, replace=replace_pod, advice=True)
    return await asyncio.to_thread(asked)


def reason(answer: AdmissionDocument) -> str:
    assert answer.rejection is not None
    return answer.rejection.reason


# Shows in differences.md: pod-names
@in_loop
async def test_a_second_pod_of_a_name_is_rejected_and_nothing_changes(world: World) -> None:
    async with running(world) as agent:
        await ask(agent, manifest())
        before, saved = await pods(agent), peek(world.config.agent.state_directory)
        answer = await ask(agent, SAME_NAME)
        assert reason(answer) == "PodConflict"
        assert answer.rejection is not None
        assert f"shop/web (uid {UID})" in answer.rejection.message
        assert "--replace" in answer.rejection.remedy
        assert await pods(agent) == before
        assert peek(world.config.agent.state_directory) == saved


# Shows in differences.md: pod-names
@in_loop
async def test_a_replacement_has_the_cpus_of_the_pod_before_it(world: World) -> None:
    """12 of 15 CPUs, then 14: both together would not fit."""
    async with running(world) as agent:
        await ask(agent, manifest(cpu="12"))
        world.kernel.mkdir(f"kubepods/pod{UID}/c0")
        world.kernel.spawn(f"kubepods/pod{UID}/c0", 4711)
        await agent.ask(agent.client.reconcile)
        with agent.controller.events.watch() as watcher:
            answer = await ask(agent, manifest("web", OTHER_UID, cpu="14"), replace_pod=True)
            assert (answer.admitted, answer.replaced) == (True, UID)
            removed = await next_event(watcher, "PodRemoved")
            assert (removed.uid, removed.message) == (
                UID,
                f"exclusive CPUs 1-2,4-7,9-10,12-15; replaced by the pod of uid {OTHER_UID}",
            )
            assert (await next_event(watcher, "PodAdmitted")).uid == OTHER_UID
        ((uid, _, cpus),) = await pods(agent)
        assert (uid, len(Mask.parse(cpus))) == (OTHER_UID, 14)
        # What still runs of the old pod has none of them.
        assert Mask.parse(world.cpus_of(f"kubepods/pod{UID}/c0")).isdisjoint(Mask.parse(cpus))
        assert answer.pod is not None
        assert answer.pod.enforcement.enforced
        assert any(UID in note for note in answer.pod.enforcement.notes)
        saved = peek(world.config.agent.state_directory)
        assert saved is not None
        assert list(saved.ledger.allocations) == [OTHER_UID]
        assert saved.orphaned == {UID}
        assert agent.controller.metrics.counters.value(names.REMOVALS) == 1


@in_loop
async def test_the_old_pod_stays_if_the_new_one_does_not_fit_and_the_advice_is_without_it(
    world: World,
) -> None:
    """15 CPUs can be had in place of 12; beside them it would be 3."""
    async with running(world) as agent:
        await ask(agent, manifest(cpu="12"))
        before, saved = await pods(agent), peek(world.config.agent.state_directory)
        answer = await ask(agent, TOO_LARGE, replace_pod=True)
        assert reason(answer) == "OutOfcpu"
        assert (await pods(agent), peek(world.config.agent.state_directory)) == (before, saved)
        assert answer.rejection is not None
        assert answer.rejection.advice is not None
        (request,) = [each for each in answer.rejection.advice if each.kind == "request"]
        assert request.amount == 15_000
        fitting = manifest("web", OTHER_UID, cpu="15")
        assert (await ask(agent, fitting, replace_pod=True)).admitted


@in_loop
async def test_a_pod_of_a_file_is_replaced_by_its_file_alone(world: World) -> None:
    directory = world.manifest_directory()
    (directory / "web.yaml").write_bytes(manifest(uid=None))
    async with running(world) as agent:
        before = await pods(agent)
        answer = await ask(agent, SAME_NAME, replace_pod=True)
        assert reason(answer) == "PodConflict"
        assert answer.rejection is not None
        assert "delete that file" in answer.rejection.remedy
        assert await pods(agent) == before
        (directory / "web.yaml").write_bytes(manifest(uid=None, cpu="4"))
        await agent.sync_manifests()
        ((_, name, cpus),) = await pods(agent)
        assert (name, len(Mask.parse(cpus))) == ("web", 4)


@in_loop
async def test_of_several_pods_of_one_name_in_an_old_checkpoint_none_is_chosen(
    world: World,
) -> None:
    async with running(world) as agent:
        await ask(agent, manifest())
        await ask(agent, manifest("db", OTHER_UID))
    directory = world.config.agent.state_directory
    saved = peek(directory)
    assert saved is not None
    second = replace(saved.ledger.allocations[OTHER_UID], name="web")
    with Store(directory) as store:
        store.save(replace(saved, ledger=saved.ledger.with_allocation(second)))
    third = manifest("web", "77777777-2222-3333-4444-555555555555")
    async with running(world) as agent:
        answer = await ask(agent, third, replace_pod=True)
        assert reason(answer) == "PodConflict"
        assert answer.rejection is not None
        assert UID in answer.rejection.message
        assert OTHER_UID in answer.rejection.message
        assert len(await pods(agent)) == 2
        await agent.ask(agent.client.remove, OTHER_UID)
        assert (await ask(agent, third, replace_pod=True)).replaced == UID
