"""A rejection says what would let the pod be admitted, in the answer and later."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from agent.api.documents.rejections import FailedPodDocument
from agent.managers.policy import PluginDevice
from agent.managers.trials import advise
from agent.pods.manifest import load_pod
from agent.server.advice import MOST_WAITING
from agent.server.limits import Caller
from agent.server.queue import called_by
from tests.agent.server.support import OTHER_UID, UID, in_loop, manifest, running
from tests.fakes.devices import FakeProvider

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.rejections import RejectionDocument
    from agent.managers.advice import Advice
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from tests.agent.server.support import Running, World

#: The host has 16 CPUs, one of them reserved.
LARGE = manifest("large", cpu="12")
GPU = "example.com/gpu"


def texts(rejection: RejectionDocument | None) -> list[str] | None:
    assert rejection is not None
    return None if rejection.advice is None else [each.text for each in rejection.advice]


async def shown(agent: Running) -> list[str] | None:
    document = await agent.controller.pod(UID)
    assert isinstance(document, FailedPodDocument)
    return texts(document.rejection)


@in_loop
async def test_a_rejection_has_advice_and_later_that_of_then(world: World) -> None:
    async with running(world) as agent:
        await agent.ask(agent.client.admit, manifest("web", OTHER_UID, cpu="10"))
        asked = partial(agent.client.admit, LARGE, advice=True)
        dry = await asyncio.to_thread(asked, dry_run=True)
        answer = await asyncio.to_thread(asked)
        less = "request 5 of cpu in container c0 instead of 12"
        assert texts(dry.rejection) == texts(answer.rejection) == [less, "end pod shop/web"]
        assert answer.rejection is not None
        assert answer.rejection.advice is not None
        request, end = answer.rejection.advice
        found = (request.kind, request.container, request.resource, request.amount)
        assert found == ("request", "c0", "cpu", 5000)
        assert (end.kind, end.uids) == ("end", (OTHER_UID,))
        assert await shown(agent) == texts(answer.rejection)
        await agent.ask(agent.client.remove, OTHER_UID)
        assert await shown(agent) == ["admit the pod again, as it is"]
        await agent.ask(agent.client.admit, manifest(uid=OTHER_UID, cpu="6"))
        assert (await shown(agent) or [""])[0] == "request 9 of cpu in container c0 instead of 12"


@in_loop
async def test_a_pod_that_a_provider_of_devices_rejected_has_no_advice(world: World) -> None:
    provider = FakeProvider(devices={GPU: (PluginDevice("a"),)}, fails={GPU: "out of luck"})
    world.providers = (lambda _inputs: provider,)
    async with running(world) as agent:
        answer = await asyncio.to_thread(agent.client.admit, manifest(gpu=1), advice=True)
        assert answer.rejection is not None
        assert "out of luck" in answer.rejection.message
        assert texts(answer.rejection) is None


@in_loop
async def test_nothing_is_tried_for_a_rejection_until_advice_is_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither over the API nor from a source (NRI, a plugin, a manifest) does a pod wait for it."""
    tried: list[str] = []

    def counted(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Advice | None]:
        tried.append(pod.uid)
        return advise(rules, ledger, pod)

    monkeypatch.setattr("agent.server.advice.advise", counted)
    async with running(world) as agent:
        for dry_run in (False, True):
            asked = partial(agent.client.admit, manifest(cpu="16"), dry_run=dry_run)
            assert texts((await asyncio.to_thread(asked)).rejection) is None
        await agent.controller.admit(load_pod(manifest(cpu="16"), "test"))
        assert tried == []
        assert await shown(agent) == ["request 15 of cpu in container c0 instead of 16"]
        assert tried == [UID]


@in_loop
async def test_beyond_a_few_rejections_at_a_time_none_waits_for_advice(world: World) -> None:
    async with running(world) as agent:
        decided = [await rejected(agent, number) for number in range(MOST_WAITING + 3)]
        with called_by(Caller("a member")):
            pods = [
                asyncio.create_task(agent.controller.advice.advised(pod, answer))
                for pod, answer in decided
            ]
        found = [texts(each.rejection) for each in await asyncio.gather(*pods)]
        assert found.count(None) == 2
        assert None not in found[: MOST_WAITING + 1]


async def rejected(agent: Running, number: int) -> tuple[Pod, AdmissionDocument]:
    uid = f"00000000-0000-0000-0000-{number:012}"
    pod = load_pod(manifest(uid=uid, cpu="99"), "test")
    return pod, await agent.controller.admit(pod)
