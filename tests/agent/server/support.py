"""A whole agent in this process: a described host, an emulated kernel, real sockets."""

from __future__ import annotations

import asyncio
import functools
import io
import os
import shutil
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import psutil
from msgspec.structs import replace

from agent.api.client import AgentClient
from agent.cluster.plugs import PLUGS
from agent.config.agent import AgentConfig, MetricsConfig
from agent.config.model import Config
from agent.managers.policy import CpuManagerPolicy, TopologyManagerPolicy
from agent.managers.registry import MANAGERS
from agent.reconcile.diff import unknown_writer
from agent.server.plugs import Fakes
from agent.server.service_manager import ServiceManager
from agent.server.wiring import Wiring
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.described import regular_host, write_tree
from sysfs.mask import Mask
from systemd.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from agent.api.documents.history import EventDocument
    from agent.managers.resource_manager import ResourceManager
    from agent.reconcile.diff import WriterOf
    from agent.reconcile.tasks import Task
    from agent.server.controller import Controller
    from agent.server.events import Watcher
    from agent.server.lifecycle import CgroupFollower, Service
    from agent.server.plugs import SourceFactory
    from agent.server.providers import ProviderFactory
    from sysfs.host import Host
    from systemd.bus import Systemd

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

UID = "11111111-2222-3333-4444-555555555555"
OTHER_UID = "99999999-2222-3333-4444-555555555555"
#: No step of a test takes longer, on however busy a machine, unless it hangs; in seconds.
PATIENCE = 100.0
#: A test that waits while nothing ran for so many seconds waits for what does not come.
QUIET_SECONDS = 10
#: So much CPU time in a second is none: tests look from time to time whether a condition holds.
_IDLE_SECONDS = 0.05


def in_loop(test: Callable[_Params, Coroutine[None, None, None]]) -> Callable[_Params, None]:
    """Run an asynchronous test to its end in a loop of its own."""

    @functools.wraps(test)
    def run(*args: _Params.args, **kwargs: _Params.kwargs) -> None:
        asyncio.run(_limited(test(*args, **kwargs)))

    return run


async def _limited(test: Coroutine[None, None, None]) -> None:
    """Run a test; one that waits for what does not come fails and says where it waits."""
    testing, activity = asyncio.create_task(test), Activity()
    try:
        async with asyncio.timeout(PATIENCE):
            while not testing.done() and activity.quiet_seconds < QUIET_SECONDS:
                await asyncio.wait((testing,), timeout=1)
                activity.look()
    except TimeoutError:
        pass
    if not testing.done():
        waits = "\n".join(_stack(task) for task in asyncio.all_tasks())
        testing.cancel()
        await asyncio.wait((testing,), timeout=QUIET_SECONDS)
        raise AssertionError(
            f"the test did not end, and nothing ran for {activity.quiet_seconds} s:\n{waits}"
        )
    await testing


def _stack(task: asyncio.Task[Any]) -> str:
    found = io.StringIO()
    try:
        task.print_stack(file=found)
    except TypeError:  # grpc's coroutines have no frames
        return f"{task!r}\n"
    return found.getvalue()


class Activity:
    """For how many seconds nothing ran in this process and its children, looked at every second.

    A thread that is ready to run and gets no CPU on a busy machine, or that waits for a disk, is
    not idle.
    """

    def __init__(self) -> None:
        self.quiet_seconds = 0
        self._spent = self._spending()[0]

    def look(self) -> None:
        """Note whether anything ran since the last look."""
        spent, ready = self._spending()
        idle = not ready and spent - self._spent < _IDLE_SECONDS
        self.quiet_seconds = self.quiet_seconds + 1 if idle else 0
        self._spent = spent

    @staticmethod
    def _spending() -> tuple[float, bool]:
        """Return the CPU seconds of all threads so far, and whether another thread could run."""
        spent, ready = 0.0, False
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                spent += sum(process.cpu_times()[:2])
                for thread in Path(f"/proc/{process.pid}/task").iterdir():
                    if int(thread.name) != threading.get_native_id():
                        state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
                        ready = ready or state in "RD"
        return spent, ready


class FakeClock:
    """A clock that stands still until a test advances it; waits of under a second are none."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def time(self) -> float:
        return self.now + 1_700_000_000

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if seconds < 1:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, woken))
        await woken

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for deadline, woken in self._sleepers:
            if deadline <= self.now and not woken.done():
                woken.set_result(None)
        self._sleepers = [entry for entry in self._sleepers if not entry[1].done()]

    async def passing(self, seconds: float, awaited: Coroutine[None, None, _Result]) -> _Result:
        """Return what a coroutine returns, while time passes for those that wait for the clock.

        The clock is advanced by `seconds` whenever a task sleeps for so long or less: a task that
        begins to sleep late, on a busy machine, is not missed.
        """
        waiting = asyncio.create_task(awaited)
        try:
            while not waiting.done():
                soon = self.now + seconds
                if any(at <= soon and not woken.done() for at, woken in self._sleepers):
                    self.advance(seconds)
                await asyncio.wait((waiting,), timeout=0.001)
            return waiting.result()
        finally:
            waiting.cancel()


class RecordingManager(ServiceManager):
    """A service manager that remembers what was sent."""

    def __init__(self, ping_seconds: float | None = None) -> None:
        super().__init__(Notifier({}), ping_seconds)
        self.sent: list[str] = []
        self.is_ready = asyncio.Event()
        self.pinged = asyncio.Event()

    def ready(self, status: str) -> None:
        self.sent.append(f"ready: {status}")
        self.is_ready.set()

    def status(self, text: str) -> None:
        self.sent.append(f"status: {text}")

    def alive(self) -> None:
        self.sent.append("alive")
        self.pinged.set()

    def stopping(self) -> None:
        self.sent.append("stopping")


@dataclass
class World:
    """A host and its kernel, which outlive the agent, and how the agent is configured."""

    directory: Path
    kernel: EmulatedKernel
    config: Config
    clock: FakeClock = field(default_factory=FakeClock)
    tasks: list[Task] = field(default_factory=list)
    sources: tuple[SourceFactory, ...] = PLUGS.sources
    managers: tuple[ResourceManager, ...] = MANAGERS
    providers: tuple[ProviderFactory, ...] = PLUGS.providers
    systemd: Systemd | None = None
    writer_of: WriterOf = unknown_writer
    #: Where a kubelet is looked for, None for nowhere.
    root: Path | None = None

    @property
    def socket(self) -> Path:
        return self.config.agent.socket_path

    @property
    def runtimes(self) -> Path:
        """Where the files of container runtimes are."""
        return self.directory / "runtimes"

    def client(self) -> AgentClient:
        return AgentClient(self.socket, timeout=PATIENCE)

    def manifest_directory(self) -> Path:
        """Configure a manifest directory and return it."""
        directory = self.directory / "manifests"
        directory.mkdir(mode=0o755)
        self.config = replace(self.config, static_pod_path=directory)
        return directory

    def change_host(self, host: Host) -> None:
        """Describe another host in the place of the one that is there."""
        root = self.config.agent.sysfs_root
        shutil.rmtree(root)
        write_tree(host, root)
        self.kernel.set_online(host.online)

    def cpus_of(self, cgroup: str) -> str:
        return self.kernel.read(cgroup, "cpuset.cpus.effective").strip()


def two_packages() -> Host:
    """Return two packages of four cores with two threads each."""
    return regular_host(packages=2, cores_per_node=4)


def make_world(tmp_path: Path, root: Path | None = None) -> World:
    """Return the world of `two_packages`, whose tree is laid out already at `root` if given."""
    host = two_packages()
    (tmp_path / "state").mkdir(mode=0o700)
    if root is None:
        root = tmp_path / "host"
        write_tree(host, root)
    kernel = EmulatedKernel(host.online, Mask.from_ids(node.id for node in host.nodes))
    agent = AgentConfig(
        state_directory=tmp_path / "state",
        cdi_directory=tmp_path / "cdi",
        socket_path=tmp_path / "agent.sock",
        sysfs_root=root,
        cgroup_mount=tmp_path / "cgroup",
        metrics=MetricsConfig(port=0),
    )
    config = Config(
        cpu_manager_policy=CpuManagerPolicy.STATIC,
        topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT,
        reserved_system_cpus=Mask.of(0),
        feature_gates=MappingProxyType({"PodLevelResourceManagers": True}),
        agent=agent,
    )
    return World(tmp_path, kernel, config)


@dataclass
class Running:
    """An agent that is ready."""

    world: World
    controller: Controller
    service: Service
    manager: RecordingManager
    client: AgentClient
    port: int
    life: asyncio.Task[None]

    async def ask(
        self, call: Callable[_Params, object], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> None:
        """Call the blocking client in a thread; for its result use `asyncio.to_thread`."""
        await asyncio.to_thread(call, *args, **kwargs)

    async def sync_manifests(self) -> None:
        """Read the manifest directory now."""
        (intake,) = (i for i in self.service._inputs.intakes if i.source.name == "manifests")
        await self.service._loops.attempt(partial(self.service._sync, intake), "sync manifests")

    async def stop(self) -> None:
        self.service.stop()
        await self.life


def wired(world: World, manager: RecordingManager) -> Wiring:
    """Return what makes an agent in the world."""
    fakes = Fakes(
        tree=world.kernel,
        systemd=world.systemd,
        live=False,
        tasks=lambda: world.tasks,
        root=world.root,
        runtimes=world.runtimes,
        writer_of=world.writer_of,
    )
    plugs = replace(
        PLUGS, sources=world.sources, managers=world.managers, providers=world.providers
    )
    return Wiring(world.config, manager, world.clock, plugs, fakes)


@asynccontextmanager
async def running(
    world: World, manager: RecordingManager | None = None, cgroups: CgroupFollower | None = None
) -> AsyncIterator[Running]:
    """Run an agent in the world until the block ends; `cgroups` notices changes in cgroups."""
    manager = manager or RecordingManager()
    assembly = wired(world, manager)
    with assembly as service:
        if cgroups is not None:
            service._inputs = replace(service._inputs, cgroups=cgroups)
        life = asyncio.create_task(service.run())
        try:
            await either(manager.is_ready.wait(), life)
            agent = Running(
                world,
                assembly.controller,
                service,
                manager,
                world.client(),
                assembly.listeners.metrics_port,
                life,
            )
            yield agent
        finally:
            service.stop()
            await life


async def either(desired: Coroutine[None, None, object], life: asyncio.Task[None]) -> None:
    """Wait for something, or fail with the agent when that ends first."""
    waiting = asyncio.create_task(desired)
    await asyncio.wait((waiting, life), return_when=asyncio.FIRST_COMPLETED)
    if not waiting.done():
        waiting.cancel()
        life.result()
        raise AssertionError("the agent ended")


async def until(condition: Callable[[], object]) -> None:
    """Let all others go on until a condition holds that sets no event, of threads and sockets.

    It is looked at less often the longer it takes, so that what is waited for has the CPU.
    """
    began = time.monotonic()
    while not condition():  # noqa: ASYNC110  # threads and sockets set no event
        await asyncio.sleep(min((time.monotonic() - began) / 20, 0.1))


async def next_event(watcher: Watcher, *kinds: str) -> EventDocument:
    """Return the next event of one of some types."""
    async for event in watcher:
        if event.type in kinds:
            return event
    raise AssertionError(f"no {kinds} before the agent ended")


def manifest(
    name: str | None = None,
    uid: str | None = UID,
    *,
    cpu: str = "2",
    memory: str = "1Gi",
    containers: int = 1,
    **devices: int,
) -> bytes:
    """Return the manifest of a Guaranteed pod with equal containers c0, c1, ...

    Each asks for so many `devices`, `gpu=1` for one example.com/gpu.

    It is called web, and another name goes with another uid: two pods may not have one name.
    """
    if name is None:
        name = "web" if uid in {UID, None} else f"web-{uid}".lower()
    lines = ["apiVersion: v1", "kind: Pod", "metadata:", f"  name: {name}", "  namespace: shop"]
    if uid is not None:
        lines.append(f"  uid: {uid}")
    lines += ["spec:", "  containers:"]
    more = "".join(f", example.com/{name}: {count}" for name, count in devices.items())
    amounts = f"{{cpu: '{cpu}', memory: {memory}{more}}}"
    for number in range(containers):
        lines += [
            f"  - name: c{number}",
            "    image: example.org/app",
            f"    resources: {{requests: {amounts}, limits: {amounts}}}",
        ]
    return "\n".join((*lines, "")).encode()


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Let sockets that are made meanwhile belong to a user."""
    before = os.geteuid()
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(before)
