"""Pods of the kubelet whose devices its plugins gave: from the file to podresources and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.api.documents.history import HistoryDocument
from agent.api.documents.map import MapOwnerDocument
from agent.api.documents.rejections import FailedPodDocument
from agent.cli.admission_text import admission_lines, failed_lines
from agent.cli.history import history_lines
from agent.cluster.kubelet.devices import KubeletDevices
from agent.config.agent import PodResourcesConfig
from agent.config.cluster import BesideKubeletConfig
from agent.managers.allocation import API, KUBELET, Source
from agent.managers.device.kubelet import KUBELET_DEVICES
from agent.managers.policy import TopologyManagerPolicy
from agent.pods.manifest import load_pod
from agent.rpc.client import Client
from agent.rpc.pod_resources import POD_RESOURCES_LISTER, V1
from agent.server.conditions import ConditionType
from agent.state.store import peek
from sysfs.mask import Mask
from tests.agent.server.support import OTHER_UID, PATIENCE, UID, in_loop, manifest, running, until
from tests.fakes.device_plugin import never
from tests.fakes.kubelet.device_shares import write_device_checkpoint
from tests.fakes.kubelet.pod_resources import FakePodResources, container_devices

if TYPE_CHECKING:
    from pathlib import Path

    from agent.api.documents.admissions import AdmissionDocument
    from agent.rpc.messages import Message
    from tests.agent.server.support import Running, World

NIC = "example.com/nic"


@pytest.fixture
def world(world: World) -> World:
    """Return the world with a kubelet beside the agent, which has given no device yet."""
    agent = replace(
        world.config.agent,
        kubelet=BesideKubeletConfig(enabled=True, directory=world.directory / "kubelet"),
        pod_resources=PodResourcesConfig(world.directory / "own" / "kubelet.sock"),
        ignored_resources=(NIC,),
    )
    world.config = replace(
        world.config, topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE, agent=agent
    )
    world.sources = ()
    write_device_checkpoint(kubelet_of(world), {}, NIC)
    return world


def kubelet_of(world: World) -> Path:
    return world.config.agent.kubelet.directory


def give(world: World, node: int, uid: str = UID) -> None:
    write_device_checkpoint(kubelet_of(world), {uid: {"c0": {NIC: {node: ["nic0"]}}}}, NIC)


def with_nic(uid: str = UID, cpu: str = "2") -> bytes:
    text = manifest(uid=uid, cpu=cpu).decode()
    return text.replace("memory: 1Gi", f"memory: 1Gi, {NIC}: 1").encode()


async def admit(agent: Running, raw: bytes) -> AdmissionDocument:
    """Admit a pod as the source of the kubelet's pods does."""
    pod = load_pod(raw, "x")
    return await agent.controller.admit(pod, Source(KUBELET, f"pods/{pod.uid}"))


def cpus_of(agent: Running, uid: str = UID) -> Mask:
    return agent.controller.state.ledger.allocations[uid].exclusive_cpus


async def listed(world: World) -> list[Message]:
    path = world.config.agent.pod_resources.socket
    assert path is not None
    client = Client(path, POD_RESOURCES_LISTER)
    try:
        request, response = V1["ListPodResourcesRequest"](), V1["ListPodResourcesResponse"]
        found = await client.call("List", request, response, PATIENCE)
    finally:
        await client.close()
    return list(found.pod_resources)


@pytest.mark.parametrize(("node", "cpus"), [(0, "1,9"), (1, "4,12")])
@in_loop
async def test_a_pod_is_on_the_node_of_its_device_over_a_restart(
    world: World, node: int, cpus: str
) -> None:
    give(world, node)
    async with running(world) as agent:
        answer = await admit(agent, with_nic())
        assert str(cpus_of(agent)) == cpus
        line = f"      {NIC}: nic0 (node {node}), given by the kubelet"
        assert line in list(admission_lines(answer))
        ledger = agent.controller.state.ledger
        saved = peek(world.config.agent.state_directory)
        assert saved is not None
        assert saved.ledger.allocations == ledger.allocations
    async with running(world) as agent:
        assert agent.controller.state.ledger == ledger
        assert (await admit(agent, with_nic())).already_admitted
        (pod,) = await listed(world)
        (devices,) = pod.containers[0].devices
        assert (devices.resource_name, list(devices.device_ids)) == (NIC, ["nic0"])
        assert [each.ID for each in devices.topology.nodes] == [node]
        assert str(Mask.from_ids(pod.containers[0].cpu_ids)) == cpus


@in_loop
async def test_a_rejection_names_the_device_and_so_do_its_advice_and_the_pod_itself(
    world: World,
) -> None:
    give(world, 1)
    async with running(world) as agent:
        await agent.controller.admit(load_pod(manifest(uid=OTHER_UID, cpu="8"), "x"))
        answer = await admit(agent, with_nic())
        assert answer.rejection is not None
        assert f"1 of {NIC}, which the kubelet gave on node 1, fits best on {{1}}" in (
            answer.rejection.message
        )
        rejected = await agent.controller.pod(UID)
        assert isinstance(rejected, FailedPodDocument)
        assert rejected.explanation is not None
        offered = {each.provider: each.hints for each in rejected.explanation.hints[0].providers}
        hints = offered[KUBELET_DEVICES][NIC]
        assert hints is not None
        assert [hint.nodes for hint in hints] == ["1", "0-1"]
        assert rejected.kubelet_devices == {"c0": {NIC: {"nic0": "1"}}}
        shown = f"  c0 has {NIC}: nic0 (node 1), given by the kubelet"
        assert shown in list(failed_lines(rejected))
        await agent.controller.remove(OTHER_UID)
        await admit(agent, with_nic())
        (pod,) = await asyncio.to_thread(agent.client.pods)
        (container,) = pod.containers
        assert (container.kubelet_devices, container.devices) == ({NIC: {"nic0": "1"}}, {})


@in_loop
async def test_a_pod_whose_devices_were_not_recorded_shows_those_that_are_listed(
    world: World,
) -> None:
    async with FakePodResources(kubelet_of(world)) as kubelet, running(world) as agent:
        await admit(agent, with_nic())
        kubelet.pods["shop", "web"] = {"c0": [container_devices(NIC, "nic7", node=0)]}
        devices = agent.controller.state.parts.kubelet_devices
        assert isinstance(devices, KubeletDevices)
        await devices.refresh()
        (pod,) = agent.controller.pods()
        assert pod.containers[0].kubelet_devices == {NIC: {"nic7": "0"}}


@in_loop
async def test_only_pods_of_the_kubelet_that_ask_for_devices_are_asked_about(
    world: World,
) -> None:
    give(world, 1)
    async with FakePodResources(kubelet_of(world)) as kubelet, running(world) as agent:
        await until(lambda: len(kubelet.calls) == 2)
        await agent.controller.admit(load_pod(with_nic(), "x"), API)
        await admit(agent, manifest(uid=OTHER_UID))
        assert kubelet.calls == ["List", "GetAllocatableResources"]
        assert str(cpus_of(agent)) == "1,9"


@in_loop
async def test_a_kubelet_that_hangs_delays_no_answer_and_is_a_condition(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GET_SECONDS", "LIST_SECONDS"):
        monkeypatch.setattr(f"agent.cluster.kubelet.pod_resources.{name}", 0.05)
    give(world, 1)
    kubelet = FakePodResources(kubelet_of(world))
    kubelet.answers = dict.fromkeys(("List", "Get", "GetAllocatableResources"), never)
    async with kubelet, running(world) as agent:
        await admit(agent, with_nic())
        (pod,) = await listed(world)
        assert list(pod.containers[0].cpu_ids) == [4, 12]
        state = agent.controller.state
        await until(
            lambda: bool(state.parts.kubelet_devices and state.parts.kubelet_devices.conditions)
        )
        (condition,) = (
            each
            for each in state.present_conditions()
            if each.type == ConditionType.DEVICES_OFFERED
        )
        assert condition.reason == "Kubelet"
        assert "DEADLINE_EXCEEDED" in condition.message


@in_loop
async def test_a_pod_whose_devices_the_kubelet_does_not_say_keeps_no_other_waiting(
    world: World,
) -> None:
    kubelet, asked, go_on = FakePodResources(kubelet_of(world)), asyncio.Event(), asyncio.Event()

    async def hang(_request: bytes) -> bytes:
        asked.set()
        await go_on.wait()
        return b""

    kubelet.answers = {"Get": hang}
    async with kubelet, running(world) as agent:
        waiting = asyncio.create_task(admit(agent, with_nic()))
        await asked.wait()
        assert (await admit(agent, manifest(uid=OTHER_UID))).admitted
        await agent.controller.reconcile()
        await agent.controller.remove(OTHER_UID)
        assert not waiting.done()
        go_on.set()
        assert (await waiting).admitted


@in_loop
async def test_the_map_has_the_kubelets_devices_where_podresources_are_not_served(
    world: World,
) -> None:
    unserved = replace(world.config.agent, pod_resources=PodResourcesConfig())
    world.config = replace(world.config, agent=unserved)
    give(world, 1)
    async with FakePodResources(kubelet_of(world)) as kubelet:
        kubelet.allocatable = [
            container_devices(NIC, "nic0", node=1),
            container_devices(NIC, "nic1", node=0),
        ]
        async with running(world) as service:
            await admit(service, with_nic())
            devices = service.controller.state.parts.kubelet_devices
            await until(lambda: devices is not None and bool(devices.listed.allocatable))
            document = await asyncio.to_thread(service.client.map)
    found = [(each.name, each.nodes, each.owner) for each in document.devices if each.kubelet]
    assert found == [
        ("nic0", "1", MapOwnerDocument(uid=UID, container="c0")),
        ("nic1", "0", None),
    ]


@in_loop
async def test_the_history_has_what_the_kubelet_had_given_to_admitted_and_rejected_pods(
    world: World,
) -> None:
    give(world, 1)
    async with running(world) as agent:
        admitted = await admit(agent, with_nic(cpu="6"))
        give(world, 1, OTHER_UID)
        rejected = await admit(agent, with_nic(OTHER_UID, cpu="4"))
        entries = (await asyncio.to_thread(agent.client.history, limit=2)).entries
    assert admitted.admitted
    assert rejected.rejection is not None
    given = {entry.uid: entry.kubelet_devices for entry in entries}
    devices = {"c0": {NIC: {"nic0": "1"}}}
    assert given == {UID: devices, OTHER_UID: devices}
    lines = [line for entry in entries for line in history_lines(HistoryDocument(entries=(entry,)))]
    assert lines.count(f"    c0 has {NIC}: nic0 (node 1), given by the kubelet") == 2
