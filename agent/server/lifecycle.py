"""The life of an agent: it starts to listen, compares, admits, is ready, follows changes, stops.

In go the controller, the listeners, and what is noticed of the host and of sources of pods
(`HostInputs`). Out come actions in the controller's line: comparisons with the kernel, readings of
the sources and of the host. Each change of something triggers one of these actions, and most are
repeated from time to time, since a change may be missed. Always true:

- No loop ends the agent, or ends unseen (`agent.server.loops`).
- A stop changes no running workload, and callers of actions that were not started get an error.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from msgspec import Struct

from agent import __version__
from agent.clock import wait_for
from agent.managers.cpu.manager import exclusive_cpus
from agent.progress import STALL_SECONDS
from agent.server.listening import Listening
from agent.server.loops import Loops
from agent.server.observations import COMPARISON
from agent.sources.source import SourceUnreadableError
from cgroupfs.tree import parent

if TYPE_CHECKING:
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
    from agent.server.listening import Listeners
    from agent.server.service_manager import ServiceManager
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


class CgroupFollower(Protocol):
    """Notices changes in cgroups (`agent.server.watches.CgroupChanges`)."""

    def follow(self, cgroups: Iterable[str], renewed: Collection[str] = ()) -> None:
        """Watch exactly these cgroups, those at and below `renewed` again; raises `OSError`."""

    def also(self, cgroups: Iterable[str]) -> None:
        """Watch these cgroups in addition; raises `OSError`."""

    def changes(self) -> AsyncIterator[tuple[str, ...]]:
        """Yield whenever something changed, with the cgroups that were created."""


class Companion(Struct, frozen=True):
    """What runs beside the agent's own loops, such as a connection to a container runtime."""

    #: What conditions call it.
    name: str
    #: Runs until it is cancelled; what a neighbour does wrong does not end it.
    serve: Callable[[], Awaitable[None]]


class HostInputs(Struct, frozen=True):
    """What the service reads, watches and runs; what is None is not there."""

    #: Reads the host. Blocks.
    discover: Callable[[], ConfiguredHost] | None = None
    #: Returns a text that changes when CPUs or nodes go offline or come online. Blocks, is cheap.
    fingerprint: Callable[[], str] | None = None
    #: Returns which of the online CPUs pods cannot have. Blocks.
    withheld: Callable[[Mask], tuple[WithheldCpus, ...]] | None = None
    #: Opens a stream that yields when CPUs, memory or nodes come or go.
    hotplug: Callable[[], AsyncIterator[object]] | None = None
    #: Notices changes in cgroups.
    cgroups: CgroupFollower | None = None
    #: Those of all sources of pods.
    intakes: tuple[PodIntake, ...] = ()
    #: Makes the policy with what the providers of devices offer now.
    offered: Callable[[], ConfiguredHost] | None = None
    #: What runs beside the loops once they have begun.
    companions: tuple[Companion, ...] = ()


class Service:
    """Runs an agent; `period` is the time from one comparison with the kernel to the next (s)."""

    def __init__(
        self,
        controller: Controller,
        api: Api,
        listeners: Listeners,
        inputs: HostInputs,
        manager: ServiceManager,
        clock: Clock,
        period: float,
    ) -> None:
        self._controller = controller
        self._progress = controller.state.parts.progress
        self._loops = Loops(controller.state.observed.conditions, self._progress, clock)
        self._listening = Listening(controller, api, listeners)
        self._inputs = inputs
        self._manager = manager
        self._clock = clock
        self._period = period
        self._stop = asyncio.Event()
        #: What is to be done soon: compare with the kernel, read each source of pods, read the
        #: host, end pods, check the listeners, use what the providers of devices offer.
        self._compare = asyncio.Event()
        self._rescans = [(intake, asyncio.Event()) for intake in inputs.intakes]
        self._rediscover = asyncio.Event()
        self._end = asyncio.Event()
        self._check = asyncio.Event()
        self._offered = asyncio.Event()
        #: Cgroups that were created and not yet written, and whether there are any.
        self._created: set[str] = set()
        self._appeared = asyncio.Event()
        #: `HostInputs.fingerprint` when the host was read last.
        self._fingerprint: str | None = None
        #: The comparison with the kernel, which is late whatever keeps it from being done.
        late = LATE_PERIODS * period + LATE_ACTIONS * STALL_SECONDS
        self._comparison = self._progress.part("comparison with the kernel", late)
        self._comparison.begin()
        pending = controller.state.observed.pending
        pending[COMPARISON] = "the kernel has not been compared with the ledger yet"
        controller.outcomes.follow(self._follow_created)

    def stop(self) -> None:
        """Request the stop; running workloads are not changed."""
        self._stop.set()

    def resync(self) -> None:
        """Request to read the host and the sources of pods again and to reconcile."""
        log.info("resync requested")
        self._rediscover.set()
        self._compare.set()
        self._read_sources()

    async def run(self) -> None:
        """Run until `stop`."""
        controller = self._controller
        serving = asyncio.create_task(controller.queue.serve())
        try:
            await self._until_stopped(self._live())
        finally:
            self._manager.stopping()
            controller.state.observed.ready = False
            controller.publish("AgentStopped", message=f"process {os.getpid()}")
            controller.events.close()
            # First, so that callers of actions that were not started get an error.
            controller.queue.stop()
            await self._listening.stop()
            await serving
            controller.worker.close()
            log.info("stopped, workloads left unchanged")

    async def _live(self) -> None:
        # 1. Answer what is asked; changes are rejected until the agent is ready.
        await self._listening.start()
        self._publish_start()
        # 2. Enforce the restored ledger.
        await self._remember_host()
        await self._loops.attempt(self._reconcile, "reconcile")
        self._controller.outcomes.note_recovered()
        # 3. Admit the pods of each source.
        for intake in self._inputs.intakes:
            await self._loops.attempt(partial(self._sync, intake), _sync_of(intake))
        # 4. Follow changes.
        async with asyncio.TaskGroup() as group:
            for name, loop in self._make_loops():
                group.create_task(self._loops.never_ending(name, loop))
            # 5. Be ready, once device plugins had time to register: what starts after the agent may
            #    register once, and finds the socket.
            if self._inputs.offered is not None:
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
        inputs, repeat, pump = self._inputs, self._loops.repeat, self._loops.pump
        for requested, period, action, name in (
            (self._compare, self._period, self._reconcile, "reconcile"),
            (self._end, END_PERIOD, self._controller.end_pods, "end pods"),
            (self._check, END_PERIOD, self._listening.check, "listeners"),
            (self._rediscover, None, self._take_over, "take over"),
        ):
            yield name, repeat(requested, period, action, name)
        for intake, requested in self._rescans:
            name = _sync_of(intake)
            yield name, repeat(requested, SOURCE_PERIOD, partial(self._sync, intake), name)
            name = f"changes of {intake.source.name}"
            yield name, pump(name, intake.source.changes, requested)
        if inputs.cgroups is not None:
            name, spacing = "new cgroups", APPEARED_SECONDS
            yield name, repeat(self._appeared, None, self._meet, name, settle=0, spacing=spacing)
            name, changes = "cgroup changes", partial(self._cgroup_changes, inputs.cgroups)
            yield name, pump(name, changes, self._compare)
        if inputs.hotplug is not None:
            yield "hotplug events", pump("hotplug events", inputs.hotplug, self._rediscover)
        if inputs.offered is not None:
            yield "take offer", repeat(self._offered, None, self._take_offer, "take offer")
            for provider in self._controller.state.parts.providers.all:
                yield f"devices of {provider.name}", self._serve(provider)
        for companion in inputs.companions:
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
        """Yield whenever something changed. Created cgroups do not wait for the comparison."""
        async for created in watched.changes():
            if created:
                self._created.update(created)
                self._appeared.set()
            yield

    async def _meet(self) -> None:
        """Enforce the pods in which cgroups were created.

        Another program's partition may have taken CPUs of such a pod before it was admitted, so see
        whether the host changed.
        """
        created, self._created = self._created, set()
        await self._controller.meet(created)
        if await self._host_changed():
            self._rediscover.set()

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
        for _, requested in self._rescans:
            requested.set()

    async def _take_over(self) -> None:
        if self._inputs.discover is None:
            return
        if await self._controller.take_over(self._inputs.discover):
            self._compare.set()
            self._read_sources()
        await self._remember_host()

    async def _take_offer(self) -> None:
        if self._inputs.offered is not None:
            await self._controller.take_over(self._inputs.offered)
            # There may be room now for what was rejected.
            self._controller.state.observed.releases += 1
            self._read_sources()

    async def _remember_host(self) -> None:
        if self._inputs.fingerprint is not None:
            self._fingerprint = await self._controller.worker.run(self._inputs.fingerprint)

    async def _host_changed(self) -> bool:
        inputs, run = self._inputs, self._controller.worker.run
        if inputs.withheld is not None:
            host = self._controller.state.configured.host
            if await run(inputs.withheld, host.online) != host.withheld:
                return True
        return inputs.fingerprint is not None and await run(inputs.fingerprint) != self._fingerprint

    def _follow_cgroups(self) -> None:
        """Watch the observed cgroups and no others."""
        cgroups, controller = self._inputs.cgroups, self._controller
        if cgroups is None:
            return
        # The root, too: cgroups that appear at the top are written at once. So is a unit that was
        # bound.
        above = {"", *(parent(binding.cgroup) for binding in controller.state.durable.bindings)}
        desired, renewed = {*above, *controller.outcomes.cgroups}, controller.outcomes.renewed
        if self._watching(lambda: cgroups.follow(desired, renewed)):
            renewed.clear()
            controller.state.observed.conditions.pop(_INOTIFY, None)

    def _follow_created(self, created: Iterable[str]) -> None:
        """Watch cgroups that enforcement created before the first process of their pod starts."""
        cgroups = self._inputs.cgroups
        if cgroups is not None:
            self._watching(lambda: cgroups.also(created))

    def _watching(self, watch: Callable[[], None]) -> bool:
        """Change which cgroups are watched; return whether the kernel allowed all watches."""
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

    def _status(self) -> str:
        state = self._controller.state
        pods, cpus = len(state.ledger.allocations), len(exclusive_cpus(state.ledger))
        text = f"{pods} pods, {cpus} exclusive CPUs, shared pool {state.shared_pool or 'empty'}"
        unenforced = state.observed.records.unenforced
        return f"{text}, {unenforced} pods not enforced" if unenforced else text


def _sync_of(intake: PodIntake) -> str:
    """Return the subject of the periodic action of a source of pods."""
    return f"sync {intake.source.name}"
