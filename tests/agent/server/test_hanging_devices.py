"""A pod whose devices are not delivered waits by itself; others are admitted and removed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from agent.devices.provider import DeviceError
from agent.managers.policy import PluginDevice
from agent.pods.manifest import load_pod
from agent.server.errors import CheckpointFailedError, PodNotFoundError
from agent.server.queue import QueueStopped
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, UID, in_loop, manifest, running
from tests.agent.server.test_controller import disk_full
from tests.fakes.devices import FakeProvider

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.api.documents import AdmissionDocument
    from agent.managers.allocation import Delivery
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from tests.agent.server.support import Running, World

GPU: Final = "example.com/gpu"
NIC: Final = "example.com/nic"
THIRD_UID: Final = OTHER_UID.replace("2", "3")
HANGS: Final = ("prefer", "allocate", "start")


@dataclass
class Hanging(FakeProvider):
    """Answers calls for GPUs once a test lets it, with an error if the test has it fail."""

    hangs: str = ""
    called: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""

    async def preferred(
        self, resource: str, available: frozenset[str], required: frozenset[str], size: int
    ) -> tuple[str, ...]:
        await self._hang("prefer", resource)
        return await super().preferred(resource, available, required, size)

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        await self._hang("allocate", resource)
        return await super().allocate(resource, ids)

    async def start_container(self, resource: str, ids: tuple[str, ...]) -> None:
        await self._hang("start", resource)
        await super().start_container(resource, ids)

    async def _hang(self, call: str, resource: str) -> None:
        if (call, resource) == (self.hangs, GPU):
            self.called.set()
            await self.go_on.wait()
            if self.why:
                raise DeviceError(self.why)


@pytest.fixture
def provider(world: World) -> Hanging:
    """Offer two GPUs on node 1, of which b is preferred, and a NIC."""
    gpus = tuple(PluginDevice(name, Mask.of(1)) for name in "abc")
    made = Hanging(devices={GPU: gpus, NIC: (PluginDevice("n", Mask.of(0)),)})
    made.preferring, made.prefers = frozenset((GPU,)), {GPU: ("b",)}
    world.providers = (lambda _inputs: made,)
    return made


def asking(name: str, uid: str, resource: str = "", cpu: str = "2") -> Pod:
    amounts = b"memory: 1Gi"
    more = f", {resource}: 1".encode() if resource else b""
    return load_pod(manifest(name, uid, cpu=cpu).replace(amounts, amounts + more), "test")


async def begun(
    agent: Running, provider: Hanging, hangs: str = "allocate", cpu: str = "2"
) -> asyncio.Task[AdmissionDocument]:
    """Begin to admit a pod with a GPU, whose plugin hangs."""
    provider.hangs = hangs
    waiting = asyncio.create_task(agent.controller.admit(asking("gpu", UID, GPU, cpu)))
    await provider.called.wait()
    return waiting


def admitted(controller: Controller) -> list[str]:
    return [*controller.state.ledger.allocations]


@pytest.mark.parametrize("hangs", HANGS)
@in_loop
async def test_a_plugin_that_hangs_keeps_only_its_own_pod_waiting(
    world: World, provider: Hanging, hangs: str
) -> None:
    async with running(world) as agent:
        controller = agent.controller
        waiting = await begun(agent, provider, hangs)
        assert (await controller.admit(asking("nic", OTHER_UID, NIC))).admitted
        assert (await controller.admit(asking("web", THIRD_UID))).admitted
        await controller.reconcile()
        await controller.remove(THIRD_UID)
        assert admitted(controller) == [OTHER_UID]
        provider.go_on.set()
        assert (await waiting).admitted
        allocations = controller.state.ledger.allocations
        assert [*allocations] == [OTHER_UID, UID]
        assert allocations[UID].containers[0].devices[GPU] == ("b",)
        assert not allocations[UID].exclusive_cpus & allocations[OTHER_UID].exclusive_cpus
        # Each pod has what it would have had without the other, and the parts agree with them.
        again = controller.state.configured.rules
        parts = {each.name: each.restored(again, None, allocations) for each in again.managers}
        assert dict(controller.state.ledger.parts) == parts
        assert [call for call, resource, _ in provider.calls if resource == GPU] == [*HANGS]


@pytest.mark.parametrize("why", ["", "broken"])
@in_loop
async def test_a_pod_without_room_beside_a_waiting_one_waits_for_what_becomes_of_it(
    world: World, provider: Hanging, why: str
) -> None:
    async with running(world) as agent:
        controller = agent.controller
        waiting = await begun(agent, provider, cpu="8")
        other = asyncio.create_task(controller.admit(asking("web", OTHER_UID, cpu="10")))
        # Without any room nothing is waited for.
        assert not (await controller.admit(asking("big", THIRD_UID, cpu="99"))).admitted
        assert not other.done()
        provider.why = why
        provider.go_on.set()
        assert (await waiting).admitted == (not why)
        assert (await other).admitted == bool(why)


@pytest.mark.parametrize("resource", ["", GPU])
@in_loop
async def test_a_rejected_pod_in_a_group_leaves_what_a_waiting_one_has(
    world: World, provider: Hanging, resource: str
) -> None:
    """Its CPUs and devices were given a second time to the pod after the rejected one."""
    provider.devices[GPU] = tuple(PluginDevice(name, Mask.of(0)) for name in "ab")
    provider.preferring = frozenset()
    async with running(world) as agent:
        waiting = await begun(agent, provider)
        provider.hangs = ""
        fits, large, following = (OTHER_UID.replace("2", digit) for digit in "345")
        group = (
            asking("fits", fits, cpu="1"),
            asking("large", large, cpu="64"),
            asking("following", following, resource),
        )
        asked = [asyncio.create_task(agent.controller.admit(each)) for each in group]
        for _ in range(1000):
            await asyncio.sleep(0)
        provider.go_on.set()
        answers = [each.admitted for each in await asyncio.gather(waiting, *asked)]
        assert answers == [True, True, False, True]
        allocations = agent.controller.state.ledger.allocations.values()
        cpus = [each.exclusive_cpus for each in allocations]
        assert len({cpu for each in cpus for cpu in each}) == sum(map(len, cpus)) == 5
        given = [gpu for each in allocations for gpu in each.containers[0].devices.get(GPU, ())]
        assert len(given) == len({*given}) == 1 + bool(resource)


@in_loop
async def test_a_pod_that_is_asked_for_twice_while_it_waits_is_admitted_once(
    world: World, provider: Hanging
) -> None:
    async with running(world) as agent:
        waiting = await begun(agent, provider)
        again = asyncio.create_task(agent.controller.admit(asking("gpu", UID, GPU)))
        namesake = asyncio.create_task(agent.controller.admit(asking("gpu", OTHER_UID)))
        assert (await agent.controller.admit(asking("web", THIRD_UID))).admitted
        assert not again.done()
        provider.go_on.set()
        assert not (await waiting).already_admitted
        assert (await again).already_admitted
        assert not (await namesake).admitted
        assert [call for call, *_ in provider.calls].count("allocate") == 1


@pytest.mark.parametrize("why", ["", "broken"])
@in_loop
async def test_a_removal_of_a_waiting_pod_removes_it_once_it_is_admitted(
    world: World, provider: Hanging, why: str
) -> None:
    async with running(world) as agent:
        waiting = await begun(agent, provider)
        removal = asyncio.create_task(agent.controller.remove(UID))
        await agent.controller.reconcile()
        provider.why = why
        provider.go_on.set()
        assert (await waiting).admitted == (not why)
        if why:
            with pytest.raises(PodNotFoundError):
                await removal
        else:
            assert (await removal).uid == UID
        assert admitted(agent.controller) == []


@in_loop
async def test_a_pod_whose_place_is_taken_stays_until_the_devices_are_there(
    world: World, provider: Hanging
) -> None:
    async with running(world) as agent:
        controller = agent.controller
        await controller.admit(asking("gpu", UID))
        provider.hangs = "allocate"
        pod = asking("gpu", OTHER_UID, GPU)
        replacing = asyncio.create_task(controller.admit(pod, replace_pod=True))
        await provider.called.wait()
        assert (await controller.admit(asking("web", THIRD_UID))).admitted
        assert admitted(controller) == [UID, THIRD_UID]
        provider.go_on.set()
        assert (await replacing).admitted
        assert admitted(controller) == [THIRD_UID, OTHER_UID]


async def gone(waiting: asyncio.Task[AdmissionDocument], agent: Running) -> type[BaseException]:
    waiting.cancel()
    assert (await agent.controller.admit(asking("all", OTHER_UID, cpu="14"))).admitted
    await agent.controller.remove(OTHER_UID)
    return asyncio.CancelledError


async def stopped(_: asyncio.Task[AdmissionDocument], agent: Running) -> type[BaseException]:
    agent.service.stop()
    await agent.life
    return QueueStopped


async def unsaved(_: asyncio.Task[AdmissionDocument], agent: Running) -> type[BaseException]:
    store = agent.controller.steps.store

    def fail(_state: object) -> int:
        raise disk_full()

    store.save = fail  # type: ignore[method-assign, assignment]
    return CheckpointFailedError


@pytest.mark.parametrize("end", [gone, stopped, unsaved])
@in_loop
async def test_of_a_waiting_pod_that_is_not_saved_nothing_is_left(
    world: World,
    provider: Hanging,
    end: Callable[[asyncio.Task[AdmissionDocument], Running], Awaitable[type[BaseException]]],
) -> None:
    async with running(world) as agent:
        waiting = await begun(agent, provider)
        expected = await end(waiting, agent)
        provider.go_on.set()
        with pytest.raises(expected):
            await waiting
        assert admitted(agent.controller) == []
    async with running(world) as agent:  # as after a kill while it waited
        assert admitted(agent.controller) == []
        assert (await agent.controller.admit(asking("gpu", UID, GPU))).admitted
