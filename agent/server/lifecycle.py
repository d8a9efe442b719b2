"""Agent lifecycle: reconcile, report readiness, watch for changes, stop.

Stopping the agent does not change running workloads.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent import __version__
from agent.clock import wait_for
from agent.managers.cpu.manager import exclusive_cpus
from agent.progress import STALL_SECONDS
from agent.server.answers import answer_without_handler
from agent.server.connection import HttpServer
from agent.server.limits import Limit, Limits
from agent.server.listener import Listener
from agent.server.loops import Loops
from agent.server.monitoring import Monitoring
from agent.server.observations import COMPARISON
from agent.server.peers import callers_of, user_caller
from agent.sources.source import SourceUnreadableError
from cgroupfs.tree import parent

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Collection,
        Coroutine,
        Iterable,
        Iterator,
    )

    from agent.clock import Clock
    from agent.devices.provider import DeviceProvider
    from agent.server.configured import ConfiguredHost
    from agent.server.controller import Controller
    from agent.server.handlers import Api
    from agent.server.intake import PodIntake
    from agent.server.pod_resources import PodResourcesListener
    from agent.server.service_manager import ServiceManager
    from agent.server.sockets import UnixListener
    from sysfs.host import WithheldCpus
    from sysfs.mask import Mask


log = structlog.get_logger(__name__)

#: How often sources of pods are read: the kubelet's fileCheckFrequency, in seconds.
SOURCE_PERIOD: Final = 20.0
#: How often it is checked which pods ended with their processes or unit, in seconds.
END_PERIOD: Final = 5.0
#: The shortest interval between two passes of pods in which cgroups appear, in seconds: a container
#: runs on its pod's CPUs until its own are written, and a pod that makes cgroups without end must
#: leave time to others.
APPEARED_SECONDS: Final = 0.05
#: A comparison with the kernel is late when it is this many periods overdue...
LATE_PERIODS: Final = 3
#: ... and this many actions could have been completed: a comparison is queued ahead, so that at
#: most the running action and one waiting action precede it.
LATE_ACTIONS: Final = 3
#: How long the start waits for a provider of devices to serve, in seconds.
SETTLE_PATIENCE: Final = 5.0
#: Subject of the condition that inotify watches are lacking.
_INOTIFY: Final = "inotify"
#: Bytes of unread responses: the list of thousands of pods has some MiB.
ANSWERS: Final = Limit(everyone=32 << 20, caller=16 << 20)
#: The metrics listener is open to all users of the host, for scrapes and probes, which are answered
#: at once. All clients of another host share an address, so an address has many connections: a new
#: connection must not be closed in favour of later ones before its request is read.
METRICS_LIMITS: Final = Limits(
    requests=Limit(everyone=384, caller=256),
    watchers=Limit(everyone=0, caller=0),
    bodies=Limit(everyone=0, caller=0),
    answers=ANSWERS,
    head_seconds=10.0,
    idle_seconds=15.0,
)
#: The API listener has commands, which may wait long for a response, and watchers. `bodies` counts
#: bodies of the largest size.
ADMISSION_LIMITS: Final = Limits(
    requests=Limit(everyone=256, caller=128),
    watchers=Limit(everyone=128, caller=64),
    bodies=Limit(everyone=8, caller=2),
    answers=ANSWERS,
    head_seconds=10.0,
    idle_seconds=120.0,
)


class CgroupFollower(Protocol):
    """Notices changes in cgroups (`agent.server.watches.CgroupChanges`)."""

    def follow(self, cgroups: Iterable[str], renewed: Collection[str] = ()) -> None:
        """Watch exactly these cgroups, those at and below `renewed` again; raises `OSError`."""

    def also(self, cgroups: Iterable[str]) -> None:
        """Watch these cgroups in addition; raises `OSError`."""

    def changes(self) -> AsyncIterator[tuple[str, ...]]:
        """Yield whenever something changed, with the cgroups that were created."""


class Companion(Struct, frozen=True):
    """What runs beside the agent's own loops, such as a connection to a container runtime.

    `name` is what conditions call it. `serve` runs until it is cancelled; what a neighbour does
    wrong does not end it.
    """

    name: str
    serve: Callable[[], Awaitable[None]]


class Listeners(Struct, frozen=True):
    """The listener of the API, the socket of metrics (and its TLS settings), podresources."""

    admission: UnixListener
    metrics: socket.socket | None = None
    tls: ssl.SSLContext | None = None
    pod_resources: PodResourcesListener | None = None

    @property
    def metrics_port(self) -> int:
        """The actual port of the metrics listener; 0 without one."""
        return 0 if self.metrics is None else int(self.metrics.getsockname()[1])


class HostInputs(Struct, frozen=True):
    """What the service reads of the host and of others; inputs that are None are not read.

    `fingerprint` is cheap and changes when CPUs or nodes go offline or come online, `withheld`
    reads which of the online CPUs pods cannot have; `discover` reads the host. All three block.
    `hotplug` opens a stream that yields on changes. `intakes` are those of all sources of pods.
    `offered` makes the policy with what the providers of devices offer now. `companions` run once
    the agent is ready.
    """

    discover: Callable[[], ConfiguredHost] | None = None
    fingerprint: Callable[[], str] | None = None
    withheld: Callable[[Mask], tuple[WithheldCpus, ...]] | None = None
    hotplug: Callable[[], AsyncIterator[object]] | None = None
    cgroups: CgroupFollower | None = None
    intakes: tuple[PodIntake, ...] = ()
    offered: Callable[[], ConfiguredHost] | None = None
    companions: tuple[Companion, ...] = ()


class Service:
    """Runs the controller's queue, both listeners, and periodic actions (`period` in seconds)."""

    def __init__(
        self,
        controller: Controller,
        api: Api,
        listeners: Listeners,
        around: HostInputs,
        manager: ServiceManager,
        clock: Clock,
        period: float,
    ) -> None:
        self._controller = controller
        self._progress = controller.state.parts.progress
        self._loops = Loops(controller.state.observed.conditions, self._progress, clock)
        late = LATE_PERIODS * period + LATE_ACTIONS * STALL_SECONDS
        #: The comparison with the kernel, whatever asks for it.
        self._comparison = self._progress.part("comparison with the kernel", late)
        self._comparison.begin()
        self._api = api
        self._listeners = listeners
        self._around = around
        self._manager = manager
        self._clock = clock
        self._period = period
        self._stop = asyncio.Event()
        self._compare = asyncio.Event()
        self._rescans = [(intake, asyncio.Event()) for intake in around.intakes]
        self._rediscover = asyncio.Event()
        self._end = asyncio.Event()
        self._listen = asyncio.Event()
        #: Cgroups that were created and not yet written, and that there are any.
        self._created: set[str] = set()
        self._appeared = asyncio.Event()
        self._served: list[Listener] = []
        #: Of all listeners of HTTP, as far as connections wait to be accepted.
        self._accepting = controller.state.parts.progress.part("accepting of connections")
        self._offered = asyncio.Event()
        controller.outcomes.follow(self._follow_also)
        self._fingerprint: str | None = None
        pending = controller.state.observed.pending
        pending[COMPARISON] = "the kernel has not been compared with the ledger yet"

    def stop(self) -> None:
        """Request the stop; running workloads are not changed."""
        self._stop.set()

    def resync(self) -> None:
        """Request to read the host and the sources of pods again and to reconcile."""
        log.info("resync requested")
        for asked in (self._rediscover, self._compare):
            asked.set()
        self._read_sources()

    async def run(self) -> None:
        """Run until `stop`."""
        controller = self._controller
        serving = asyncio.create_task(controller.queue.serve())
        served: list[Listener | PodResourcesListener] = []
        try:
            await self._until_stopped(self._live(served))
        finally:
            self._manager.stopping()
            controller.state.observed.ready = False
            controller.publish("AgentStopped", message=f"process {os.getpid()}")
            controller.events.close()
            # First, so that callers of actions that were not started get an error.
            controller.queue.stop()
            await asyncio.gather(*(listener.stop() for listener in served))
            await serving
            controller.worker.close()
            self._api.close()
            log.info("stopped, workloads left unchanged")

    async def _live(self, served: list[Listener | PodResourcesListener]) -> None:
        for listener in self._make_listeners():
            served.append(listener)
            self._served.append(listener)
            await listener.start()
        if self._listeners.pod_resources is not None:
            served.append(self._listeners.pod_resources)
            await self._listeners.pod_resources.start()
        self._publish_start()
        await self._remember_host()
        await self._loops.attempt(self._reconcile, "reconcile")
        self._controller.outcomes.note_recovered()
        for intake in self._around.intakes:
            await self._loops.attempt(partial(self._sync, intake), _sync_of(intake))
        async with asyncio.TaskGroup() as group:
            for name, loop in self._make_loops():
                group.create_task(self._loops.never_ending(name, loop))
            if self._around.offered is not None:
                # What starts after the agent may register once, and finds the socket.
                for provider in self._controller.state.parts.providers.all:
                    await wait_for(provider.settled, SETTLE_PATIENCE, self._clock)
            self._controller.state.observed.ready = True
            self._manager.ready(self._status())
            log.info("ready", pods=len(self._controller.state.ledger.allocations))

    def _publish_start(self) -> None:
        """Publish the start of the agent, and what changed since its last run."""
        controller = self._controller
        controller.publish("AgentStarted", message=f"version {__version__}, process {os.getpid()}")
        changes = controller.state.start.changed_before
        if changes.host:
            controller.publish("HostChanged", message="; ".join(changes.host))
        if changes.policy:
            controller.publish("ConfigurationChanged", message="; ".join(changes.policy))

    def _make_loops(self) -> Iterator[tuple[str, Coroutine[None, None, None]]]:
        """Yield what goes on until the agent stops, by name."""
        around = self._around
        actions: list[tuple[asyncio.Event, float | None, Callable[[], Awaitable[None]], str]] = [
            (self._compare, self._period, self._reconcile, "reconcile"),
            (self._end, END_PERIOD, self._controller.end_pods, "end pods"),
            (self._listen, END_PERIOD, self._check_listeners, "listeners"),
            (self._rediscover, None, self._take_over, "take over"),
        ]
        streams: list[tuple[str, Callable[[], AsyncIterator[object]], asyncio.Event]] = []
        for intake, asked in self._rescans:
            sync, source = partial(self._sync, intake), intake.source
            actions.append((asked, SOURCE_PERIOD, sync, _sync_of(intake)))
            streams.append((f"changes of {source.name}", source.changes, asked))
        if around.cgroups is not None:
            yield (
                "new cgroups",
                self._loops.repeat(
                    self._appeared,
                    None,
                    self._meet,
                    "new cgroups",
                    settle=0,
                    spacing=APPEARED_SECONDS,
                ),
            )
            changes = partial(self._cgroup_changes, around.cgroups)
            streams.append(("cgroup changes", changes, self._compare))
        if around.hotplug is not None:
            streams.append(("hotplug events", around.hotplug, self._rediscover))
        if around.offered is not None:
            actions.append((self._offered, None, self._take_offer, "take offer"))
            for provider in self._controller.state.parts.providers.all:
                yield f"devices of {provider.name}", self._serve(provider)
        for action in actions:
            yield action[-1], self._loops.repeat(*action)
        for stream in streams:
            yield stream[0], self._loops.pump(*stream)
        for companion in around.companions:
            yield companion.name, self._accompany(companion)
        if self._manager.ping_seconds is not None:
            yield "watchdog", self._ping(self._manager.ping_seconds)

    async def _reconcile(self) -> None:
        if await self._host_changed():
            self._rediscover.set()
        await self._controller.reconcile()
        self._comparison.begin()
        self._end.set()
        self._follow_cgroups()
        self._manager.status(self._status())

    async def _cgroup_changes(self, watched: CgroupFollower) -> AsyncIterator[None]:
        """Yield whenever something changed; what was created does not wait for the comparison."""
        async for created in watched.changes():
            if created:
                self._created.update(created)
                self._appeared.set()
            yield

    async def _meet(self) -> None:
        """Enforce the pods in which cgroups were created; see that these pods can have their CPUs.

        A pod may have been admitted since another program's partition took them.
        """
        created, self._created = self._created, set()
        await self._controller.meet(created)
        if await self._host_changed():
            self._rediscover.set()

    async def _check_listeners(self) -> None:
        """Listen again where the API's socket file is gone, or is another one; raises `StartError`.

        The last of the listeners is the API's.
        """
        standing = [how for each in self._served if (how := each.standing())]
        if not standing:
            self._accepting.rest()
        elif not self._accepting.owes:
            log.error("connections not accepted", why=standing)
            self._accepting.begin()
        admission = self._listeners.admission
        if not admission.has_file():
            log.warning("socket file gone or replaced", path=str(admission.path))
            admission.open_again()
            await self._served[-1].listen(admission.socket)
            log.info("listening again", path=str(admission.path))

    async def _sync(self, intake: PodIntake) -> None:
        name = intake.source.name
        try:
            await intake.sync()
        except SourceUnreadableError as error:
            if self._controller.state.observed.sources.note_unreadable(name, error):
                log.error("source of pods unreadable", source=name, why=str(error))  # noqa: TRY400  # not a defect of the agent
            return
        self._follow_cgroups()

    def _read_sources(self) -> None:
        for _, asked in self._rescans:
            asked.set()

    async def _take_over(self) -> None:
        if self._around.discover is None:
            return
        if await self._controller.take_over(self._around.discover):
            self._compare.set()
            self._read_sources()
        await self._remember_host()

    async def _take_offer(self) -> None:
        if self._around.offered is not None:
            await self._controller.take_over(self._around.offered)
            # There may be room now for what was rejected.
            self._controller.state.observed.releases += 1
            self._read_sources()

    async def _remember_host(self) -> None:
        if self._around.fingerprint is not None:
            self._fingerprint = await self._controller.worker.run(self._around.fingerprint)

    async def _host_changed(self) -> bool:
        around, run = self._around, self._controller.worker.run
        if around.withheld is not None:
            host = self._controller.state.configured.host
            if await run(around.withheld, host.online) != host.withheld:
                return True
        return around.fingerprint is not None and await run(around.fingerprint) != self._fingerprint

    def _follow_cgroups(self) -> None:
        watched, controller = self._around.cgroups, self._controller
        bindings = controller.state.durable.bindings
        # The root, too: what appears at the top follows at once. So does a unit that was bound.
        above = {"", *(parent(binding.cgroup) for binding in bindings)}
        if watched is not None and self._watching(
            lambda: watched.follow(
                {*above, *controller.outcomes.cgroups}, controller.outcomes.renewed
            )
        ):
            controller.outcomes.renewed.clear()
            controller.state.observed.conditions.pop(_INOTIFY, None)

    def _follow_also(self, cgroups: Iterable[str]) -> None:
        watched = self._around.cgroups
        if watched is not None:
            self._watching(lambda: watched.also(cgroups))

    def _watching(self, watch: Callable[[], None]) -> bool:
        try:
            watch()
        except OSError as error:
            hint = "raise fs.inotify.max_user_watches"
            self._controller.state.observed.conditions[_INOTIFY] = (
                f"not all cgroups are watched: {error.strerror}; {hint}"
            )
            return False
        return True

    async def _until_stopped(self, life: Coroutine[None, None, None]) -> None:
        living = asyncio.create_task(life)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((living, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not living.done():
            living.cancel()
            await asyncio.wait((living,))
        if not living.cancelled():
            living.result()

    async def _serve(self, provider: DeviceProvider) -> None:
        """Run a provider of devices."""
        offered = self._offered.set

        def failed() -> None:
            provider.settled.set()
            offered()

        name = f"devices of {provider.name}"
        await self._loops.keep(name, "are not updated", lambda: provider.serve(offered), failed)

    async def _accompany(self, companion: Companion) -> None:
        """Run a companion of the agent."""
        await self._loops.keep(companion.name, "is away", companion.serve)

    async def _ping(self, period: float) -> None:
        """Ping the watchdog as long as all that must move does."""
        while True:
            if self._progress.failure() is None:
                self._manager.alive()
            await self._clock.sleep(period)

    def _make_listeners(self) -> Iterator[Listener]:
        listeners = self._listeners
        if listeners.metrics is not None:
            controller = self._controller
            monitoring = Monitoring(
                controller.metrics, self._progress, controller.state, controller.queue
            )
            routes = monitoring.routes()
            callers = callers_of(listeners.metrics)
            metrics = HttpServer(routes, METRICS_LIMITS, callers, listeners.tls)
            yield Listener(metrics, listeners.metrics)
        size = self._api.max_bytes
        limits = replace(
            ADMISSION_LIMITS, body_bytes=size, bodies=ADMISSION_LIMITS.bodies.times(size)
        )
        api = HttpServer(self._api.answer, limits, user_caller, failed=answer_without_handler)
        yield Listener(api, listeners.admission.socket)

    def _status(self) -> str:
        state = self._controller.state
        pods, cpus = len(state.ledger.allocations), len(exclusive_cpus(state.ledger))
        text = f"{pods} pods, {cpus} exclusive CPUs, shared pool {state.shared_pool or 'empty'}"
        unenforced = state.observed.records.unenforced
        return f"{text}, {unenforced} pods not enforced" if unenforced else text


def _sync_of(intake: PodIntake) -> str:
    """Return the subject of the periodic action of a source of pods."""
    return f"sync {intake.source.name}"
