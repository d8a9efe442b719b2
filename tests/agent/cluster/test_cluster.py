"""A whole agent beside a kubelet and a container runtime: what each pod ends up with.

The kubelet and the runtime are fakes that do as the real ones were seen to (`tests/fakes/kubelet`),
the kernel is the emulated one, and all sockets are real.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from msgspec.structs import replace

from agent.cli.main import run_command
from agent.clock import SystemClock
from agent.config.cluster import OnReject
from agent.config.model import CgroupDriver
from agent.managers.policy import TopologyManagerScope
from agent.server import metrics as names
from sysfs.mask import EMPTY, Mask
from tests.agent.server.support import make_world, running
from tests.fakes.kubelet.cgroups import PodCgroups, parent_of
from tests.fakes.kubelet.kubelet import FakeKubelet, Options
from tests.fakes.kubelet.memory_runtime import REQUEST_SECONDS, MemoryRuntime
from tests.fakes.kubelet.worker import Habits
from tests.fakes.locked import locked
from tests.fakes.systemd import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.agent.server.support import FakeClock, Running

QUICK: Final = Options(poll=0.02, habits=Habits(retry=0.1, look=0.02, linger=0.02))
LINGERING: Final = Options(poll=0.02, habits=Habits(retry=0.1, look=0.02, linger=1000.0))
ALL: Final = Mask.parse("0-15")
SECONDS: Final = 40.0


def amounts(cpus: int) -> dict[str, Any]:
    limits = {"cpu": str(cpus), "memory": f"{64 * cpus}Mi"}
    return {"limits": limits, "requests": limits}


def container(name: str, cpus: int = 0, **fields: object) -> dict[str, Any]:
    return {"name": name, "image": "i", **fields, **({"resources": amounts(cpus)} if cpus else {})}


def pod(name: str, *containers: dict[str, Any], cpus: int = 0, **spec: object) -> dict[str, Any]:
    """Return a pod, whose uid follows from its name; with `cpus` it has a budget."""
    uid = f"00000000-0000-4000-8000-{name.encode().hex():0>12}"
    parts = {"containers": list(containers), **spec}
    budget = {"resources": amounts(cpus)} if cpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {**parts, **budget},
    }


#: An init container, a sidecar and an app with CPUs of their own, and one that shares the rest.
MIXED: Final = pod(
    "mix",
    container("app", 2),
    container("aux"),
    cpus=4,
    initContainers=[container("init", 1), container("side", 1, restartPolicy="Always")],
)


class Cluster:
    """A node: what runs on it can be started and stopped one by one."""

    def __init__(self, where: Path) -> None:
        self.world = make_world(where)
        self.world.clock = cast("FakeClock", SystemClock())
        lock = threading.RLock()
        self.world.kernel = locked(self.world.kernel, lock)
        self.systemd = self.world.systemd = locked(FakeSystemd(self.world.kernel), lock)
        beside = replace(
            self.world.config.agent.kubelet,
            enabled=True,
            directory=where / "kubelet",
            nri_socket=where / "nri.sock",
        )
        settings = replace(self.world.config.agent, kubelet=beside)
        self.world.config = replace(
            self.world.config,
            agent=settings,
            topology_manager_scope=TopologyManagerScope.POD,
            cgroup_driver=CgroupDriver.SYSTEMD,
        )
        self.runtime = MemoryRuntime(
            where / "nri.sock", self.systemd, self.world.runtimes, frozenset({"init"})
        )
        self.control, self.directory = where / "control", where / "kubelet"
        self.kubelet = self._made()
        self.agent: Running

    def _made(self, options: Options = QUICK) -> FakeKubelet:
        return FakeKubelet(self.directory, self.control, self.runtime, self.cgroups(), options)

    def cgroups(self) -> PodCgroups:
        return PodCgroups(self.systemd, self.world.kernel, ALL)

    def put(self, manifest: dict[str, Any]) -> str:
        pods = self.control / "pods"
        pods.mkdir(parents=True, exist_ok=True)
        metadata = manifest["metadata"]
        new = pods / ".new"
        new.write_text(json.dumps(manifest))
        new.replace(pods / f"{metadata['name']}.json")
        uid: str = metadata["uid"]
        return uid

    def remove(self, name: str) -> None:
        (self.control / "pods" / f"{name}.json").unlink()

    @asynccontextmanager
    async def with_kubelet(self, options: Options = QUICK) -> AsyncIterator[None]:
        self.kubelet = self._made(options)
        task = asyncio.create_task(self.kubelet.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def with_runtime(self) -> AsyncIterator[None]:
        await self.runtime.start()
        try:
            yield
        finally:
            await self.runtime.stop()

    @asynccontextmanager
    async def with_agent(self) -> AsyncIterator[None]:
        async with running(self.world) as self.agent:
            await until(self.is_connected)
            yield

    def is_connected(self) -> bool:
        plugins = self.runtime.nri.plugins
        repaired = bool(plugins) and self.runtime.repaired == len(plugins)
        return repaired and not plugins[-1].closed.is_set()

    def phase(self, uid: str) -> str:
        found = self.kubelet.pods.get(uid)
        return found.phase if found else "gone"

    def cpus(self, name: str) -> Mask:
        """Return the CPUs of a container's cgroup, none while there is no such cgroup."""
        cgroup = self.runtime.cgroup_of(name)
        there = self.world.kernel.exists(cgroup)
        return Mask.parse(self.world.cpus_of(cgroup)) if there else EMPTY

    def pool(self) -> Mask:
        return self.agent.controller.state.shared_cpus

    def admitted(self) -> set[str]:
        return set(self.agent.controller.state.ledger.allocations)

    def quota(self, cgroup: str) -> str:
        return self.world.kernel.read(cgroup, "cpu.max").split()[0]


async def put(cluster: Cluster, manifest: dict[str, Any]) -> str:
    """Put a pod and wait until it runs; return its uid."""
    uid = cluster.put(manifest)
    await until(lambda: cluster.phase(uid) == "Running")
    return uid


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110  # several processes' worth of sockets set no event
            await asyncio.sleep(0.005)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@asynccontextmanager
async def whole(cluster: Cluster) -> AsyncIterator[None]:
    async with cluster.with_runtime(), cluster.with_agent(), cluster.with_kubelet():
        yield


def check_mixed(cluster: Cluster) -> None:
    app, side, aux = (cluster.cpus(name) for name in ("app", "side", "aux"))
    assert (len(app), len(side), len(aux)) == (2, 1, 1)
    assert not app & side
    assert not (app | side) & aux
    uid = MIXED["metadata"]["uid"]
    cgroup = parent_of(uid, MIXED["spec"]).lstrip("/")
    assert Mask.parse(cluster.world.cpus_of(cgroup)) == app | side | aux
    assert cluster.quota(cgroup) == "max"
    assert cluster.quota(cluster.runtime.cgroup_of("app")) == "max"
    assert not cluster.pool() & (app | side | aux)


async def test_a_mixed_pod_gets_what_its_manifest_asks_for_until_its_end(cluster: Cluster) -> None:
    async with whole(cluster):
        before = cluster.pool()
        uid = await put(cluster, MIXED)
        check_mixed(cluster)
        variables = cluster.runtime.of("app").environment
        assert str(cluster.cpus("app")) in variables.values()
        cluster.remove("mix")
        await until(lambda: uid not in cluster.admitted())
        await until(lambda: cluster.pool() == before)


async def test_the_status_shows_the_runtime_and_since_when_it_is_connected_or_not(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async def shown() -> str:
        socket = cluster.world.socket
        await asyncio.to_thread(run_command, ["status", "--socket", str(socket)])
        [line] = [each for each in capsys.readouterr().out.splitlines() if "  runtime  " in each]
        return line

    async with cluster.with_runtime(), cluster.with_agent():
        runtime = (await asyncio.to_thread(cluster.agent.client.status)).runtime
        assert runtime is not None
        assert (runtime.connected, runtime.connections, runtime.error) == (True, 1, "")
        line = await shown()
        assert f"{runtime.name} {runtime.version}, connected over NRI" in line
        assert runtime.nri_version in line
        await cluster.runtime.stop()
        session = cluster.agent.controller.state.parts.runtime
        await until(lambda: session is not None and not session().connected)
        assert "  runtime    not connected over NRI since " in await shown()


async def test_a_hundred_and_ten_pods_at_once_all_run_on_the_right_cpus(cluster: Cluster) -> None:
    async with whole(cluster):
        own = [f"own{number}" for number in range(10)]
        shared = [f"shared{number}" for number in range(100)]
        for name in own:
            cluster.put(pod(name, container(name, 1)))
        for name in shared:
            cluster.put(pod(name, container(name)))
        await until(lambda: len(cluster.kubelet.pods) == 110)
        await until(lambda: all(each.phase == "Running" for each in cluster.kubelet.pods))
        # A creation that the agent had no time to answer is repaired by the next comparison; one
        # that it had no time to decide on is tried again.
        await until(lambda: {len(cluster.cpus(name)) for name in own} == {1})
        sets = [cluster.cpus(name) for name in own]
        assert all(not one & other for one, other in itertools.combinations(sets, 2))
        assert [name for name in shared if cluster.cpus(name) - cluster.pool()] == []
        errors = [step["error"] for step in cluster.kubelet.timeline.steps if "error" in step]
        assert [each for each in errors if "not decided yet" not in each] == []


async def test_a_container_that_the_agent_was_late_for_is_repaired(cluster: Cluster) -> None:
    async with whole(cluster):
        cluster.runtime.seconds = 0  # no answer comes in time, and the plugin is disconnected
        await put(cluster, MIXED)
        cluster.runtime.seconds = REQUEST_SECONDS
        await until(cluster.is_connected)
        assert len(cluster.runtime.nri.plugins) > 1
        await until(lambda: [len(cluster.cpus(name)) for name in ("app", "side")] == [2, 1])
        check_mixed(cluster)


def opting_in(name: str, cpus: int) -> dict[str, Any]:
    """Return a pod whose rejection its kubelet is to report."""
    asked = amounts(cpus)
    limits = {**asked["limits"], "numawarden.dev/exclusive": "1"}
    resources = {"limits": limits, "requests": limits}
    return pod(name, container(name, resources=resources))


# Shows in differences.md: ephemeral-quota
@pytest.mark.parametrize(
    ("manifest", "quota"), [(pod("own", container("app", 2)), "max"), (MIXED, "400000")]
)
async def test_an_ephemeral_container_runs_in_the_nodes_pool_within_the_quota_of_its_pod(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], manifest: dict[str, Any], quota: str
) -> None:
    """KEP-5526: it has no part in the pod's budget, whose shared pool a pinned pod has not."""
    # It is complete with the next comparison, which comes in as long as a test may be quiet.
    cluster.world.config = replace(cluster.world.config, cpu_manager_reconcile_period=0.5)
    async with whole(cluster):
        await put(cluster, manifest)
        own = cluster.cpus("app")
        debugged = {**manifest["spec"], "ephemeralContainers": [container("dbg")]}
        cluster.put({**manifest, "spec": debugged})
        await until(lambda: "dbg" in {each.name for each in cluster.runtime.containers.values()})
        await until(lambda: cluster.cpus("dbg") == cluster.pool())
        assert not cluster.cpus("dbg") & own
        assert cluster.cpus("app") == own
        assert cluster.quota(cluster.runtime.cgroup_of("dbg")) == quota
        assert "is an ephemeral container" in await printed(cluster, capsys, "check", "--cgroups")
        assert drift(cluster) == 0


def drift(cluster: Cluster) -> float:
    """Return how many settings were found that another process had changed."""
    counters = cluster.agent.controller.metrics.counters
    assert not [each.line() for each in cluster.agent.controller.state.observed.drift]
    return sum(counters.value(names.DRIFT_FOUND, cause) for cause in names.CAUSES)


async def test_what_others_do_in_the_life_of_pods_is_not_drift(cluster: Cluster) -> None:
    async with cluster.with_runtime(), cluster.with_kubelet():
        async with cluster.with_agent():
            mixed, uid = cluster.put(MIXED), cluster.put(pod("own", container("own", 2)))
            await until(lambda: {cluster.phase(each) for each in (mixed, uid)} == {"Running"})
            cgroup = parent_of(uid, pod("own", container("own", 2))["spec"]).lstrip("/")
            first = cluster.cpus("own")
            for cpus in (3, 2):
                cluster.put(pod("own", container("own", cpus)))
                await until(lambda: len(cluster.cpus("own")) == cpus)  # noqa: B023  # awaited here
                await until(lambda: cluster.quota(cgroup) == "max")
            assert cluster.cpus("own") == first
            cluster.runtime.end("own", 1)
            await until(lambda: cluster.runtime.of("own").config["metadata"]["attempt"] == 1)
            await until(lambda: len(cluster.cpus("own")) == 2)
            await cluster.agent.controller.reconcile()
            assert drift(cluster) == 0
        cluster.runtime.end("own", 1)
        await until(lambda: cluster.runtime.of("own").config["metadata"]["attempt"] == 2)
        await until(lambda: cluster.world.kernel.exists(cluster.runtime.cgroup_of("own")))
        async with cluster.with_agent():
            await until(lambda: len(cluster.cpus("own")) == 2)
            assert drift(cluster) == 0


async def test_a_resize_of_the_kubelet_is_the_agents_and_outlives_its_restart(
    cluster: Cluster,
) -> None:
    def said() -> tuple[int, tuple[str, ...], list[str]]:
        source = cluster.agent.controller.state.observed.sources.by_name["kubelet"]
        states = [each.state for each in source.entries.values()]
        return len(cluster.cpus("own")), source.conditions, states

    async with cluster.with_runtime(), cluster.with_kubelet():
        async with cluster.with_agent():
            await put(cluster, pod("own", container("own", 2)))
            first = cluster.cpus("own")
            cluster.put(pod("own", container("own", 4)))
            await until(lambda: said() == (4, (), ["admitted"]))
            grown = cluster.cpus("own")
            assert first < grown
            assert not cluster.pool() & grown
        async with cluster.with_agent():
            await until(lambda: said() == (4, (), ["admitted"]))
            assert cluster.cpus("own") == grown
            assert drift(cluster) == 0
            cluster.put(pod("own", container("own", 2)))
            await until(lambda: said() == (2, (), ["admitted"]))
            assert cluster.cpus("own") == first


async def printed(cluster: Cluster, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    socket = str(cluster.world.socket)
    await asyncio.to_thread(run_command, [*command, "--socket", socket])
    return capsys.readouterr().out


def sharing(cluster: Cluster) -> None:
    """Let rejected pods run in the shared pool."""
    agent = cluster.world.config.agent
    beside = replace(agent.kubelet, on_reject=OnReject.SHARE)
    cluster.world.config = replace(cluster.world.config, agent=replace(agent, kubelet=beside))


async def ended_meanwhile(cluster: Cluster) -> str:
    """Admit a pod, and end it when the agent has stopped; return its cgroup, which is gone."""
    manifest = pod("first", container("one", 12))
    async with cluster.with_agent():
        uid = await put(cluster, manifest)
    cluster.remove("first")
    cgroup = parent_of(uid, manifest["spec"]).lstrip("/")
    await until(lambda: not cluster.world.kernel.exists(cgroup))
    return cgroup


async def test_a_pod_that_ended_meanwhile_keeps_nothing_from_others(cluster: Cluster) -> None:
    """Its sandbox is recorded still; the kubelet does not list it, and its cgroup is gone."""
    sharing(cluster)
    async with cluster.with_runtime(), cluster.with_kubelet(LINGERING):
        await ended_meanwhile(cluster)
        assert len(cluster.runtime.sandboxes) == 1
        uid = await put(cluster, pod("second", container("two", 8)))
        async with cluster.with_agent():
            third = await put(cluster, pod("third", container("three", 2)))
            await until(lambda: cluster.admitted() == {uid, third})
            await until(lambda: [len(cluster.cpus(name)) for name in ("two", "three")] == [8, 2])
            assert not cluster.agent.controller.state.durable.shared


async def test_a_pod_that_ended_is_known_before_the_watch_has_begun(cluster: Cluster) -> None:
    """The watch may take seconds to begin, in which the kubelet answers for a new pod."""
    sharing(cluster)
    async with cluster.with_runtime(), cluster.with_kubelet(LINGERING):
        cgroup = await ended_meanwhile(cluster)
        cluster.world.kernel.mkdir(cgroup)  # systemd has not removed it yet
        cluster.kubelet.api.synced = False
        async with cluster.with_agent():
            uid = await put(cluster, pod("second", container("two", 8)))
            await until(lambda: cluster.admitted() == {uid})
            assert len(cluster.cpus("two")) == 8
            assert not cluster.agent.controller.state.durable.shared


async def test_a_pod_that_runs_shared_gets_its_cpus_when_its_container_starts_again(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    sharing(cluster)
    async with whole(cluster):
        await put(cluster, pod("first", container("one", 12)))
        uid = await put(cluster, pod("second", container("two", 8), container("side", 1)))
        await until(lambda: cluster.cpus("two") <= cluster.pool())
        cluster.remove("first")
        lines = cluster.agent.controller.state.condition_lines
        await until(lambda: any("there is room now" in line for line in lines()))
        assert cluster.cpus("two") <= cluster.pool()
        table = ["list", "-o", "table"]
        for command in (["list"], table, ["show", "second"], ["status"], ["history"]):
            assert "default/second" in await printed(cluster, capsys, *command)
        *_, row = (await printed(cluster, capsys, *table)).splitlines()
        assert [row.split()[each] for each in (0, 1, -1)] == [
            "default/second",
            "shared",
            "RunsShared",
        ]
        assert "without CPUs" in await printed(cluster, capsys, "history", "second")
        cluster.runtime.end("two", 1)
        await until(lambda: uid in cluster.admitted())
        await until(lambda: [len(cluster.cpus(name)) for name in ("two", "side")] == [8, 1])
        assert not cluster.cpus("side") & cluster.cpus("two")
        assert not any("shared" in line for line in lines())


async def test_an_agent_that_stops_amid_decisions_leaves_none_behind(cluster: Cluster) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with cluster.with_runtime(), cluster.with_kubelet():
        async with cluster.with_agent():
            for number in range(30):
                cluster.put(pod(f"p{number}", container(f"c{number}")))
            await until(lambda: len(cluster.runtime.events) >= 30)
        left = [task for task in asyncio.all_tasks() if "RuntimeEvents" in repr(task.get_coro())]
        assert left == []
    gc.collect()
    assert faults == []


@pytest.mark.parametrize("order", list(itertools.permutations(("agent", "kubelet", "runtime"))))
async def test_restarts_in_every_order_keep_cpus(cluster: Cluster, order: tuple[str, ...]) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "runtime": cluster.with_runtime,
        "agent": cluster.with_agent,
        "kubelet": cluster.with_kubelet,
    }
    async with AsyncExitStack() as all_of_them:
        running_now: dict[str, AsyncExitStack] = {}

        async def start(name: str) -> None:
            stack = running_now[name] = AsyncExitStack()
            await stack.enter_async_context(makers[name]())
            all_of_them.push_async_callback(stack.aclose)

        for name in makers:
            await start(name)
        uid = await put(cluster, MIXED)
        before = {name: cluster.cpus(name) for name in ("app", "side", "aux")}
        created = len(cluster.runtime.containers)
        for name in order:
            await running_now[name].aclose()
            await start(name)
            await until(cluster.is_connected)
            await until(lambda: cluster.phase(uid) == "Running")
            assert {name: cluster.cpus(name) for name in before} == before
            check_mixed(cluster)
        assert uid in cluster.admitted()
        assert len(cluster.runtime.containers) == created
        cluster.remove("mix")
        await until(lambda: uid not in cluster.admitted())
