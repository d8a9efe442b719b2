"""The fake kubelet behaves as the real one was seen to behave, where no test of an agent needs it.

What the agent beside it needs is in `tests/agent/cluster/test_cluster.py`, which has the node.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.cluster.kubelet.pod_resources import SOCKET, PodResourcesClient
from agent.cluster.kubelet.pods import PodsUnavailableError
from agent.cluster.kubelet.pods_api import EventType, PodsApi
from agent.pods.model import GivenDevice
from sysfs.mask import Mask
from tests.agent.cluster.test_cluster import QUICK, Cluster, container, pod, put, until
from tests.agent.server.support import in_loop
from tests.fakes.device_plugin import FakePlugin, device, encoded
from tests.fakes.kubelet.cgroups import parent_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.cluster.kubelet.pods_api import PodEvent

LONG = 60.0
GPU = "example.com/gpu"
ONE_GPU = {"limits": {GPU: "1"}}


@pytest.fixture
def node(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.runtime.ends = frozenset({"init1", "init2"})
    return made


@in_loop
async def test_a_pods_life_in_the_kubelets_order(node: Cluster) -> None:
    first = [container("init1"), container("side", restartPolicy="Always"), container("init2")]
    mixed = pod("mix", container("app", 2), container("aux"), cpus=3, initContainers=first)
    kernel, runtime = node.world.kernel, node.runtime
    cgroup = parent_of(mixed["metadata"]["uid"], mixed["spec"]).lstrip("/")
    async with node.with_kubelet():
        await put(node, mixed)
        # No slice below the one of all pods has a cpuset; a container without limits has the pod's.
        assert kernel.read(cgroup, "cpu.max") == "300000 100000\n"
        assert kernel.read(cgroup, "cpuset.cpus") == "\n"
        assert runtime.of("aux").config["linux"]["resources"] == {
            "cpu_shares": 3072,
            "cpu_quota": 300_000,
            "cpu_period": 100_000,
            "memory_limit_in_bytes": 192 << 20,
            "oom_score_adj": -997,
        }
        kernel.write("kubepods.slice", "cpuset.cpus", "1-7")
    async with node.with_kubelet():
        await until(lambda: node.phase(mixed["metadata"]["uid"]) == "Running")
        assert kernel.read("kubepods.slice", "cpuset.cpus") == "0-15\n"
        node.remove("mix")
        await until(lambda: not runtime.sandboxes)
        steps = node.kubelet.timeline.names("mix")
    assert [name for name, _ in runtime.calls][:11] == [
        "RunPodSandbox",
        *["CreateContainer", "StartContainer"] * 5,
    ]
    created = [fields["config"] for name, fields in runtime.calls if name == "CreateContainer"]
    names = [config["metadata"]["name"] for config in created]
    assert names == ["init1", "side", "init2", "app", "aux"]
    ends = [each for each in steps if not each.startswith("StopContainer")]
    assert ends[ends.index("deleting") :] == [
        *("deleting", "StopPodSandbox", "remove cgroup", "deleted"),
        *["RemoveContainer"] * 5,
        "RemovePodSandbox",
    ]
    assert not kernel.exists(cgroup)


@in_loop
async def test_a_pod_deleted_while_no_kubelet_ran_is_ended_by_the_next(node: Cluster) -> None:
    manifest = pod("one", container("app", 2))
    async with node.with_kubelet():
        uid = await put(node, manifest)
    node.remove("one")
    async with node.with_kubelet():
        await until(lambda: not node.runtime.sandboxes)
        assert not node.world.kernel.exists(parent_of(uid, manifest["spec"]).lstrip("/"))


@in_loop
async def test_the_first_list_after_a_restart_is_complete_without_pods(node: Cluster) -> None:
    async with node.with_kubelet():
        await put(node, pod("one", container("app")))
    async with node.with_kubelet(replace(QUICK, blind=3600)), watched(node) as (api, events):
        assert (await anext(events)).type is EventType.INITIAL_SYNC_COMPLETE
        assert (await api.pods(LONG)).pods == ()
        node.kubelet.sources_ready.set()
        assert (await anext(events)).type is EventType.ADDED


@in_loop
async def test_a_list_after_many_unread_events_ends_the_watch(node: Cluster) -> None:
    async with node.with_kubelet(), watched(node) as (_, events):
        assert (await anext(events)).type is EventType.INITIAL_SYNC_COMPLETE
        known = node.kubelet.pods.get(await put(node, pod("one", container("app"))))
        assert known is not None
        for _ in range(500):
            node.kubelet.pods.announce(known)
        with pytest.raises(PodsUnavailableError, match="watch client channel closed"):
            async for _ in events:
                pass


@asynccontextmanager
async def watched(node: Cluster) -> AsyncIterator[tuple[PodsApi, AsyncIterator[PodEvent]]]:
    api = PodsApi(node.directory)
    await until(api.socket.exists)
    async with aclosing(api.watch()) as events:
        yield api, events
    await api.close()


@asynccontextmanager
async def plugin_of(node: Cluster, *names: str) -> AsyncIterator[FakePlugin]:
    await until(node.kubelet.manager.socket.exists)
    plugin = FakePlugin(node.directory / "device-plugins")
    plugin.send(*(device(name, number % 2) for number, name in enumerate(names)))
    await plugin.start()
    await plugin.register()
    await node.kubelet.manager.until_listed(plugin.resource)
    try:
        yield plugin
    finally:
        await plugin.stop()


@in_loop
async def test_an_init_containers_device_goes_to_the_app_and_survives(node: Cluster) -> None:
    first = [container("init1", resources=ONE_GPU)]
    async with node.with_kubelet(), plugin_of(node, "a", "b") as plugin:
        app = container("app", resources=ONE_GPU)
        uid = await put(node, pod("one", app, initContainers=first))
        asked = [call.container_requests[0] for name, call in plugin.calls if name == "Allocate"]
        assert [list(each.devices_ids) for each in asked] == [["a"], ["a"]]
        assert {"key": "DEVICES", "value": "a"} in node.runtime.of("app").config["envs"]
        given = {"app": (GivenDevice(GPU, "a", Mask.of(0)),)}
        assert await PodResourcesClient(node.directory / SOCKET).of("default", "one") == given
    # A plugin that comes after the pods loses those that are new.
    node.put(pod("late", container("app", resources=ONE_GPU)))
    async with node.with_kubelet():
        await until(lambda: [each.phase for each in node.kubelet.pods] == ["Failed", "Running"])
        late = next(iter(node.kubelet.pods))
        assert "no healthy devices present" in late.message
        assert node.kubelet.devices.given(uid, "app") == {GPU: {"a": (0,)}}


@in_loop
async def test_a_slow_allocate_holds_up_every_later_pod(node: Cluster) -> None:
    answered = asyncio.Event()

    async def slow(_request: bytes) -> bytes:
        await answered.wait()
        return encoded("AllocateResponse", container_responses=[{}])

    async with node.with_kubelet(), plugin_of(node, "a") as plugin:
        plugin.answers["Allocate"] = slow
        node.put(pod("first", container("app", resources=ONE_GPU)))
        await until(lambda: "Allocate" in plugin.methods())
        uid = node.put(pod("other", container("app")))
        await asyncio.sleep(5 * QUICK.poll)
        assert [each.name for each in node.kubelet.pods] == ["first"]
        answered.set()
        await until(lambda: node.phase(uid) == "Running")
