"""The fake kubelet behaves as the real one was seen to behave."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from agent.cluster.kubelet.pods_api import SERVICE, SOCKET, V1ALPHA1, EventType
from agent.rpc import POD_RESOURCES_LISTER, V1, CallError, Client
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.mask import Mask
from tests.agent.server.support import in_loop
from tests.fakes.certificate import write_certificate
from tests.fakes.device_plugin import FakePlugin, device, encoded, failing
from tests.fakes.kubelet.cgroups import PodCgroups
from tests.fakes.kubelet.core_v1 import MESSAGES as CORE_V1
from tests.fakes.kubelet.endpoint import PodsEndpoint
from tests.fakes.kubelet.kubelet import FakeKubelet, Options
from tests.fakes.kubelet.memory_runtime import MemoryRuntime
from tests.fakes.kubelet.worker import Habits
from tests.fakes.systemd import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

UID: Final = "11111111-2222-4333-8444-555555555555"
POD_SLICE: Final = "kubepods.slice/kubepods-pod11111111_2222_4333_8444_555555555555.slice"
QUICK: Final = Options(poll=0.01, habits=Habits(retry=0.02, look=0.01, linger=0.02))


def container(name: str, cpu: str | None = None, **fields: object) -> dict[str, object]:
    made: dict[str, object] = {"name": name, "image": "i", **fields}
    if cpu:
        made["resources"] = {"limits": {"cpu": cpu, "memory": "64Mi"}}
    return made


def manifest(uid: str = UID, name: str = "mixed", **spec: object) -> dict[str, Any]:
    spec.setdefault("containers", [container("app", "2")])
    metadata = {"name": name, "namespace": "default", "uid": uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Node:
    """A kubelet with what it runs on; `start` makes another kubelet on the same node."""

    def __init__(self, where: Path, ends: frozenset[str] = frozenset()) -> None:
        self.directory, self.control = where / "kubelet", where / "control"
        self.kernel = EmulatedKernel(Mask.parse("0-7"), Mask.of(0, 1))
        self.systemd = FakeSystemd(self.kernel)
        self.runtime = MemoryRuntime(ends, self.systemd)
        self.kubelet: FakeKubelet

    def put(self, pod: dict[str, Any]) -> None:
        pods = self.control / "pods"
        pods.mkdir(parents=True, exist_ok=True)
        new = pods / ".new"
        new.write_text(json.dumps(pod))
        new.replace(pods / f"{pod['metadata']['name']}.json")

    def remove(self, name: str) -> None:
        (self.control / "pods" / f"{name}.json").unlink()

    def make(self, options: Options = QUICK) -> FakeKubelet:
        cgroups = PodCgroups(self.systemd, self.kernel, Mask.parse("0-7"))
        self.kubelet = FakeKubelet(self.directory, self.control, self.runtime, cgroups, options)
        return self.kubelet

    @asynccontextmanager
    async def running(self, options: Options = QUICK) -> AsyncIterator[FakeKubelet]:
        kubelet = self.kubelet if hasattr(self, "kubelet") else self.make(options)
        task = asyncio.create_task(kubelet.run())
        await until(lambda: "started" in [step["step"] for step in kubelet.timeline.steps])
        try:
            yield kubelet
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del self.kubelet

    def phase(self, uid: str = UID) -> str:
        pod = self.kubelet.pods.get(uid)
        return "gone" if pod is None else pod.phase


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, frozenset({"init1", "init2"}))


async def until(predicate: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not predicate():  # noqa: ASYNC110  # calls of a runtime set no event
            await asyncio.sleep(0.005)


class Api:
    """A client of the Pods API, which is not the agent's."""

    def __init__(self, directory: Path) -> None:
        self._client = Client(directory / SOCKET, SERVICE)

    async def list(self) -> list[Any]:
        messages = V1ALPHA1
        empty, listed = messages["ListPodsRequest"](), messages["ListPodsResponse"]
        answer = await self._client.call("ListPods", empty, listed, 10)
        return [CORE_V1["Pod"].FromString(raw) for raw in answer.pods]

    async def get(self, uid: str) -> Any:  # noqa: ANN401  # a message
        messages = V1ALPHA1
        asked, found = messages["GetPodRequest"](podUID=uid), messages["GetPodResponse"]
        answer = await self._client.call("GetPod", asked, found, 10)
        return CORE_V1["Pod"].FromString(answer.pod)

    async def watch(self) -> AsyncIterator[tuple[EventType, Any]]:
        messages = V1ALPHA1
        async for event in self._client.stream(
            "WatchPods", messages["WatchPodsRequest"](), messages["WatchPodsEvent"]
        ):
            yield EventType(event.type), CORE_V1["Pod"].FromString(event.pod)

    async def close(self) -> None:
        await self._client.close()


@asynccontextmanager
async def api_of(node: Node) -> AsyncIterator[Api]:
    api = Api(node.directory)
    try:
        yield api
    finally:
        await api.close()


@in_loop
async def test_a_manifest_that_is_removed_while_it_is_read_keeps_no_other_waiting(
    node: Node,
) -> None:
    node.put(manifest())
    (node.control / "pods" / "gone.json").symlink_to("removed")
    async with node.running():
        await until(lambda: node.phase() == "Running")


@in_loop
async def test_containers_start_in_the_kubelets_order(node: Node) -> None:
    sidecar = container("side", restartPolicy="Always")
    first = [container("init1"), sidecar, container("init2")]
    node.put(manifest(initContainers=first, containers=[container("app"), container("aux")]))
    async with node.running() as kubelet:
        await until(lambda: node.phase() == "Running")
        steps = kubelet.timeline.names("mixed")
    relevant = [each for each in steps if not each.startswith("StartContainer")]
    started = ["init1", "side", "init2", "app", "aux"]
    creations = [f"CreateContainer {name}" for name in started]
    assert relevant == ["listed", "admitted", "cgroup", "RunPodSandbox", *creations]


@in_loop
async def test_the_pods_slice_is_there_before_its_sandbox_and_has_no_cpuset(node: Node) -> None:
    node.put(manifest())
    async with node.running():
        await until(lambda: node.phase() == "Running")
        assert node.kernel.read(POD_SLICE, "cpu.max") == "200000 100000\n"
        assert node.kernel.read(POD_SLICE, "cpuset.cpus") == "\n"
        assert node.kernel.read("kubepods.slice", "cpuset.cpus") == "0-7\n"
        (sandbox,) = node.runtime.sandboxes.values()
        assert sandbox.config["linux"]["cgroup_parent"] == f"/{POD_SLICE}"


@in_loop
async def test_every_start_gives_kubepods_slice_all_cpus_again(node: Node) -> None:
    async with node.running():
        node.kernel.write("kubepods.slice", "cpuset.cpus", "1-7")
    async with node.running():
        assert node.kernel.read("kubepods.slice", "cpuset.cpus") == "0-7\n"


@in_loop
async def test_a_container_without_limits_looks_like_one_with_the_pods(node: Node) -> None:
    limits = {"cpu": "3", "memory": "200Mi"}
    containers = [container("app", "2"), container("aux")]
    node.put(manifest(containers=containers, resources={"limits": limits}))
    async with node.running():
        await until(lambda: node.phase() == "Running")
    found = node.runtime.of("aux").config["linux"]["resources"]
    memory = 200 << 20
    assert found == {
        "cpu_shares": 3072,
        "cpu_quota": 300_000,
        "cpu_period": 100_000,
        "memory_limit_in_bytes": memory,
        "oom_score_adj": -997,
    }


@in_loop
async def test_a_rejected_container_is_tried_again_in_the_same_sandbox(node: Node) -> None:
    node.put(manifest())
    node.runtime.errors["CreateContainer"] = "TopologyAffinityError: no room"
    async with node.running() as kubelet:
        tries = "CreateContainer app"
        await until(lambda: kubelet.timeline.names("mixed").count(tries) >= 2)
        pod = kubelet.pods.get(UID)
        assert pod is not None
        assert pod.statuses["app"].reason == "CreateContainerError"
        del node.runtime.errors["CreateContainer"]
        await until(lambda: node.phase() == "Running")
    assert len(node.runtime.sandboxes) == 1


@in_loop
async def test_a_crashed_container_comes_again_with_another_id(node: Node) -> None:
    node.put(manifest())
    async with node.running():
        await until(lambda: node.phase() == "Running")
        first = node.runtime.of("app").id
        node.runtime.end("app", exit_code=1)
        await until(lambda: node.runtime.of("app").id != first)
    annotations = node.runtime.of("app").config["annotations"]
    assert annotations["io.kubernetes.container.restartCount"] == "1"


@in_loop
async def test_a_resize_changes_slice_and_container_and_no_cpuset(node: Node) -> None:
    node.put(manifest())
    async with node.running():
        await until(lambda: node.phase() == "Running")
        node.put(manifest(containers=[container("app", "3")]))
        await until(lambda: node.runtime.of("app").updates)
        assert node.kernel.read(POD_SLICE, "cpu.max") == "300000 100000\n"
    (update,) = node.runtime.of("app").updates
    assert update["cpu_quota"] == 300_000
    assert not {"cpuset_cpus", "cpuset_mems"} & update.keys()


@in_loop
async def test_a_deleted_pod_leaves_its_sandbox_until_later(node: Node) -> None:
    node.put(manifest())
    async with node.running() as kubelet:
        await until(lambda: node.phase() == "Running")
        node.remove("mixed")
        await until(lambda: not node.runtime.sandboxes)
        steps = kubelet.timeline.names("mixed")
    ends = steps[steps.index("deleting") :]
    assert ends == [
        "deleting",
        "StopContainer app",
        "StopPodSandbox",
        "remove cgroup",
        "deleted",
        "RemoveContainer",
        "RemovePodSandbox",
    ]
    assert not node.kernel.exists(POD_SLICE)


@in_loop
async def test_a_restarted_kubelet_finds_its_pods_running(node: Node) -> None:
    node.put(manifest())
    async with node.running():
        await until(lambda: node.phase() == "Running")
    calls = len(node.runtime.calls)
    async with node.running():
        await until(lambda: node.phase() == "Running")
    assert len(node.runtime.calls) == calls


@in_loop
async def test_a_pod_deleted_while_no_kubelet_ran_is_ended_by_the_next(node: Node) -> None:
    node.put(manifest())
    async with node.running():
        await until(lambda: node.phase() == "Running")
    node.remove("mixed")
    async with node.running():
        await until(lambda: not node.runtime.sandboxes)
        assert not node.kernel.exists(POD_SLICE)


@in_loop
async def test_the_first_list_after_a_restart_is_complete_without_pods(node: Node) -> None:
    node.put(manifest())
    async with node.running():
        await until(lambda: node.phase() == "Running")
    node.make(Options(blind=3600, poll=0.01, habits=QUICK.habits))
    async with node.running() as kubelet, api_of(node) as api:
        events = api.watch()
        assert (await anext(events))[0] is EventType.INITIAL_SYNC_COMPLETE
        assert await api.list() == []
        kubelet.sources_ready.set()
        assert (await anext(events))[0] is EventType.ADDED


@in_loop
async def test_a_watch_sends_a_pods_life(node: Node) -> None:
    seen: list[tuple[EventType, str]] = []

    async def follow(api: Api) -> None:
        async for change, pod in api.watch():
            seen.append((change, pod.status.phase))

    async with node.running(), api_of(node) as api:
        following = asyncio.create_task(follow(api))
        await until(lambda: seen)
        node.put(manifest())
        await until(lambda: (EventType.MODIFIED, "Running") in seen)
        node.remove("mixed")
        await until(lambda: seen[-1][0] is EventType.DELETED)
        following.cancel()
    assert seen[:2] == [(EventType.INITIAL_SYNC_COMPLETE, ""), (EventType.ADDED, "Pending")]
    assert seen[-1] == (EventType.DELETED, "")


@in_loop
async def test_list_and_get_show_a_pod_as_it_was_asked_for(node: Node) -> None:
    node.put(manifest())
    async with node.running(), api_of(node) as api:
        await until(lambda: node.phase() == "Running")
        (listed,) = await api.list()
        assert listed == await api.get(UID)
        (amount,) = [
            each for each in listed.spec.containers[0].resources.limits if each.key == "cpu"
        ]
        assert amount.value.string == "2"
        with pytest.raises(CallError, match="NOT_FOUND: pod with UID nosuch not found"):
            await api.get("nosuch")


@in_loop
async def test_the_endpoint_lists_pods_to_bearers_of_the_token(node: Node, tmp_path: Path) -> None:
    node.put(manifest())
    kubelet = node.make()
    certificate = write_certificate(tmp_path / "kubelet.pem")
    kubelet.endpoint = PodsEndpoint(kubelet.pods, certificate, "secret")
    async with node.running():
        await until(lambda: node.phase() == "Running")
        status, body = await fetched(kubelet.endpoint.port, certificate, "secret")
        rejected, _ = await fetched(kubelet.endpoint.port, certificate, "other")
    (item,) = json.loads(body)["items"]
    assert (status, item["metadata"]["uid"], item["status"]["phase"]) == (200, UID, "Running")
    assert rejected == 401


async def fetched(port: int, certificate: Path, token: str) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=certificate)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    head = f"GET /pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.read()
    writer.close()
    first_line, _, _ = answer.partition(b"\r\n")
    return int(first_line.split()[1]), answer.partition(b"\r\n\r\n")[2]


def with_devices(count: int, uid: str = UID, name: str = "mixed") -> dict[str, Any]:
    limits = {"limits": {"example.com/gpu": str(count)}}
    parts = {"initContainers": [{"name": "init1", "image": "i", "resources": limits}]}
    return manifest(
        uid, name, **parts, containers=[{"name": "app", "image": "i", "resources": limits}]
    )


@asynccontextmanager
async def plugin_of(node: Node, *names: str) -> AsyncIterator[FakePlugin]:
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
async def test_an_init_containers_device_goes_to_the_app_again(node: Node) -> None:
    async with node.running() as kubelet, plugin_of(node, "a", "b") as plugin:
        node.put(with_devices(1))
        await until(lambda: node.phase() == "Running")
        allocations = [
            call.container_requests[0].devices_ids
            for name, call in plugin.calls
            if name == "Allocate"
        ]
        assert [list(each) for each in allocations] == [["a"], ["a"]]
        environment = node.runtime.of("app").config["envs"]
        assert {"key": "DEVICES", "value": "a"} in environment
        assert kubelet.devices.given(UID, "app") == {"example.com/gpu": {"a": (0,)}}
        client = Client(node.directory / "pod-resources/kubelet.sock", POD_RESOURCES_LISTER)
        asked, found = V1["ListPodResourcesRequest"](), V1["ListPodResourcesResponse"]
        listed = (await client.call("List", asked, found, 10)).pod_resources
        await client.close()
    ((app,),) = [pod.containers for pod in listed]
    assert (app.name, list(app.devices[0].device_ids), list(app.cpu_ids)) == ("app", ["a"], [])


@in_loop
async def test_an_error_of_allocate_fails_the_pod_with_the_plugins_words(node: Node) -> None:
    async with node.running() as kubelet, plugin_of(node, "a") as plugin:
        plugin.answers["Allocate"] = failing("INTERNAL", "TopologyAffinityError: no room")
        node.put(with_devices(1))
        await until(lambda: node.phase() == "Failed")
        pod = kubelet.pods.get(UID)
        assert pod is not None
        said = "rpc error: code = Internal desc = TopologyAffinityError: no room"
        assert pod.message == (
            f"Pod was rejected: Allocate failed due to {said}, which is unexpected"
        )
        assert (pod.reason, node.runtime.calls) == ("UnexpectedAdmissionError", [])


@in_loop
async def test_a_slow_allocate_holds_up_every_later_pod(node: Node) -> None:
    answered = asyncio.Event()

    async def slow(_request: bytes) -> bytes:
        await answered.wait()
        return encoded("AllocateResponse", container_responses=[{}])

    async with node.running(), plugin_of(node, "a") as plugin:
        plugin.answers["Allocate"] = slow
        node.put(with_devices(1))
        await until(lambda: "Allocate" in plugin.methods())
        node.put(manifest("other", "zz-other"))
        async with api_of(node) as api:
            assert [pod.metadata.name for pod in await api.list()] == ["mixed"]
        answered.set()
        await until(lambda: node.phase("other") == "Running")


@in_loop
async def test_devices_survive_a_restart_without_another_allocate(node: Node) -> None:
    async with node.running(), plugin_of(node, "a"):
        node.put(with_devices(1))
        await until(lambda: node.phase() == "Running")
    async with node.running() as kubelet:
        await until(lambda: node.phase() == "Running")
        assert kubelet.devices.given(UID, "app") == {"example.com/gpu": {"a": (0,)}}


@in_loop
async def test_a_plugin_that_comes_after_the_pods_loses_them(node: Node) -> None:
    async with node.running(), plugin_of(node, "a"):
        node.put(with_devices(1))
        await until(lambda: node.phase() == "Running")
    node.put(with_devices(1, "late", "late"))
    async with node.running() as kubelet:
        await until(lambda: node.phase("late") == "Failed")
        pod = kubelet.pods.get("late")
        assert pod is not None
        assert "no healthy devices present" in pod.message


@in_loop
async def test_an_unregistered_resource_is_not_the_device_managers(node: Node) -> None:
    async with node.running():
        node.put(with_devices(1))
        await until(lambda: node.phase() == "Running")


@in_loop
async def test_a_list_after_many_unread_events_ends_the_watch(node: Node) -> None:
    async with node.running() as kubelet, api_of(node) as api:
        events = api.watch()
        assert (await anext(events))[0] is EventType.INITIAL_SYNC_COMPLETE
        node.put(manifest())
        await until(lambda: node.phase() == "Running")
        pod = kubelet.pods.get(UID)
        assert pod is not None
        for _ in range(500):
            kubelet.pods.announce(pod)
        with pytest.raises(CallError, match="RESOURCE_EXHAUSTED: watch client channel closed"):
            async for _ in events:
                pass
