"""As `test_awaits.py`, beside a kubelet with its container runtime, and with a device plugin.

They speak over real sockets, so that the clock cannot be advanced by hand: the loop's clock goes on
by itself, fast while nothing is ready.
"""

from __future__ import annotations

import asyncio
import selectors
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from msgspec.structs import replace

from agent.api.client import AgentClient, AgentError, Unreachable
from agent.api.documents import BindRequest, CordonRequest
from agent.config.model import DevicePluginsConfig, KubernetesConfig
from agent.pods.manifest import load_pod
from agent.progress import EndedError
from agent.rpc import CallError
from agent.server.errors import EXPECTED
from tests.agent.cluster.test_cluster import MIXED, Cluster, container, pod
from tests.agent.server.awaits import FAULTS, POINTS, chosen, instrumented, modules_of
from tests.agent.server.support import (
    OTHER_UID,
    UID,
    FakeClock,
    RecordingManager,
    make_world,
    manifest,
    wired,
)
from tests.fakes.api_server import TOKEN, api_server
from tests.fakes.certificate import write_certificate
from tests.fakes.device_plugin import FakePlugin, device

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from agent.server.controller import Controller
    from tests.agent.server.support import World

GPU: Final = "example.com/gpu"
NODE: Final = "node"
#: How a call ends that fails, also by a fault itself.
FAILURES: Final = (*EXPECTED, EndedError, TimeoutError, RuntimeError)
#: What only these stories reach; what they share with others is in `test_awaits.py`.
PACKAGES: Final = ("agent.cluster", "agent.devices", "agent.sources")
HTTP: Final = tuple(
    f"agent.server.{name}" for name in ("advice", "connections", "events", "handlers", "http")
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
                await asyncio.sleep(0.05)
    return bool(condition())


@asynccontextmanager
async def living(world: World) -> AsyncIterator[tuple[Controller, bool]]:
    """Run an agent, also one that does not become ready; yield whether it is."""
    manager = RecordingManager(ping_seconds=5)
    with wired(world, manager) as service:
        assembly_life = asyncio.create_task(service.run())
        ready = await within(PATIENCE, lambda: manager.is_ready.is_set() or assembly_life.done())
        try:
            yield service._controller, ready and not assembly_life.done()
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
    found += [each.message for each in state.entries() if each.state not in ("admitted", "shared")]
    return "; ".join([*found, controller.state.progress.failure() or ""])


async def goes_on(controller: Controller, done: Callable[[], object]) -> str:
    """Return "" if something is done in the end, or the agent says what is not as it should be."""
    if await within(PATIENCE, lambda: done() or controller.state.progress.failure()) and done():
        return ""
    return "" if said(controller) else "nothing is said"


# --- beside a kubelet ---------------------------------------------------------------------------


async def beside(where: Path, point: str, fault: str, *, early: bool, clock: FakeClock) -> str:
    """Run a node with one fault in the agent, at its start or in its pods' life."""
    cluster = Cluster(where)
    cluster.world.clock = clock
    POINTS.log.clear()
    POINTS.fault, POINTS.fails = fault, point if early else ""
    async with AsyncExitStack() as stack:
        write_certificate(where / "tls.pem")
        (where / "token").write_text(TOKEN)
        kubernetes = KubernetesConfig(
            publish_topology=True,
            events=True,
            node_name=NODE,
            server=stack.enter_context(api_server(where / "tls.pem")).url,
            token_file=where / "token",
            ca_file=where / "tls.pem",
        )
        settings = replace(cluster.world.config.agent, kubernetes=kubernetes)
        cluster.world.config = replace(cluster.world.config, agent=settings)
        await stack.enter_async_context(cluster.with_runtime())
        controller, ready = await stack.enter_async_context(living(cluster.world))
        if not ready:
            return ""  # systemd starts it again
        await stack.enter_async_context(cluster.with_kubelet())
        POINTS.fails = point
        await _stir(cluster)
        uid = cluster.put(pod("probe", container("probe", 2)))

        def runs() -> bool:
            return cluster.phase(uid) == "Running" and len(cluster.cpus("probe")) == 2

        wrong = await goes_on(controller, runs)
        return f"{wrong}: {cluster.kubelet.timeline.steps[-3:]}" if wrong else ""


async def _stir(cluster: Cluster) -> None:
    """Have pods start, be resized, get an ephemeral container, and end; the kubelet restarts."""
    mixed, own = cluster.put(MIXED), cluster.put(pod("own", container("app", 2)))
    await within(SOON, lambda: {cluster.phase(each) for each in (mixed, own)} == {"Running"})
    cluster.put(pod("own", container("app", 3)))
    await within(5, lambda: cluster.runtime.of("app").updates)
    cluster.remove("own")
    await within(SOON, lambda: cluster.phase(own) == "gone")


# --- with a device plugin -----------------------------------------------------------------------


async def plugged(where: Path, point: str, fault: str, *, early: bool, clock: FakeClock) -> str:
    """Run an agent with a device plugin and one fault, at its start or in the plugin's life."""
    world = make_world(where)
    world.clock = clock
    directory = where / "p"
    registry = where / "plugins_registry"
    for each in (directory, registry):
        each.mkdir(mode=0o750)
    plugins = DevicePluginsConfig(enabled=True, directory=directory)
    world.config = replace(world.config, agent=replace(world.config.agent, device_plugins=plugins))
    POINTS.log.clear()
    POINTS.fault, POINTS.fails = fault, point if early else ""
    async with living(world) as (controller, ready):
        if not ready:
            return ""
        POINTS.fails = point
        plugin = FakePlugin(directory, GPU, preferring=True, pre_start=True)
        found = FakePlugin(registry, "example.com/nic", endpoint="nic.sock")
        found.send(device("n", 0))
        await found.start()
        await _starts(plugin, directory)
        await within(SOON, lambda: found.statuses)
        await _admitted(controller, UID, SOON)
        plugin.end_streams()
        await _starts(plugin, directory)
        plugin.send(device("a", 1), device("b", 1), device("c", 1))
        with suppress(*FAILURES):
            await asyncio.wait_for(controller.remove(UID), SOON)
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


async def _starts(plugin: FakePlugin, directory: Path) -> None:
    """Start a plugin again, as its supervisor does, and have it register."""
    await plugin.stop()
    plugin.send(device("a", 1), device("b", 1))
    if await within(SOON, (directory / "kubelet.sock").exists):
        await plugin.start()
        with suppress(CallError, TimeoutError):
            await asyncio.wait_for(plugin.register(), SOON)


async def _admitted(controller: Controller, uid: str, seconds: float) -> bool:
    amounts = b"memory: 1Gi"
    body = manifest(uid=uid).replace(amounts, amounts + f", {GPU}: 1".encode())
    asked = controller.admit(load_pod(body, "test"))
    with suppress(*FAILURES):
        return (await asyncio.wait_for(asked, seconds)).admitted
    return False


# --- over HTTP ----------------------------------------------------------------------------------


async def asked(where: Path, point: str, fault: str, *, early: bool, clock: FakeClock) -> str:
    """Run an agent with one fault, at its start or while clients make requests of every kind."""
    world = make_world(where)
    world.clock = clock
    POINTS.log.clear()
    POINTS.fault, POINTS.fails = fault, point if early else ""
    async with living(world) as (controller, ready):
        if not ready:
            return ""
        POINTS.fails = point
        client = AgentClient(world.socket, timeout=CLIENT_SECONDS)
        for request in _requests(client):
            await _answered(request)
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
    yield partial(client.admit, manifest("big", UID, cpu="40"))
    yield partial(client.failed, UID)
    yield partial(client.fit, body, 1)
    yield partial(client.bind, OTHER_UID, "c0", BindRequest(cgroup="/x"))
    yield partial(client.unbind, OTHER_UID, "c0")
    yield partial(client.pod, OTHER_UID)
    yield partial(client.cordon, cordon)
    yield partial(client.drain, "5")
    yield partial(client.uncordon, cordon)
    yield from (client.pods, client.status, client.verify, client.reconcile, client.log_level)
    yield from (client.topology, client.map, client.snapshot)
    yield partial(client.history, limit=1)
    yield partial(client.remove, OTHER_UID)


async def _answered(request: Callable[[], object]) -> bool:
    """Make a request in a thread; return whether it was answered as one that succeeds."""
    with suppress(AgentError, Unreachable):
        await asyncio.to_thread(request)
        return True
    return False


TRIALS: Final[dict[str, Any]] = {"kubelet": beside, "plugin": plugged, "client": asked}


@pytest.fixture(scope="module", autouse=True)
def _instrumented() -> Iterator[None]:
    with instrumented([*modules_of(*PACKAGES), *map(import_module, HTTP)]):
        yield


@pytest.mark.parametrize("early", [True, False], ids=["start", "running"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("neighbour", TRIALS)
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_an_await_does_beside_others_the_agent_goes_on_or_says_what_does_not(
    neighbour: str, fault: str, *, early: bool
) -> None:
    def once(where: str) -> str:
        with tempfile.TemporaryDirectory(prefix="a") as directory:  # short enough for sockets

            async def trial(clock: FakeClock) -> str:
                tried = TRIALS[neighbour](Path(directory), where, fault, early=early, clock=clock)
                result: str = await tried
                return result

            return run(trial)

    assert once("") == ""
    reached = sorted(POINTS.log)
    assert len(reached) > 20
    some = chosen(reached, FAULTS.index(fault) * 2 + early, 18)
    wrong = {where: once(where) for where in some}
    assert {where: why for where, why in wrong.items() if why} == {}
