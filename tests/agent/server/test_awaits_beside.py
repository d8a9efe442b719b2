"""As `test_awaits.py`, beside a kubelet with its container runtime, and with a device plugin.

They speak over real sockets, so that the clock cannot be advanced by hand: the loop's clock goes on
by itself, fast while nothing is ready.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import selectors
import shutil
import socket
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import pytest
from msgspec.structs import replace

from agent.api.client import AgentClient, AgentError, Unreachable
from agent.api.documents.admissions import BindRequest
from agent.api.documents.maintenance import CordonRequest
from agent.cluster import publishing
from agent.cluster.kubelet.pods_api import V1ALPHA1
from agent.cluster.kubelet.source import CONFIRM_PERIOD
from agent.cluster.nri import service as nri_service
from agent.cluster.nri.events import NriEvent
from agent.config.agent import DevicePluginsConfig
from agent.config.cluster import KubernetesConfig, OnReject
from agent.config.devices import HostDeviceClass
from agent.devices.host import HostDevices
from agent.devices.lists import BURST
from agent.managers.policy import MemoryManagerPolicy, PluginDevice
from agent.pods.manifest import load_pod
from agent.pods.quantity import Quantity
from agent.progress import EndedError
from agent.rpc.calls import CallError
from agent.server import listening
from agent.server.errors import EXPECTED
from agent.server.handlers import SMALL_BYTES
from agent.server.limits import Caller
from sysfs.described import regular_host
from sysfs.mask import Mask
from tests.agent.cluster.test_cluster import (
    MIXED,
    Cluster,
    amounts,
    container,
    opting_in,
    pod,
)
from tests.agent.server.awaits import FAULTS, POINTS, chosen, instrumented, modules_of
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    FakeClock,
    RecordingManager,
    make_world,
    manifest,
    two_packages,
    wired,
)
from tests.agent.server.test_awaits import RUNNING, STOP, trial
from tests.fakes.api_server import TOKEN, api_server
from tests.fakes.certificate import write_certificate
from tests.fakes.device_plugin import FakePlugin, device, failing
from tests.fakes.devices import FakeProvider
from tests.fakes.kubelet.device_shares import CHECKPOINT
from tests.fakes.kubelet.endpoint import PodsEndpoint
from tests.fakes.kubelet.kubelet import FakeKubelet, Options
from tests.fakes.kubelet.worker import Habits
from tests.sysfs.pci import network_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from agent.server.controller import Controller
    from agent.server.lifecycle import Service
    from cgroupfs.emulated.kernel import EmulatedKernel
    from tests.agent.server.support import World

pytestmark = pytest.mark.nightly

GPU: Final = "example.com/gpu"
EXCLUSIVE: Final = "numawarden.dev/exclusive"
VF: Final = "example.com/vf"
SLOW: Final = "example.com/slow"
NODE: Final = "node"
#: A kubelet that looks as seldom as the clock of the loop goes on while nothing is ready.
CALM: Final = Options(poll=0.2, habits=Habits(retry=0.5, look=0.2, linger=0.2))
WITHOUT_API: Final = dataclasses.replace(CALM, pods_api=False)
WITHOUT_GET: Final = dataclasses.replace(CALM, get_pod_resources=False)
#: How a call ends that fails, also by a fault itself.
FAILURES: Final = (*EXPECTED, EndedError, TimeoutError, RuntimeError)
PACKAGES: Final = ("agent.cluster", "agent.devices", "agent.sources")
#: The files of what deals with neighbours.
HERE: Final = (
    *(f"{name}/" for name in ("cluster", "devices", "kubelet", "nri", "sources")),
    *(f"server/{name}.py" for name in ("advice", "connection", "events", "handlers", "http")),
    *(f"server/{name}.py" for name in ("listener", "peers")),
)
#: A client waits so long for an answer, in seconds.
CLIENT_SECONDS: Final = 2.0
#: While nothing is ready for so long, so much time passes; in seconds.
IDLE: Final = 0.004
STEP: Final = 0.2
#: In the loop's seconds: how long a change may take where nothing fails, and when what stands
#: still has to be named.
SOON: Final = 60.0
PATIENCE: Final = 600.0


class _Skipping(selectors.DefaultSelector):
    """A selector that does not wait out the time of timers."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        found = super().select(min(timeout, IDLE))
        if not found:
            self.skipped += min(timeout, STEP)
        return found


class _Loop(asyncio.SelectorEventLoop):
    """A loop on such a selector."""

    def __init__(self) -> None:
        self.selector = _Skipping()
        super().__init__(self.selector)

    def time(self) -> float:
        return time.monotonic() + self.selector.skipped


class _LoopClock:
    """The clock of a loop; an `agent.clock.Clock`."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop

    def time(self) -> float:
        return time.time() + self._loop.selector.skipped

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(trial: Callable[[FakeClock], Awaitable[str]]) -> str:
    """Return what a trial returns, in a loop of its own with that loop's clock."""
    loop = _Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:

        async def tried() -> str:
            return await trial(cast("FakeClock", _LoopClock(loop)))

        return runner.run(tried())


async def within(seconds: float, condition: Callable[[], object]) -> bool:
    """Return whether a condition holds within so many seconds of the loop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  # sockets and threads set no event
                await asyncio.sleep(STEP)
    return bool(condition())


@asynccontextmanager
async def living(world: World) -> AsyncIterator[tuple[Service, bool]]:
    """Run an agent, also one that does not become ready; yield whether it is."""
    manager = RecordingManager(ping_seconds=5)
    with wired(world, manager) as service:
        assembly_life = asyncio.create_task(service.run())
        ready = await within(PATIENCE, lambda: manager.is_ready.is_set() or assembly_life.done())
        try:
            yield service, ready and not assembly_life.done()
        finally:
            POINTS.fails = ""
            service.stop()
            # What hangs is not waited for: systemd would end it.
            await asyncio.wait((assembly_life,), timeout=2)
            assembly_life.cancel()
            await asyncio.wait((assembly_life,), timeout=2)


def said(controller: Controller) -> str:
    """Return what the agent says is not as it should be."""
    state = controller.state
    found = [each.message for each in state.dated_conditions(0.0)]
    found += [
        each.message
        for each in state.observed.sources.entries()
        if each.state not in ("admitted", "shared")
    ]
    return "; ".join([*found, controller.state.parts.progress.failure() or ""])


async def goes_on(controller: Controller, done: Callable[[], object]) -> str:
    """Return "" if something is done in the end, or the agent says what is not as it should be."""
    if (
        await within(PATIENCE, lambda: done() or controller.state.parts.progress.failure())
        and done()
    ):
        return ""
    return "" if said(controller) else "nothing is said"


async def beside(where: Path, point: str, fault: str, *, early: bool, clock: FakeClock) -> str:
    """Run a node with one fault in the agent, at its start or in its pods' life."""
    POINTS.log.clear()
    POINTS.fault, POINTS.fails = fault, point if early else ""
    async with AsyncExitStack() as stack:
        cluster = _node(where, clock, stack)
        await stack.enter_async_context(cluster.with_runtime())
        service, ready = await stack.enter_async_context(living(cluster.world))
        if not ready:
            return ""  # systemd starts it again
        await stack.enter_async_context(cluster.with_kubelet(CALM))
        POINTS.fails = point
        await _stir(cluster)
        with suppress(*FAILURES):
            async with asyncio.timeout(SOON):
                await service._controller.reconcile()
        return await _runs(cluster, service)


def _node(where: Path, clock: FakeClock, stack: AsyncExitStack, **kubelet: object) -> Cluster:
    """Return a node of a cluster with an API server; `kubelet` are settings of the agent."""
    cluster = Cluster(where)
    world = cluster.world
    world.clock, world.root = clock, where / "root"
    write_certificate(where / "tls.pem")
    (where / "token").write_text(TOKEN)
    server = stack.enter_context(api_server(where / "tls.pem"))
    server.kubelets = {NODE: 100 * ["v1.36.0"]}
    kubernetes = KubernetesConfig(
        publish_topology=True,
        events=True,
        read_version=True,
        node_name=NODE,
        server=server.url,
        token_file=where / "token",
        ca_file=where / "tls.pem",
    )
    settings = world.config.agent
    settings = replace(
        settings, kubernetes=kubernetes, kubelet=replace(settings.kubelet, **kubelet)
    )
    world.config = replace(world.config, agent=settings)
    return cluster


async def _runs(cluster: Cluster, service: Service) -> str:
    """Return "" if another pod gets its CPUs in the end, or the agent says why not."""
    uid = cluster.put(pod("probe", container("probe", 2)))

    def runs() -> bool:
        return cluster.phase(uid) == "Running" and len(cluster.cpus("probe")) == 2

    wrong = await goes_on(service._controller, runs)
    return f"{wrong}: {cluster.kubelet.timeline.steps[-3:]}" if wrong else ""


async def _stir(cluster: Cluster) -> None:
    """Have pods start, be resized, get devices, opt in, and end; the runtime restarts."""
    mixed, own = cluster.put(MIXED), cluster.put(pod("own", container("solo", 2)))
    await within(SOON, lambda: {cluster.phase(each) for each in (mixed, own)} == {"Running"})
    cluster.put(pod("own", container("solo", 3)))
    await within(5, lambda: _is_made(cluster, "solo") and cluster.runtime.of("solo").updates)
    cluster.remove("own")
    plugin = FakePlugin(cluster.kubelet.manager.directory, GPU)
    await _starts(plugin, plugin.directory)
    listed = cluster.kubelet.manager.endpoints
    await within(SOON, lambda: len(listed) > 1 and all(each.ids for each in listed.values()))
    gpu, fits = pod("gpu", container("gpu", resources=_with(GPU, amounts(1)))), opting_in("fits", 1)
    [opted] = fits["spec"]["containers"]
    opted["resources"] = _with(GPU, opted["resources"])
    much = pod("much", container("much", 16))
    others = [cluster.put(each) for each in (gpu, fits, opting_in("not", 16), much)]
    ended = {"Running", "Failed", "Pending"}
    await within(SOON, lambda: {cluster.phase(each) for each in others} <= ended)
    await within(SOON, lambda: {cluster.phase(each) for each in others[:2]} == {"Running"})
    await within(SOON, lambda: cluster.phase(own) == "gone")
    cluster.remove("much")
    await plugin.stop()
    # The kubelet no longer watches the list of the agent's own plugin.
    own_plugin = listed.get(EXCLUSIVE)
    if own_plugin is not None and own_plugin.watching is not None:
        own_plugin.watching.cancel()
    for sandbox in list(cluster.runtime.sandboxes.values()):
        await cluster.runtime._ask(NriEvent.UPDATE_POD_SANDBOX, sandbox)
    await cluster.runtime.stop()
    await cluster.runtime.start()
    await within(SOON, cluster.is_connected)
    await within(SOON, lambda: listed.get(EXCLUSIVE) is not own_plugin)


def _is_made(cluster: Cluster, container: str) -> bool:
    """Return whether a container was created, which a fault may keep from happening."""
    return any(each.name == container for each in cluster.runtime.containers.values())


def _with(device: str, resources: dict[str, Any]) -> dict[str, Any]:
    limits = {**resources["limits"], device: "1"}
    return {"limits": limits, "requests": limits}


async def crowded(where: Path, point: str, fault: str, *, early: bool, clock: FakeClock) -> str:
    """As `beside`: a pod runs before the agent does, pods without room run shared."""
    POINTS.log.clear()
    POINTS.fault, POINTS.fails = fault, ""
    async with AsyncExitStack() as stack:
        cluster = _node(
            where,
            clock,
            stack,
            on_reject=OnReject.SHARE,
            token_file=where / "late",
            ca_file=where / "tls.pem",
        )
        cluster.runtime.nri.own_methods = False  # before NRI 0.12
        await stack.enter_async_context(cluster.with_runtime())
        await stack.enter_async_context(cluster.with_kubelet(WITHOUT_API))
        kubelet = cluster.kubelet
        plugins = kubelet.manager.directory
        plugins.mkdir(mode=0o750, parents=True)
        (plugins / CHECKPOINT).write_text("{")  # not as the agent can read it
        kubelet.devices._file = where / "unseen"
        kubelet.endpoint = PodsEndpoint(kubelet.pods, where / "tls.pem", TOKEN)
        first = cluster.put(pod("first", container("one", 12)))
        await within(SOON, lambda: cluster.phase(first) == "Running")
        agent = cluster.world.config.agent
        beside = replace(agent.kubelet, pods_endpoint=kubelet.endpoint.url)
        cluster.world.config = replace(cluster.world.config, agent=replace(agent, kubelet=beside))
        POINTS.fails = point if early else ""
        service, ready = await stack.enter_async_context(living(cluster.world))
        if not ready:
            return ""
        POINTS.fails = point
        plugin = FakePlugin(plugins, GPU)
        await _starts(plugin, plugins)
        await within(SOON, lambda: GPU in kubelet.manager.endpoints)
        (where / "late").write_text(TOKEN)
        await asyncio.sleep(10)
        second = cluster.put(pod("second", container("two", resources=_with(GPU, amounts(8)))))
        await within(SOON, lambda: cluster.phase(second) == "Running")
        cluster.remove("first")
        await within(SOON, lambda: first not in service._controller.state.ledger.allocations)
        if _is_made(cluster, "two"):
            cluster.runtime.end("two", 1)
            await within(SOON, lambda: len(cluster.cpus("two")) == 8)
        await plugin.stop()
        shutil.rmtree(plugins)
        third = cluster.put(pod("third", container("three", 12)))
        await within(SOON, lambda: cluster.phase(third) == "Running")
        cluster.remove("third")
        await within(SOON, lambda: cluster.phase(third) == "gone")
        return await _runs(cluster, service)


async def hindered(where: Path, point: str, fault: str, *, early: bool, clock: FakeClock) -> str:
    """As `beside`: pods run before the agent does, and neighbours do what they rarely do."""
    POINTS.log.clear()
    POINTS.fault, POINTS.fails = fault, ""
    async with AsyncExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(nri_service, "_MOST_UPDATES", 1)
        patched.setattr(publishing, "POD_SECONDS", 1.0)
        cluster = _node(where, clock, stack)
        world = cluster.world
        world.change_host(regular_host(hugepages=((2 << 20, 8),)))
        memory = MappingProxyType({"memory": Quantity.of_bytes(1 << 30)})
        world.config = replace(
            world.config,
            memory_manager_policy=MemoryManagerPolicy.STATIC,
            system_reserved=memory,
        )
        slow = FakeProvider(devices={SLOW: (PluginDevice("s", Mask.of(0)),)})
        slow.waits = partial(asyncio.sleep, 10)
        world.providers = (*world.providers, lambda _: slow)
        await stack.enter_async_context(cluster.with_runtime())
        await stack.enter_async_context(cluster.with_kubelet(WITHOUT_GET))
        _keep_devices_to_itself(cluster.kubelet, where / "unseen")
        first = [cluster.put(each) for each in (MIXED, pod("plain", container("plain")))]
        await within(SOON, lambda: {cluster.phase(each) for each in first} == {"Running"})
        POINTS.fails = point if early else ""
        service, ready = await stack.enter_async_context(living(world))
        if not ready:
            return ""
        POINTS.fails = point
        await within(SOON, cluster.is_connected)
        await _hinder(cluster, service)
        return await _runs(cluster, service)


async def _hinder(cluster: Cluster, service: Service) -> None:
    """Have the kubelet reject calls, and lack pods and methods, and the kernel keep CPUs."""
    api, plugins = cluster.kubelet.api, cluster.kubelet.manager
    state = service._controller.state

    async def runs(uid: str) -> None:
        await within(SOON, lambda: cluster.phase(uid) == "Running")

    # Memory of a container that ended.
    init = [container("init", 3)]
    await runs(cluster.put(pod("begun", container("begun", 1), initContainers=init)))
    # CPUs that do not leave other containers.
    with _keeping(cluster.world.kernel, "kubepods.slice/kubepods-besteffort.slice"):
        own = cluster.put(pod("own", container("own", 2)))
        await within(SOON, lambda: _failures(cluster, "own") > 1)
    await runs(own)
    # More calls than the kubelet takes, and a list without pods that run.
    api.raw_list, asked = V1ALPHA1["ListPodsResponse"]().SerializeToString(), len(api.calls)
    api.failing = CallError("RESOURCE_EXHAUSTED", "too many")
    much = cluster.put(pod("much", container("much", 16)))
    await within(SOON, lambda: "ListPods" in api.calls[asked:])
    api.failing = None
    await within(SOON, lambda: _failures(cluster, "much"))
    api.raw_list = None
    cluster.remove("much")
    await within(SOON, lambda: cluster.phase(much) == "gone")
    await asyncio.sleep(CONFIRM_PERIOD)
    # Containers that start while the agent cannot be asked.
    await cluster.runtime.stop()
    away = cluster.put(pod("away", container("one", 1), container("two", 1)))
    await runs(away)
    await within(SOON, lambda: away in state.ledger.allocations)
    await cluster.runtime.start()
    await within(SOON, cluster.is_connected)
    cluster.remove("away")
    # A device that its provider is long in delivering.
    await runs(cluster.put(pod("slow", container("slow", resources=_with(SLOW, amounts(1))))))
    # The same resize twice.
    failed = _failures(cluster, "own")
    cluster.put(pod("own", container("own", 3)))
    await within(SOON, lambda: _failures(cluster, "own") > failed + 2)
    await asyncio.sleep(10)
    # A host without the huge pages that it had.
    cluster.world.change_host(two_packages())
    service.resync()
    await asyncio.sleep(10)
    # Devices that the kubelet's file lacks.
    plugin = FakePlugin(plugins.directory, GPU)
    await _starts(plugin, plugin.directory)
    await within(SOON, lambda: all(each.ids for each in plugins.endpoints.values()))
    await runs(cluster.put(pod("gpu", container("gpu", resources=_with(GPU, amounts(1))))))
    await plugin.stop()
    shutil.rmtree(plugins.directory)
    await asyncio.sleep(10)


def _failures(cluster: Cluster, name: str) -> int:
    """Return how often the kubelet failed with a pod."""
    steps = cluster.kubelet.timeline.steps
    return sum(step["step"] == "error" and step["pod"] == name for step in steps)


def _keep_devices_to_itself(kubelet: FakeKubelet, file: Path) -> None:
    """Have a kubelet keep its devices in a file unknown to the agent."""
    kubelet.devices._file = file
    kubelet.manager.directory.mkdir(mode=0o750, parents=True)
    empty = {"Data": {"PodDeviceEntries": [], "RegisteredDevices": {GPU: ["a", "b"]}}}
    (kubelet.manager.directory / CHECKPOINT).write_text(json.dumps(empty))


@contextmanager
def _keeping(kernel: EmulatedKernel, path: str) -> Iterator[None]:
    """Have a cgroup keep its CPUs, whatever systemd writes: it does not say so."""
    write = kernel.raw_write

    def raw_write(to: str, file: str, value: str) -> None:
        if (to, file) != (path, "cpuset.cpus"):
            write(to, file, value)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cast("Any", kernel)._fake, "raw_write", raw_write)
        yield


async def plugged(where: Path, point: str, fault: str, *, early: bool, clock: FakeClock) -> str:
    """Run an agent with a device plugin and one fault, at its start or in the plugin's life."""
    world = make_world(where)
    world.clock = clock
    directory = where / "p"
    registry = where / "plugins_registry"
    directory.mkdir()
    directory.chmod(0o777)  # for all: it is served once that is mended
    functions = network_host(where / "pci")
    world.providers = (*world.providers, lambda _: _functions_of(functions.root))
    plugins = DevicePluginsConfig(enabled=True, directory=directory)
    world.config = replace(world.config, agent=replace(world.config.agent, device_plugins=plugins))
    POINTS.log.clear()
    POINTS.fault, POINTS.fails = fault, point if early else ""
    async with living(world) as (service, ready):
        if not ready:
            return ""
        controller = service._controller
        POINTS.fails = point
        directory.chmod(0o750)
        registry.mkdir(mode=0o750)
        plugin = FakePlugin(directory, GPU, preferring=True, pre_start=True)
        found = FakePlugin(registry, "example.com/nic", endpoint="nic.sock")
        await _connect(plugin, directory, found)
        await _admitted(controller, UID, SOON)
        for _ in range(2 * BURST):
            plugin.send(device("a", 1), device("b", 1), device("c", 1))
        await within(
            SOON, lambda: len(controller.state.configured.rules.policy.devices.get(GPU, ())) > 2
        )
        plugin.end_streams()
        await _starts(plugin, directory)
        with suppress(*FAILURES):
            async with asyncio.timeout(SOON):
                await controller.remove(UID)
        POINTS.fails = ""
        answered: list[bool] = []

        async def again() -> None:
            while not answered:
                await _starts(plugin, directory)
                if await _admitted(controller, OTHER_UID, SOON):
                    answered.append(True)

        probing = asyncio.create_task(again())
        wrong = await goes_on(controller, lambda: answered)
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        await plugin.stop()
        await found.stop()
        return wrong


async def _connect(plugin: FakePlugin, directory: Path, found: FakePlugin) -> None:
    """Have one plugin register and another be found, both after they were rejected."""
    versions, found.info["supported_versions"] = found.info["supported_versions"], ["v0"]
    found.send(device("n", 0))
    await found.start()
    method = "GetDevicePluginOptions"
    options, plugin.answers[method] = plugin.answers[method], failing("INTERNAL", "not now")
    await _starts(plugin, directory)
    plugin.answers[method] = options
    await plugin.stop()
    asking = asyncio.create_task(_registers(plugin))  # before it serves its socket
    await asyncio.sleep(1)
    await _starts(plugin, directory)
    await asking
    await within(SOON, lambda: found.statuses)
    found.info["supported_versions"] = versions
    await within(SOON, lambda: any(registered for registered, _ in found.statuses))


async def _starts(plugin: FakePlugin, directory: Path) -> None:
    """Start a plugin again, as its supervisor does, and have it register."""
    await plugin.stop()
    plugin.send(device("a", 1), device("b", 1))
    if await within(SOON, (directory / "kubelet.sock").exists):
        await plugin.start()
        await _registers(plugin)


async def _registers(plugin: FakePlugin) -> None:
    with suppress(CallError, TimeoutError):
        async with asyncio.timeout(SOON):
            await plugin.register()


def _functions_of(root: Path) -> HostDevices:
    """Provide the virtual functions of a network card, whose changes are announced once."""

    async def announced() -> AsyncIterator[None]:
        yield

    classes = (HostDeviceClass(VF, virtual_functions_of="ens1f0"),)
    return HostDevices(classes, root, watches={"links": announced}, period=5.0, settle=0.1)


async def _admitted(controller: Controller, uid: str, seconds: float) -> bool:
    amounts = b"memory: 1Gi"
    body = manifest(uid=uid).replace(amounts, amounts + f", {GPU}: 1, {VF}: 1".encode())
    with suppress(*FAILURES):
        async with asyncio.timeout(seconds):
            return (await controller.admit(load_pod(body, "test"))).admitted
    return False


async def asked(where: Path, point: str, fault: str, *, early: bool, clock: FakeClock) -> str:
    """Run an agent with one fault, at its start or while clients make requests of every kind."""
    world = make_world(where)
    world.clock = clock
    POINTS.log.clear()
    POINTS.fault, POINTS.fails = fault, point if early else ""
    callers = cycle((Caller("user 0", privileged=True), Caller("user 1000")))
    async with AsyncExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(listening, "user_caller", lambda _: next(callers))
        service, ready = await stack.enter_async_context(living(world))
        if not ready:
            return ""
        controller = service._controller
        POINTS.fails = point
        client = AgentClient(world.socket, timeout=CLIENT_SECONDS)
        with _sent(world.socket, b"GET /v1/watch HTTP/1.1\r\nHost: a\r\n\r\n"):
            for request in _requests(client):
                await _answered(request)
            fit = partial(client.fit, manifest("big", UID, cpu="40"), 1)
            await asyncio.gather(*(_answered(fit) for _ in range(6)))
            port = service._listening._listeners.metrics_port
            await asyncio.to_thread(_exchanges, world.socket, port)
        POINTS.fails = ""

        async def again() -> None:
            while not answered:
                if await _answered(partial(client.admit, manifest("late", UID))):
                    answered.append(True)
                await asyncio.sleep(1)

        answered: list[bool] = []

        probing = asyncio.create_task(again())
        wrong = await goes_on(controller, lambda: answered)
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        return wrong


def _requests(client: AgentClient) -> Iterator[Callable[[], object]]:
    body = manifest("db", OTHER_UID)
    cordon = CordonRequest(target="5")
    yield partial(client.admit, body, dry_run=True)
    yield partial(client.admit, body)
    yield partial(client.admit, manifest("big", UID, cpu="40"), advice=True)
    yield partial(client.admit, body + b"#" * SMALL_BYTES)
    yield partial(client.failed, UID)
    yield partial(client.fit, body, 2)
    yield partial(client.fit, manifest("big", UID, cpu="40"), 1)
    yield partial(client.bind, OTHER_UID, "c0", BindRequest(cgroup="/x"))
    yield partial(client.unbind, OTHER_UID, "c0")
    yield partial(client.pod, OTHER_UID)
    yield partial(client.cordon, cordon)
    yield partial(client.drain, "5")
    yield partial(client.uncordon, cordon)
    yield from (client.pods, client.status, client.verify, client.reconcile)
    yield from (client.topology, client.map)
    yield partial(client.history, limit=1)
    yield partial(client.remove, OTHER_UID)


@contextmanager
def _sent(address: Path | tuple[str, int], raw: bytes) -> Iterator[socket.socket]:
    """Send bytes over a connection of its own."""
    family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
    with socket.socket(family) as connection:
        connection.settimeout(CLIENT_SECONDS)
        connection.connect(address if isinstance(address, tuple) else str(address))
        connection.sendall(raw)
        yield connection


def _exchanges(path: Path, port: int) -> None:
    """Send what `AgentClient` does not: to metrics, a body later, and what is not HTTP."""
    last = b"Host: a\r\nConnection: close\r\n\r\n"
    expecting = b"POST /v1/pods HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
    asked: tuple[tuple[Path | tuple[str, int], bytes, bytes], ...] = (
        (("127.0.0.1", port), b"GET /metrics HTTP/1.1\r\n" + last, b""),
        (path, expecting + last, b"{}"),
        (path, b"no HTTP\r\n\r\n", b""),
    )
    for address, head, body in asked:
        with suppress(OSError), _sent(address, head) as connection:
            found = connection.recv(1 << 16)
            if body:
                connection.sendall(body)
            while found:
                found = connection.recv(1 << 16)


async def _answered(request: Callable[[], object]) -> bool:
    """Make a request in a thread; return whether it was answered as one that succeeds."""
    with suppress(AgentError, Unreachable):
        await asyncio.to_thread(request)
        return True
    return False


#: The story of which only those awaits fail that no other one reaches.
RARE: Final = "hindered"
TRIALS: Final[dict[str, Any]] = {
    "kubelet": beside,
    "crowded": crowded,
    "plugin": plugged,
    "client": asked,
    RARE: hindered,
}
#: So many awaits each story reaches at least, also on a busy machine, where some come too late.
REACHED: Final = {"kubelet": 220, "crowded": 220, "hindered": 180, "plugin": 125, "client": 145}
#: So many awaits may be reached by no story: two of a command, and what comes too late for one.
UNREACHED: Final = 12


def _once(neighbour: str, where: str, fault: str, *, early: bool) -> str:
    with tempfile.TemporaryDirectory(prefix="a") as directory:  # short enough for sockets

        async def tried(clock: FakeClock) -> str:
            trial = TRIALS[neighbour](Path(directory), where, fault, early=early, clock=clock)
            result: str = await trial
            return result

        return run(tried)


class Reached(NamedTuple):
    """All awaits, and those that each story reaches where nothing fails."""

    points: set[str]
    alone: set[str]
    beside: dict[str, set[str]]


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory, host_root: Path) -> Iterator[Reached]:
    with instrumented([*modules_of("agent.server", *PACKAGES)]) as points:
        found = Reached(points, set(), {})
        for when in (RUNNING, STOP):
            where = tmp_path_factory.mktemp(when)
            assert asyncio.run(trial(where, host_root, "", "", when)) == ""
            found.alone.update(POINTS.log)
        for neighbour in TRIALS:
            assert _once(neighbour, "", "", early=False) == ""
            found.beside[neighbour] = set(POINTS.log)
        yield found


def test_nearly_every_await_of_the_daemon_is_reached(reached: Reached) -> None:
    counts = {name: len(found) for name, found in reached.beside.items()}
    assert {name: count for name, count in counts.items() if count < REACHED[name]} == {}
    missing = reached.points.difference(reached.alone, *reached.beside.values())
    assert len(missing) <= UNREACHED, sorted(missing)


@pytest.mark.parametrize("early", [True, False], ids=["start", "running"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("neighbour", TRIALS)
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_an_await_does_beside_others_the_agent_goes_on_or_says_what_does_not(
    reached: Reached, neighbour: str, fault: str, *, early: bool
) -> None:
    # What `test_awaits.py` has fail need not fail here, unless it deals with neighbours.
    others, of = {each for each in reached.alone if not each.startswith(HERE)}, 36
    if neighbour == RARE:
        others = others.union(*(reached.beside[each] for each in TRIALS if each != RARE))
        of = 6
    some = chosen(sorted(reached.beside[neighbour] - others), FAULTS.index(fault) * 2 + early, of)
    wrong = {where: _once(neighbour, where, fault, early=early) for where in some}
    gc.collect()  # what faults left open is said here, and fails no other test
    assert {where: why for where, why in wrong.items() if why} == {}
