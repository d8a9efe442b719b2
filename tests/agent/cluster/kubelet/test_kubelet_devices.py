"""The devices of the kubelet's plugins: read, asked for, and not known without harm."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.cluster.kubelet import pod_resources as pod_resources_client
from agent.cluster.kubelet.devices import REFRESH_SECONDS, KubeletDevices
from agent.cluster.kubelet.pod_resources import SOCKET, PodResourcesClient
from agent.managers.device.kubelet import NOT_LISTED
from agent.pods.model import GivenDevice
from agent.rpc.calls import CallError
from agent.rpc.pod_resources import V1
from sysfs.mask import EMPTY, Mask
from tests.agent.pods.pods import app, pod, resources
from tests.agent.server.support import FakeClock, until
from tests.fakes.device_plugin import failing, never
from tests.fakes.kubelet.device_shares import write_device_checkpoint
from tests.fakes.kubelet.pod_resources import FakePodResources, container_devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.pods.model import Pod

NIC, GPU = "example.com/nic", "example.com/gpu"
NIC0 = GivenDevice(NIC, "nic0", Mask.of(0))
GPU1 = GivenDevice(GPU, "gpu1", Mask.of(1))


def asking(*resource: str) -> Pod:
    limits = resources(limits=" ".join(f"{name}=1" for name in resource))
    return replace(pod(app("main", limits)), name="web", namespace="shop")


async def in_thread(call: Callable[[], object]) -> object:
    return call()


def devices_in(directory: Path) -> KubeletDevices:
    return KubeletDevices(directory, in_thread)  # type: ignore[arg-type]  # of any result


def kubelet(directory: Path) -> FakePodResources:
    """Return a kubelet whose podresources list a pod with devices on two nodes."""
    made = FakePodResources(directory)
    made.pods["shop", "web"] = {
        "main": [container_devices(NIC, "nic0", node=0), container_devices(GPU, "gpu1", node=1)],
        "idle": [],
    }
    made.pods["shop", "plain"] = {"main": []}
    return made


async def test_the_file_says_what_a_pod_has_without_asking(tmp_path: Path) -> None:
    write_device_checkpoint(tmp_path, {"u-1": {"main": {NIC: {0: ["nic0"]}}}}, NIC)
    async with kubelet(tmp_path) as asked:
        devices = devices_in(tmp_path)
        assert await devices.of(asking(NIC)) == {"main": (NIC0,)}
        assert asked.calls == []
        assert devices.conditions == ()


async def test_without_a_readable_file_podresources_say_it(tmp_path: Path) -> None:
    write_device_checkpoint(tmp_path, {}).write_text("{}")
    async with kubelet(tmp_path) as asked:
        devices = devices_in(tmp_path)
        assert await devices.of(asking(NIC, GPU)) == {"main": (NIC0, GPU1)}
        assert asked.calls == ["Get"]
        assert devices.conditions == ()


async def test_devices_that_the_file_does_not_have_yet_are_asked_for(tmp_path: Path) -> None:
    write_device_checkpoint(tmp_path, {}, NIC, GPU)
    async with kubelet(tmp_path) as asked:
        assert await devices_in(tmp_path).of(asking(NIC, GPU)) == {"main": (NIC0, GPU1)}
        # What no plugin provides will never be given.
        asked.calls.clear()
        assert await devices_in(tmp_path).of(asking("example.com/licence")) == {}
        assert asked.calls == []


async def test_the_agents_own_resource_is_neither_asked_for_nor_returned(tmp_path: Path) -> None:
    own = "numawarden.dev/exclusive"
    write_device_checkpoint(tmp_path, {}, own)
    async with kubelet(tmp_path) as asked:
        devices = KubeletDevices(tmp_path, in_thread, own)  # type: ignore[arg-type]  # any result
        assert await devices.of(asking(own)) == {}
        given = {"main": {own: {-1: ["slot"]}, NIC: {0: ["nic0"]}}, "other": {own: {-1: ["two"]}}}
        write_device_checkpoint(tmp_path, {"u-1": given}, own)
        assert await devices.of(asking(own, NIC)) == {"main": (NIC0,)}
        assert asked.calls == []


async def test_where_nothing_answers_the_condition_says_why_until_then(tmp_path: Path) -> None:
    write_device_checkpoint(tmp_path, {}).write_text("{}")
    devices = devices_in(tmp_path)
    assert await devices.of(asking(NIC)) == {}
    (condition,) = devices.conditions
    assert "may be far from them" in condition
    assert "missing required field `Data`" in condition
    assert "UNAVAILABLE" in condition
    write_device_checkpoint(tmp_path, {"u-1": {"main": {NIC: {0: ["nic0"]}}}}, NIC)
    assert await devices.of(asking(NIC)) == {"main": (NIC0,)}
    assert devices.conditions == ()


async def test_what_the_file_has_counts_where_podresources_do_not_answer(tmp_path: Path) -> None:
    write_device_checkpoint(tmp_path, {"u-1": {"main": {NIC: {0: ["nic0"]}}}}, NIC, GPU)
    assert await devices_in(tmp_path).of(asking(NIC, GPU)) == {"main": (NIC0,)}


async def test_a_kubelet_that_hangs_holds_up_an_admission_for_its_deadline_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_resources_client, "GET_SECONDS", 0.5)
    write_device_checkpoint(tmp_path, {}).write_text("{}")
    async with kubelet(tmp_path) as asked:
        asked.answers["Get"] = never
        devices = devices_in(tmp_path)
        assert await devices.of(asking(NIC)) == {}
        assert "DEADLINE_EXCEEDED" in devices.conditions[0]
        assert asked.calls in ([], ["Get"])  # beside much load the call has not arrived yet


def client(directory: Path) -> PodResourcesClient:
    return PodResourcesClient(directory / SOCKET)


@pytest.mark.parametrize("code", ["UNIMPLEMENTED", "UNKNOWN"])
async def test_a_kubelet_without_get_is_asked_for_the_list(tmp_path: Path, code: str) -> None:
    async with kubelet(tmp_path) as asked:
        asked.answers["Get"] = failing(code, "PodResources API Get method disabled")
        assert await client(tmp_path).of("shop", "web") == {"main": (NIC0, GPU1)}
        assert await client(tmp_path).of("shop", "nosuch") == {}
        assert asked.calls == ["Get", "List"] * 2


async def test_devices_of_several_nodes_and_of_none_are_one_each(tmp_path: Path) -> None:
    async with kubelet(tmp_path) as asked:
        asked.pods["shop", "web"]["main"] = [
            container_devices(NIC, "nic0", node=0),
            container_devices(NIC, "nic0", node=1),
            container_devices(GPU, "gpu0"),
            container_devices(GPU, "gpu1", node=-5),
            container_devices(GPU, "gpu2", node=1 << 40),
        ]
        assert await client(tmp_path).of("shop", "web") == {
            "main": (
                GivenDevice(NIC, "nic0", Mask.of(0, 1)),
                GivenDevice(GPU, "gpu0", EMPTY),
                GivenDevice(GPU, "gpu1", EMPTY),
                GivenDevice(GPU, "gpu2", EMPTY),
            )
        }


async def test_an_answer_with_more_devices_than_any_host_has_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_resources_client, "MOST_DEVICES", 5)
    async with kubelet(tmp_path) as asked:
        asked.pods["shop", "web"]["main"] = [container_devices(NIC, *"abcdef", node=0)]
        with pytest.raises(CallError, match="more than 5 devices"):
            await client(tmp_path).of("shop", "web")
        with pytest.raises(CallError, match="more than 5 devices"):
            await client(tmp_path).all()
        asked.pods["shop", "web"]["main"] = [container_devices(NIC, *"abc", node=0)]
        asked.pods["shop", "other"] = {"main": [container_devices(NIC, *"def", node=0)]}
        with pytest.raises(CallError, match="more than 5 devices"):
            await client(tmp_path).all()


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"\x0a\x05ab"], ids=["noise", "cut off"])
async def test_an_answer_that_cannot_be_decoded_is_an_error(tmp_path: Path, raw: bytes) -> None:
    async def garbage(_request: object) -> bytes:
        return raw

    async with kubelet(tmp_path) as asked:
        asked.answers = dict.fromkeys(("List", "Get", "GetAllocatableResources"), garbage)
        with pytest.raises(CallError, match="INTERNAL: the response cannot be read"):
            await client(tmp_path).of("shop", "web")
        with pytest.raises(CallError, match="INTERNAL: the response cannot be read"):
            await client(tmp_path).all()


async def test_claims_are_kept_as_the_kubelet_says_them(tmp_path: Path) -> None:
    async def answer(_request: object) -> bytes:
        main = {"name": "main", "dynamic_resources": [b"\x12\x03gpu"]}
        pods = [{"namespace": "shop", "name": "web", "containers": [main, {"name": "idle"}]}]
        data: bytes = V1["ListPodResourcesResponse"](pod_resources=pods).SerializeToString()
        return data

    async with kubelet(tmp_path) as asked:
        asked.answers["List"] = answer
        listing = await client(tmp_path).all()
    assert listing.claims == {("shop", "web"): {"main": (b"\x12\x03gpu",)}}
    assert listing.pods == {}


async def test_the_list_follows_the_kubelet_and_changes_with_it_alone(tmp_path: Path) -> None:
    async with kubelet(tmp_path) as asked:
        asked.allocatable = [container_devices(NIC, "nic0", node=0)]
        devices, clock = devices_in(tmp_path), FakeClock()
        assert devices.listed is NOT_LISTED
        following = asyncio.create_task(devices.follow(clock))
        await until(lambda: devices.listed is not NOT_LISTED)
        first = devices.listed
        # Pods without devices are left out.
        assert first.pods == {("shop", "web"): {"main": (NIC0, GPU1)}}
        assert first.allocatable == (NIC0,)
        await devices.refresh()
        assert devices.listed is first
        asked.pods["shop", "web"]["main"].pop()
        await until(lambda: bool(clock._sleepers))
        clock.advance(REFRESH_SECONDS)
        await until(lambda: devices.listed is not first)
        assert devices.listed.pods == {("shop", "web"): {"main": (NIC0,)}}
        following.cancel()
        await asyncio.wait((following,))


async def test_a_kubelet_that_is_down_is_a_condition_and_its_list_stays(tmp_path: Path) -> None:
    devices = devices_in(tmp_path)
    async with kubelet(tmp_path):
        await devices.refresh()
    last = devices.listed
    await devices.refresh()
    assert devices.listed is last
    (condition,) = devices.conditions
    assert "the map, podresources and the node topology may lack devices" in condition
    assert "systemctl status kubelet" in condition
    async with kubelet(tmp_path):
        await devices.refresh()
    assert devices.conditions == ()
