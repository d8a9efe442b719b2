"""While plugins are asked for the devices of a pod, all changes wait; for a bounded time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from agent.api.documents import CordonRequest, RuntimeDocument
from agent.devices.provider import DeviceError
from agent.managers.policy import PluginDevice
from agent.pods.manifest import load_pod
from agent.server import admissions
from agent.server.errors import CheckpointFailedError, PodNotFoundError, PodRemovedError
from agent.server.queue import QueueStopped
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, UID, in_loop, manifest, running, until
from tests.agent.server.test_controller import disk_full
from tests.fakes.devices import FakeProvider

if TYPE_CHECKING:
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


@pytest.mark.parametrize("hangs", ["prefer", "allocate"])
@in_loop
async def test_all_changes_wait_while_a_plugin_is_asked(
    world: World, provider: Hanging, hangs: str
) -> None:
    async with running(world) as agent:
        controller = agent.controller
        waiting = await begun(agent, provider, hangs)
        others = [
            asyncio.create_task(controller.admit(asking("nic", OTHER_UID, NIC))),
            asyncio.create_task(controller.admit(asking("web", THIRD_UID))),
            asyncio.create_task(controller.reconcile()),
            asyncio.create_task(controller.remove(THIRD_UID)),
        ]
        await until(lambda: controller.queue.waiting == len(others))
        assert admitted(controller) == []
        provider.go_on.set()
        assert (await waiting).admitted
        await asyncio.gather(*others)
        allocations = controller.state.ledger.allocations
        assert [*allocations] == [UID, OTHER_UID]
        assert allocations[UID].containers[0].devices[GPU] == ("b",)
        assert not allocations[UID].exclusive_cpus & allocations[OTHER_UID].exclusive_cpus
        # The parts of the ledger agree with the pods.
        again = controller.state.configured.rules
        parts = {each.name: each.restored(again, None, allocations) for each in again.managers}
        assert dict(controller.state.ledger.parts) == parts
        assert [call for call, resource, _ in provider.calls if resource == GPU] == [*HANGS]


@pytest.mark.parametrize(("hangs", "admits"), [("prefer", True), ("allocate", False)])
@in_loop
async def test_a_plugin_that_hangs_costs_all_others_its_time_only(
    world: World, provider: Hanging, monkeypatch: pytest.MonkeyPatch, hangs: str, *, admits: bool
) -> None:
    """Without a preference the pod is admitted, without the devices it is rejected."""
    monkeypatch.setattr(admissions, "PLUGIN_SECONDS", 0.1)
    async with running(world) as agent:
        waiting = await begun(agent, provider, hangs)
        other = asyncio.create_task(agent.controller.admit(asking("web", OTHER_UID)))
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
    monkeypatch.setattr(admissions, "PLUGIN_SECONDS_BESIDE_RUNTIME", 0.01)
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
        assert (await agent.controller.admit(asking("web", OTHER_UID))).admitted
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
        again = await agent.controller.admit(asking("gpu", UID, GPU))
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
async def test_a_cordon_while_a_plugin_is_asked_lists_the_pod_that_got_the_node(
    world: World, provider: Hanging
) -> None:
    async with running(world) as agent:
        waiting = await begun(agent, provider)
        cordon = asyncio.create_task(agent.controller.cordon(CordonRequest(target="node:1")))
        await until(lambda: agent.controller.queue.waiting == 1)
        provider.go_on.set()
        assert (await waiting).admitted
        assert [each.uid for each in (await cordon).pods] == [UID]


@in_loop
async def test_a_device_that_goes_while_it_is_asked_for_is_not_given(
    world: World, provider: Hanging
) -> None:
    async with running(world) as agent:
        waiting = await begun(agent, provider)
        provider.devices = {}
        provider.go_on.set()
        answer = await waiting
        assert answer.rejection is not None
        assert "fake no longer offers b of example.com/gpu" in answer.rejection.message


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
        await until(lambda: agent.controller.queue.waiting == len(asked))
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
        provider.why = why
        provider.go_on.set()
        if why:
            assert not (await waiting).admitted
            with pytest.raises(PodNotFoundError):
                await removal
        else:
            with pytest.raises(PodRemovedError):
                await waiting
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
        assert admitted(controller) == [UID]
        provider.go_on.set()
        assert (await replacing).admitted
        assert admitted(controller) == [OTHER_UID]


@in_loop
async def test_what_has_begun_is_finished_when_its_client_leaves(
    world: World, provider: Hanging
) -> None:
    async with running(world) as agent:
        waiting = await begun(agent, provider)
        waiting.cancel()
        provider.go_on.set()
        again = await agent.controller.admit(asking("gpu", UID, GPU))
        assert again.already_admitted
    assert [call for call, *_ in provider.calls] == ["prefer", "allocate", "start"]


@in_loop
async def test_what_has_begun_is_finished_when_the_agent_stops(
    world: World, provider: Hanging
) -> None:
    async with running(world) as agent:
        waiting = await begun(agent, provider)
        behind = asyncio.create_task(agent.controller.admit(asking("web", OTHER_UID)))
        await until(lambda: agent.controller.queue.waiting == 1)
        agent.service.stop()
        with pytest.raises(QueueStopped):
            await behind
        provider.go_on.set()
        assert (await waiting).admitted
        await agent.life


@in_loop
async def test_of_a_pod_that_is_not_saved_nothing_is_left(world: World, provider: Hanging) -> None:
    def fail(_state: object) -> int:
        raise disk_full()

    async with running(world) as agent:
        waiting = await begun(agent, provider)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(agent.controller.steps.store, "save", fail)
            provider.go_on.set()
            with pytest.raises(CheckpointFailedError):
                await waiting
        assert admitted(agent.controller) == []
    async with running(world) as agent:  # as after a kill while it waited
        assert admitted(agent.controller) == []
        assert (await agent.controller.admit(asking("gpu", UID, GPU))).admitted
