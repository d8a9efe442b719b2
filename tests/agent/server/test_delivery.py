"""What providers deliver reaches the answer, the checkpoint and the CDI file of the pod."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import pytest

from agent.managers.allocation import Delivery, DeviceNode
from agent.managers.policy import PluginDevice
from sysfs.mask import Mask
from tests.agent.server.support import UID, in_loop, manifest, running
from tests.fakes.devices import FakeProvider

if TYPE_CHECKING:
    from pathlib import Path

    from agent.api.documents import AdmissionDocument
    from tests.agent.server.support import Running, World

GPU: Final = "example.com/gpu"


class Delivering(FakeProvider):
    """Delivers what a test gives it."""

    delivery = Delivery(device_nodes=(DeviceNode("/dev/given", "/dev/gpu0", "rw"),))

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        await super().allocate(resource, ids)
        return self.delivery


@pytest.fixture
def provider(world: World) -> Delivering:
    made = Delivering(devices={GPU: (PluginDevice("a", Mask.of(1)),)})
    world.providers = (lambda _inputs: made,)
    return made


def cdi_file(world: World) -> Path:
    directory = world.config.agent.cdi_directory
    assert directory is not None
    return directory / f"numawarden-{UID}.json"


async def admit(agent: Running) -> AdmissionDocument:
    return await asyncio.to_thread(agent.client.admit, manifest(gpu=1))


@in_loop
async def test_the_answer_and_the_cdi_file_name_the_same_device(
    world: World, provider: Delivering
) -> None:
    async with running(world) as agent:
        answer = await admit(agent)
        shown = await asyncio.to_thread(agent.client.pod, UID)
        (listed,) = await asyncio.to_thread(agent.client.pods)
        for pod in (answer.pod, shown, listed):
            assert pod is not None
            delivery = pod.containers[0].delivery
            assert delivery is not None
            assert delivery.device_nodes[0].host_path == "/dev/gpu0"
            assert (
                delivery.cdi_device.removeprefix("numawarden.dev/pod=")
                == (json.loads(cdi_file(world).read_text())["devices"][0]["name"])
            )
        await asyncio.to_thread(agent.client.remove, UID)
        assert not cdi_file(world).exists()
    assert provider.calls


@in_loop
async def test_a_restart_and_a_reconcile_write_a_file_that_is_gone(
    world: World, provider: Delivering
) -> None:
    async with running(world) as agent:
        await admit(agent)
        before = cdi_file(world).read_bytes()
    orphaned = cdi_file(world).with_name("numawarden-orphaned.json")
    orphaned.write_bytes(before)
    cdi_file(world).unlink()
    provider.calls.clear()
    async with running(world) as agent:
        assert cdi_file(world).read_bytes() == before
        assert not orphaned.exists()
        cdi_file(world).unlink()
        await agent.controller.reconcile()
        assert cdi_file(world).read_bytes() == before
    assert provider.calls == []


@in_loop
async def test_a_file_that_cannot_be_written_is_a_condition_of_an_admitted_pod(
    world: World, provider: Delivering
) -> None:
    cdi_file(world).parent.write_text("")
    async with running(world) as agent:
        assert (await admit(agent)).admitted
        found = agent.controller.state.present_conditions()
        assert [(each.type, each.reason) for each in found] == [("DevicesDelivered", "CDI")]
        cdi_file(world).parent.unlink()
        await agent.controller.reconcile()
        assert agent.controller.state.present_conditions() == ()
        assert cdi_file(world).exists()
    assert provider.calls


@in_loop
async def test_a_delivery_that_no_container_can_get_rejects_the_pod(
    world: World, provider: Delivering
) -> None:
    provider.delivery = Delivery(environment={"A": "1\nB=2"})
    async with running(world) as agent:
        answer = await admit(agent)
        assert answer.rejection is not None
        assert "fake delivered for example.com/gpu" in answer.rejection.message
        assert not cdi_file(world).exists()
