"""A pod asks the running agent for a device of the host, and gets it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.config.devices import HostDeviceClass
from agent.devices.host import HostDevices
from agent.server.providers import own_devices
from tests.agent.server.support import OTHER_UID, UID, in_loop, make_world, manifest, running
from tests.sysfs.pci import network_host

if TYPE_CHECKING:
    from pathlib import Path

    from agent.api.documents.admissions import AdmissionDocument
    from tests.agent.server.support import Running, World

VF: Final = "example.com/vf"
FUNCTION: Final = "0000:3b:02.0"


async def admit(agent: Running, uid: str = UID) -> AdmissionDocument:
    amounts = b"memory: 1Gi"
    text = manifest(uid=uid).replace(amounts, amounts + f", {VF}: 1".encode())
    return await asyncio.to_thread(agent.client.admit, text)


@in_loop
async def test_a_pod_gets_a_virtual_function_and_cpus_near_it(world: World, tmp_path: Path) -> None:
    network = network_host(tmp_path / "pci")
    classes = (HostDeviceClass(VF, virtual_functions_of="ens1f0"),)
    provider = HostDevices(classes, network.root, watches={})
    world.providers = (lambda _inputs: provider,)
    async with running(world) as agent:
        assert (await admit(agent)).admitted
        (container,) = agent.controller.state.ledger.allocations[UID].containers
        assert container.devices == {VF: (FUNCTION,)}
        assert container.delivery.pci_addresses == (FUNCTION,)
        assert container.delivery.environment["PCIDEVICE_EXAMPLE_COM_VF"] == FUNCTION
        paths = [node.host_path for node in container.delivery.device_nodes]
        assert paths == ["/dev/vfio/vfio", "/dev/vfio/60"]
        assert str(container.cpus) == "4,12"


@in_loop
async def test_a_class_of_the_configuration_is_kept_through_a_restart(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    network = network_host(tmp_path / "host")
    classes = (HostDeviceClass(VF, interface="ens1f0"), HostDeviceClass(VF, interface="eno1"))
    agent_config = replace(world.config.agent, host_devices=classes)
    world.config = replace(world.config, agent=agent_config)
    world.providers = (own_devices,)
    async with running(world) as agent:
        assert (await admit(agent)).admitted
        status = await asyncio.to_thread(agent.client.status)
        messages = [condition.message for condition in status.conditions]
        assert any("no device meets interface eno1" in message for message in messages)
    # The container takes the interface while the agent is down.
    network.move_away("0000:3b:00.0", "ens1f0")
    async with running(world) as agent:
        (container,) = agent.controller.state.ledger.allocations[UID].containers
        assert container.devices == {VF: ("0000:3b:00.0",)}
        status = await asyncio.to_thread(agent.client.status)
        assert "0000:3b:00.0" not in str(status.conditions)
        assert not (await admit(agent, OTHER_UID)).admitted
