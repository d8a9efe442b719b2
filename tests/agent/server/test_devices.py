"""Devices of a provider in the running agent: offered, decided, delivered, saved, restarted."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import pytest

from agent.config.model import Config
from agent.devices.provider import Offer
from agent.managers.delivery import Delivery, DeviceNode
from agent.managers.policy import PluginDevice
from agent.server.configured import situate
from agent.state.store import peek
from sysfs.mask import Mask
from tests.agent.server.support import UID, in_loop, manifest, running, two_packages, until
from tests.fakes.devices import FakeProvider

if TYPE_CHECKING:
    from pathlib import Path

    from agent.api.documents.admissions import AdmissionDocument
    from agent.managers.allocation import PodAllocation
    from tests.agent.server.support import Running, World

GPU: Final = "example.com/gpu"
ON_NODE_1: Final = tuple(PluginDevice(name, Mask.of(1)) for name in "abc")


def test_only_the_resource_whose_list_changed_is_computed_again() -> None:
    """Each list names a node that the host does not have, which its devices are to lose."""
    first, second = ((PluginDevice(name, Mask.of(0, 9)),) for name in "ab")
    config, host = Config(), two_packages()
    before = situate(config, host, offer=Offer({"example.com/nic": first, GPU: second}))
    changed = (PluginDevice("c", Mask.of(1, 9)),)
    after = situate(config, host, before, offer=Offer({"example.com/nic": changed, GPU: second}))
    [computed] = after.rules.policy.devices[GPU]
    assert computed.nodes == Mask.of(0)
    assert computed is before.rules.policy.devices[GPU][0]
    assert after.rules.policy.devices["example.com/nic"][0].nodes == Mask.of(1)


class Delivering(FakeProvider):
    """Delivers what a test gives it."""

    delivery = Delivery(device_nodes=(DeviceNode("/dev/given", "/dev/gpu0", "rw"),))

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Delivery:
        await super().allocate(resource, ids)
        return self.delivery


@pytest.fixture
def provider(world: World) -> Delivering:
    """Register a provider of three devices on node 1."""
    made = Delivering(devices={GPU: ON_NODE_1}, preferring=frozenset({GPU}))
    world.providers = (lambda _inputs: made,)
    return made


def cdi_file(world: World) -> Path:
    directory = world.config.agent.cdi_directory
    assert directory is not None
    return directory / f"numawarden-{UID}.json"


async def admit(agent: Running, count: int) -> AdmissionDocument:
    return await asyncio.to_thread(agent.client.admit, manifest(gpu=count))


def saved(world: World) -> PodAllocation | None:
    state = peek(world.config.agent.state_directory)
    return None if state is None else state.ledger.allocations.get(UID)


async def offered(agent: Running, provider: Delivering) -> None:
    """Let the agent take what is offered now."""
    provider.changed()
    await agent.service._take_offer()


@in_loop
async def test_preferred_devices_are_allocated_with_cpus_near_them_and_delivered_once(
    world: World, provider: Delivering
) -> None:
    provider.prefers = {GPU: ("c", "b")}
    async with running(world) as agent:
        answer = await admit(agent, 2)
        (container,) = agent.controller.state.ledger.allocations[UID].containers
        assert container.devices == {GPU: ("b", "c")}
        assert container.delivery == provider.delivery
        assert str(container.cpus) == "4,12"
        calls = [("prefer", GPU, "a,b,c"), ("allocate", GPU, "b,c"), ("start", GPU, "b,c")]
        assert provider.calls == calls
        kept = saved(world)
        assert kept is not None
        assert kept.containers == (container,)
        shown = await asyncio.to_thread(agent.client.pod, UID)
        (listed,) = await asyncio.to_thread(agent.client.pods)
        before = cdi_file(world).read_bytes()
        (device,) = json.loads(before)["devices"]
        for pod in (answer.pod, shown, listed):
            assert pod is not None
            delivery = pod.containers[0].delivery
            assert delivery is not None
            assert delivery.device_nodes[0].host_path == "/dev/gpu0"
            assert delivery.cdi_device == f"numawarden.dev/pod={device['name']}"
    orphaned = cdi_file(world).with_name("numawarden-orphaned.json")
    orphaned.write_bytes(before)
    cdi_file(world).unlink()
    provider.calls.clear()
    async with running(world) as agent:
        # Neither a restart nor the same specification again delivers anything again.
        assert (await admit(agent, 2)).already_admitted
        assert agent.controller.state.ledger.allocations[UID].containers == (container,)
        assert provider.calls == []
        assert not orphaned.exists()
        assert cdi_file(world).read_bytes() == before
        cdi_file(world).unlink()
        await agent.controller.reconcile()
        assert cdi_file(world).read_bytes() == before
        await agent.ask(agent.client.remove, UID)
        assert not cdi_file(world).exists()


@in_loop
async def test_a_file_that_cannot_be_written_is_a_condition_of_an_admitted_pod(
    world: World, provider: Delivering
) -> None:
    cdi_file(world).parent.write_text("")
    async with running(world) as agent:
        assert (await admit(agent, 1)).admitted
        found = agent.controller.state.present_conditions()
        assert [(each.type, each.reason) for each in found] == [("DevicesDelivered", "CDI")]
        cdi_file(world).parent.unlink()
        await agent.controller.reconcile()
        assert agent.controller.state.present_conditions() == ()
        assert cdi_file(world).exists()
    assert provider.calls


@in_loop
async def test_a_delivery_that_fails_rejects_the_pod_and_leaves_nothing_behind(
    world: World, provider: Delivering
) -> None:
    provider.fails = {GPU: "device plugin of example.com/gpu: UNKNOWN: out of luck"}
    async with running(world) as agent:
        before = agent.controller.state.ledger
        answer = await admit(agent, 2)
        assert answer.rejection is not None
        assert (answer.rejection.reason, answer.rejection.message) == (
            "UnexpectedAdmissionError",
            f"Allocate failed due to {provider.fails[GPU]}, which is unexpected",
        )
        assert answer.rejection.remedy == "try another plugin"
        assert (answer.rejection.resource, answer.rejection.container) == (GPU, "c0")
        assert agent.controller.state.ledger == before
        assert saved(world) is None
        assert not world.kernel.exists(f"kubepods/pod{UID}")
        provider.fails = {}
        usual, provider.delivery = provider.delivery, Delivery(environment={"A": "1\nB=2"})
        answer = await admit(agent, 2)
        assert answer.rejection is not None
        assert "fake delivered for example.com/gpu" in answer.rejection.message
        assert not cdi_file(world).exists()
        provider.delivery = usual
        assert (await admit(agent, 3)).admitted


@in_loop
async def test_a_dry_run_asks_no_provider(world: World, provider: Delivering) -> None:
    provider.prefers = {GPU: ("c",)}
    async with running(world) as agent:
        answer = await asyncio.to_thread(agent.client.admit, manifest(gpu=1), dry_run=True)
        assert answer.pod is not None
        assert answer.pod.containers[0].devices == {GPU: ("a",)}
        assert provider.calls == []


# Shows in differences.md: unhealthy-device
@in_loop
async def test_devices_that_come_and_go_change_what_is_admitted_at_once(
    world: World, provider: Delivering
) -> None:
    provider.devices = {}
    async with running(world) as agent:
        rejected = await admit(agent, 1)
        assert rejected.rejection is not None
        assert rejected.rejection.reason == f"OutOf{GPU}"
        provider.devices = {GPU: ON_NODE_1}
        await offered(agent, provider)
        assert (await admit(agent, 3)).admitted
        provider.devices = {GPU: (*ON_NODE_1[:2], PluginDevice("c", Mask.of(1), healthy=False))}
        await offered(agent, provider)
        (pod,) = await asyncio.to_thread(agent.client.pods)
        assert [each.message for each in pod.invalid] == [
            "has example.com/gpu c, which is not healthy"
        ]
        provider.devices = {}
        await offered(agent, provider)
        assert len(agent.controller.state.invalid) == 3
        assert agent.controller.state.ledger.allocations[UID].containers[0].devices == {
            GPU: ("a", "b", "c")
        }


@in_loop
async def test_what_is_wrong_with_a_provider_is_a_condition_and_ends_nothing(
    world: World, provider: Delivering
) -> None:
    provider.lines = ("the plugin of example.com/gpu went away",)
    provider.breaks = "a mistake"
    async with running(world) as agent:
        observed = agent.controller.state.observed
        await until(lambda: "devices of fake" in observed.conditions)
        message = observed.conditions["devices of fake"]
        assert "internal error (RuntimeError: a mistake)" in message
        found = agent.controller.state.present_conditions()
        assert ("DevicesOffered", "Fake", provider.lines[0]) in [
            (each.type, each.reason, each.message) for each in found
        ]
        assert (await admit(agent, 1)).admitted
