"""While plugins are asked for the devices of a pod, all changes wait; for a bounded time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from unittest.mock import AsyncMock

import pytest

from agent.api.documents.status import RuntimeDocument
from agent.devices.provider import DeviceError
from agent.devices.providers import Providers
from agent.managers.policy import PluginDevice
from agent.pods.manifest import load_pod
from agent.server import decider
from agent.server.errors import PodRemovedError
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, UID, in_loop, manifest, running
from tests.fakes.devices import FakeProvider

if TYPE_CHECKING:
    from agent.api.documents.admissions import AdmissionDocument
    from agent.managers.delivery import Delivery
    from agent.server.controller import Controller
    from tests.agent.server.support import Running, World

GPU: Final = "example.com/gpu"
ASKING: Final = load_pod(manifest("gpu", UID, gpu=1), "test")
WEB: Final = load_pod(manifest("web", OTHER_UID), "test")


@dataclass
class Hanging(FakeProvider):
    """Answers one kind of call once a test lets it, with an error if the test has it fail."""

    hangs: str = ""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""

    async def preferred(
        self, resource: str, available: frozenset[str], required: frozenset[str], size: int
    ) -> tuple[str, ...]:
        await self._hang("prefer")
        return await super().preferred(resource, available, required, size)

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        await self._hang("allocate")
        return await super().allocate(resource, ids)

    async def start_container(self, resource: str, ids: tuple[str, ...]) -> None:
        await self._hang("start")
        await super().start_container(resource, ids)

    async def _hang(self, call: str) -> None:
        if call == self.hangs:
            self.called.set()
            await self.go_on.wait()
            if self.why:
                raise DeviceError(self.why)


@pytest.fixture
def provider(world: World) -> Hanging:
    """Offer three GPUs on node 1, of which b is preferred."""
    made = Hanging(devices={GPU: tuple(PluginDevice(name, Mask.of(1)) for name in "abc")})
    made.preferring, made.prefers = frozenset((GPU,)), {GPU: ("b",)}
    world.providers = (lambda _inputs: made,)
    return made


async def begun(
    agent: Running, provider: Hanging, hangs: str = "allocate"
) -> asyncio.Task[AdmissionDocument]:
    """Begin to admit a pod with a GPU, whose plugin hangs."""
    provider.hangs = hangs
    waiting = asyncio.create_task(agent.controller.admit(ASKING))
    await provider.called.wait()
    return waiting


def admitted(controller: Controller) -> list[str]:
    return [*controller.state.ledger.allocations]


# Shows in differences.md: plugin-deadline
@pytest.mark.parametrize(("hangs", "admits"), [("prefer", True), ("allocate", False)])
@in_loop
async def test_a_plugin_that_hangs_costs_all_others_its_time_only(
    world: World, provider: Hanging, monkeypatch: pytest.MonkeyPatch, hangs: str, *, admits: bool
) -> None:
    """Without a preference the pod is admitted, without the devices it is rejected."""
    monkeypatch.setattr(decider, "PLUGIN_SECONDS", 0.1)
    async with running(world) as agent:
        waiting = await begun(agent, provider, hangs)
        other = asyncio.create_task(agent.controller.admit(WEB))
        answer = await waiting
        assert answer.admitted is admits
        if answer.rejection is not None:
            assert "was not delivered in the time that plugins have" in answer.rejection.message
        assert (await other).admitted
        assert admitted(agent.controller) == [*([UID] if admits else []), OTHER_UID]


@in_loop
async def test_beside_a_container_runtime_plugins_have_less_time(
    world: World, provider: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decider, "PLUGIN_SECONDS_BESIDE_RUNTIME", 0.01)
    monkeypatch.setattr(decider, "PLUGIN_SECONDS", 1000)
    async with running(world) as agent:
        agent.controller.state.parts.runtime = lambda: RuntimeDocument(connected=True, since=0.0)
        assert not (await (await begun(agent, provider))).admitted


def lines(agent: Running) -> list[str]:
    return [line for line in agent.controller.state.condition_lines() if "not prepared" in line]


@in_loop
async def test_no_other_pod_waits_for_devices_that_are_prepared(
    world: World, provider: Hanging
) -> None:
    async with running(world) as agent:
        waiting = await begun(agent, provider, "start")
        assert (await agent.controller.admit(WEB)).admitted
        assert admitted(agent.controller) == [UID, OTHER_UID]
        (line,) = lines(agent)
        assert line.startswith(
            "devices of shop/gpu are not prepared: PreStartContainer has not been answered; look"
        )
        provider.go_on.set()
        answer = await waiting
        assert answer.admitted
        assert answer.pod is not None
        assert answer.pod.enforcement.enforced
        assert lines(agent) == []


@in_loop
async def test_devices_that_are_not_prepared_are_a_condition_until_the_pod_is_asked_for_again(
    world: World, provider: Hanging
) -> None:
    async with running(world) as agent:
        provider.why = "broken"
        provider.go_on.set()
        answer = await (await begun(agent, provider, "start"))
        assert answer.admitted
        assert answer.pod is not None
        (difference,) = answer.pod.enforcement.differences
        why = "PreStartContainer of example.com/gpu failed: broken"
        assert difference == f"devices of shop/gpu are not prepared: {why}"
        assert difference in lines(agent)[0]
    async with running(world) as agent:  # saved: a restart forgets nothing
        assert why in lines(agent)[0]
        provider.why = ""
        again = await agent.controller.admit(ASKING)
        assert again.already_admitted
        assert again.pod is not None
        assert again.pod.enforcement.enforced
        assert lines(agent) == []
    assert [call for call, *_ in provider.calls].count("allocate") == 1


@in_loop
async def test_a_pod_whose_devices_are_being_prepared_can_be_removed(
    world: World, provider: Hanging
) -> None:
    async with running(world) as agent:
        waiting = await begun(agent, provider, "start")
        await agent.controller.remove(UID)
        provider.go_on.set()
        with pytest.raises(PodRemovedError, match="shop/gpu was removed while its devices"):
            await waiting
        assert admitted(agent.controller) == []
        assert lines(agent) == []


@in_loop
async def test_a_defect_while_devices_are_prepared_is_the_pods_condition(
    world: World, provider: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Providers, "prepare", AsyncMock(side_effect=KeyError("c0")))
    provider.go_on.set()
    async with running(world) as agent:
        answer = await agent.controller.admit(ASKING)
        assert answer.pod is not None
        assert "internal error (KeyError: 'c0')" in answer.pod.enforcement.differences[0]
        assert (await agent.controller.admit(ASKING)).already_admitted
