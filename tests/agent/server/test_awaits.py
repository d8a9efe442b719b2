"""A cancellation, an exception, a hang at any await of the daemon: it goes on, or says what stands.

`test_awaits_beside.py` has those that deal with device plugins, a kubelet, a runtime, and clients.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import closing, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec.structs import replace

from agent.api.documents.admissions import BindRequest
from agent.api.documents.maintenance import CordonRequest
from agent.config.agent import PodResourcesConfig
from agent.config.model import CgroupDriver
from agent.managers.policy import PluginDevice
from agent.pods.manifest import load_pod
from agent.pods.model import END, UNIT
from agent.server.errors import CheckpointFailedError
from agent.server.process import _serve
from agent.server.watches import CgroupChanges
from agent.state.store import CHECKPOINT_NAME
from cgroupfs.names import Driver, Layout, Tier
from sysfs.mask import Mask
from systemd.units import allowed_cpus
from tests.agent.server.awaits import FAULTS, POINTS, chosen, instrumented, modules_of
from tests.agent.server.support import OTHER_UID, RecordingManager, make_world, manifest, wired
from tests.fakes.devices import FakeProvider
from tests.fakes.systemd import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from agent.server.lifecycle import Service
    from systemd.units import Property
    from tests.agent.server.support import World

PROBE: Final = "90000000-2222-3333-4444-555555555555"
#: After so many rounds what stands still has to be named; after so many it does not go on.
EARLIEST: Final = 4
PATIENCE: Final = 300
#: How often a task is looked at before the clock goes on.
TURNS: Final = 100
FEW_TURNS: Final = 5
#: Where nothing fails everything ends, on however busy a machine.
SOUND_TURNS: Final = 100 * TURNS
#: In the wall clock's seconds; nothing takes as long unless it hangs.
PATIENT_SECONDS: Final = 20.0
GPU: Final = "example.com/gpu"
SERVICE: Final = "db.service"
FOUND, GPU_UID, JOB_UID, UNIT_UID = (
    f"{digit}0000000-2222-3333-4444-555555555555" for digit in range(2, 6)
)


@pytest.fixture(scope="module", autouse=True)
def _instrumented() -> Iterator[None]:
    with instrumented(modules_of("agent.server")):
        yield


class Story:
    """A host with all that the agent deals with by itself, and what happens there."""

    def __init__(self, tmp_path: Path, host: Path) -> None:
        """Make a host where the agent finds a pod that it did not admit, and no manifests."""
        world = self.world = make_world(tmp_path, host)
        self.systemd = world.systemd = FakeSystemd(world.kernel)
        self.provider = FakeProvider(breaks="not there yet", preferring=frozenset((GPU,)))
        self.provider.devices = {GPU: tuple(PluginDevice(each, Mask.of(0)) for each in "ab")}
        self.provider.prefers = {GPU: ("a",)}
        self.provider.waits = self._never_delivered
        self.delivers = asyncio.Event()
        world.providers = (lambda _: self.provider,)
        world.root = tmp_path
        listed = PodResourcesConfig(tmp_path / "listed.sock")
        agent = replace(world.config.agent, pod_resources=listed)
        world.config = replace(world.config, agent=agent, cgroup_driver=CgroupDriver.SYSTEMD)
        self.manifests = world.manifest_directory()
        self.manifests.rmdir()
        # Files of cgroups as far as they are watched; all others are in the emulated kernel alone.
        self.watched = agent.cgroup_mount / _cgroup(OTHER_UID)
        self.watched.mkdir(parents=True)
        self._start(FOUND, 1, allowed_cpus(Mask.of(7, 15)))

    async def _never_delivered(self) -> None:
        await self.delivers.wait()

    def _start(self, uid: str, pid: int, *properties: Property) -> str:
        """Start a container of a pod; return its cgroup."""
        above = _cgroup(uid).rpartition("/")[2]
        return self.systemd.start_scope(f"c{pid}.scope", above, pid, *properties)

    async def stir(self, service: Service, controller: Controller, turns: int) -> None:
        """Ask for a change of every kind, each for so many turns, and let every period pass."""
        self.manifests.mkdir()
        self.provider.breaks = ""
        self.world.socket.unlink(missing_ok=True)
        db, gpu = (
            load_pod(manifest("db", OTHER_UID), "test"),
            load_pod(manifest("gpu", GPU_UID, gpu=1), "test"),
        )
        elsewhere = self.systemd.start_scope("elsewhere.scope", "system.slice", 2)
        self.systemd.start_service(SERVICE, 3)
        bound = BindRequest(cgroup=f"/{elsewhere}")

        async def started() -> None:
            (self.watched / "new").mkdir()

        async def processes_end() -> None:
            self._start(JOB_UID, 4)
            await controller.end_pods()
            self.world.kernel.exit(4)
            self.systemd.stop_service(SERVICE)
            del self.systemd.stopped[SERVICE]
            self.systemd.start_service(SERVICE, 5)
            await controller.end_pods()

        async def unsaved() -> None:
            beside = self.world.config.agent.state_directory / f"{CHECKPOINT_NAME}.new"
            beside.mkdir()
            try:
                with suppress(CheckpointFailedError):
                    await controller.cordon(CordonRequest(target="5"))
            finally:
                beside.rmdir()

        async def removed_amid_delivery() -> None:
            asked = asyncio.create_task(controller.admit(gpu))
            await _turns(20)
            removed = asyncio.create_task(controller.remove(GPU_UID))
            await _turns(5)
            self.delivers.set()
            await asyncio.gather(asked, removed, return_exceptions=True)

        asked: list[Coroutine[None, None, object]] = [
            controller.admit(db),
            started(),
            controller.bind(OTHER_UID, "c0", bound),
            controller.unbind(OTHER_UID, "c0"),
            unsaved(),
            controller.reconcile(),
            controller.cordon(CordonRequest(target="5")),
            controller.uncordon(CordonRequest(target="5")),
            controller.verify(),
            controller.pod(OTHER_UID),
            controller.preview(gpu),
            controller.admit(load_pod(manifest("found", FOUND), "test")),
            controller.admit(_annotated("unit", UNIT_UID, UNIT, SERVICE)),
            controller.admit(_annotated("job", JOB_UID, END, "processes")),
            processes_end(),
            removed_amid_delivery(),
            controller.admit(load_pod(manifest("db", PROBE), "test"), replace_pod=True),
            controller.remove(PROBE),
            self._file(controller, "web.yaml", manifest()),
            self._file(controller, "app.yaml", manifest(), "web.yaml"),
            self._file(controller, "more.yaml", manifest(cpu="3"), "app.yaml"),
            self._file(controller, "db.yaml", manifest("db", OTHER_UID), "more.yaml"),
        ]
        going_on = True
        for each in asked:
            # What stands behind something that hangs is not waited for.
            patience = turns if going_on else FEW_TURNS
            going_on = await _done(asyncio.create_task(each), patience)
            self.world.clock.advance(5)
        service.resync()
        for _ in range(6):
            self.world.clock.advance(10)
            await _turns(20)

    async def _file(self, controller: Controller, name: str, body: bytes, former: str = "") -> None:
        """Have a manifest read, in the place of a former one."""
        (self.manifests / (former or name)).write_bytes(body)
        if former:
            (self.manifests / former).rename(self.manifests / name)
        while (
            str(self.manifests / name)
            not in controller.state.observed.sources.by_name["manifests"].entries
        ):
            self.world.clock.advance(1)
            await asyncio.sleep(0.001)


def _cgroup(uid: str) -> str:
    return Layout(Driver.SYSTEMD).pod(uid, Tier.GUARANTEED)


def _annotated(name: str, uid: str, annotation: str, value: str) -> Pod:
    pod = load_pod(manifest(name, uid), "test")
    return replace(pod, annotations=MappingProxyType({annotation: value}))


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _done(task: asyncio.Task[Any], turns: int = TURNS) -> bool:
    """Wait for a task as long as others do anything; return whether it ended."""
    for _ in range(turns):
        if task.done():
            break
        await asyncio.wait((task,), timeout=0.001)
    if task.done() and not task.cancelled():
        task.exception()
    return task.done()


async def goes_on(controller: Controller, world: World, directory: Path) -> str:
    """Return "" if changes are made and sources are read, or what stands still by its name."""
    probing = asyncio.create_task(controller.admit(load_pod(manifest("probe", PROBE), "test")))
    (directory / "late.yaml").write_bytes(manifest("late", LATE))
    for number in range(PATIENCE):
        world.clock.advance(20)
        await _done(probing)
        if probing.done() and LATE in controller.state.ledger.allocations:
            return ""
        if number == EARLIEST:
            world.clock.advance(400)
            if (failure := controller.state.parts.progress.failure()) is not None:
                return failure
    return "nothing is said"


LATE: Final = "80000000-2222-3333-4444-555555555555"


async def trial(tmp_path: Path, host: Path, where: str, fault: str, when: str) -> str:
    """Run an agent with one fault, in the course of `when`; return what is wrong."""
    story, manager = Story(tmp_path, host), RecordingManager(ping_seconds=5)
    world = story.world
    POINTS.log.clear()
    POINTS.fault, POINTS.fails = fault, where if when == START else ""
    assembly = wired(world, manager)
    controller = assembly.controller
    changes = CgroupChanges(world.config.agent.cgroup_mount)
    with assembly as service, closing(changes):
        service._inputs = replace(service._inputs, cgroups=changes)
        life = asyncio.create_task(_serve(service))
        ready = asyncio.create_task(manager.is_ready.wait())
        seconds = 0.5 if where and when != STOP else PATIENT_SECONDS
        await asyncio.wait((life, ready), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        wrong = ""
        if not life.done() and manager.is_ready.is_set() and when != STOP:
            POINTS.fails = where
            await story.stir(service, controller, 3 * TURNS if where else SOUND_TURNS)
            wrong = await goes_on(controller, world, story.manifests)
            if wrong and wrong != "nothing is said":
                said = controller.state.unready() or ""
                wrong = "" if wrong.split(" has ")[0] in said else "not ready is not said"
        if when == STOP:
            await _asked_amid_body(world)
            POINTS.log.clear()
        POINTS.fails = where if when == STOP else ""
        service.stop()
        # What hangs is not waited for: systemd would end it.
        ends = when == STOP and fault != "hang"
        await asyncio.wait((life,), timeout=PATIENT_SECONDS if ends else 0.2)
        if ends and not life.done():
            wrong = "does not end"
        POINTS.fails = ""
        life.cancel()
        await asyncio.wait((life,), timeout=0.2)
        if life.done() and not life.cancelled():
            life.exception()
        if (listed := assembly.listeners.pod_resources) is not None:
            await listed.stop(0)  # grpc blocks a process that goes on without
    return wrong


async def _asked_amid_body(world: World) -> None:
    """Make a request whose body ends early, once the agent waits for the answer."""
    _, writer = await asyncio.open_unix_connection(world.socket)
    POINTS.log.clear()
    writer.write(b"POST /v1/pods HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{}")
    while not any(each.startswith("server/handlers.py") for each in POINTS.log):  # noqa: ASYNC110  # a point sets no event
        await asyncio.sleep(0.001)
    asyncio.get_running_loop().call_later(0.05, writer.close)


#: When the fault happens, and how many awaits are reached then at least.
START, RUNNING, STOP = "start", "running", "stop"
REACHED: Final = {START: 145, RUNNING: 145, STOP: 8}


@pytest.mark.parametrize("when", REACHED)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.timeout(900)
# What an await does not reach is never awaited, which nothing but this test brings about.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whatever_an_await_does_the_agent_goes_on_or_says_what_stands_still(
    tmp_path: Path, host_root: Path, fault: str, when: str
) -> None:
    def once(name: str, where: str) -> str:
        (tmp_path / name).mkdir()
        return asyncio.run(trial(tmp_path / name, host_root, where, fault, when))

    assert once("whole", "") == ""
    reached = sorted(POINTS.log)
    assert len(reached) >= REACHED[when]
    number, of = FAULTS.index(fault) * 2 + (when == RUNNING), 4 * len(FAULTS)
    some = reached if when == STOP else chosen(reached, number, of)
    wrong = {where: once(f"{number}", where) for number, where in enumerate(some)}
    gc.collect()  # what faults left open is said here, and fails no other test
    assert {where: why for where, why in wrong.items() if why} == {}
