"""What runs beside the agent's own loops where there is a kubelet; imported only then.

That is what answers the container runtime, what is asked for the kubelet's devices, and, for pods
that opted in, what answers the kubelet's device manager (`OptInAdmissions`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from agent.api.documents import RuntimeDocument
from agent.cluster.handover import still_allocated
from agent.cluster.kubelet.devices import KubeletDevices
from agent.cluster.kubelet.source import KubeletPods
from agent.cluster.runtime_events import SUBJECT, RuntimeEvents
from agent.server import metrics as names
from agent.server.errors import EXPECTED, message_of
from agent.server.lifecycle import Companion
from agent.server.queue import QueueStopped
from agent.server.watches import directory_names
from agent.sources.source import REJECTED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from pathlib import Path

    from agent.api.documents import ManifestDocument
    from agent.cluster.kubelet.exclusive_plugin import ExclusivePlugin
    from agent.cluster.nri.session import SessionState
    from agent.config.cluster import BesideKubeletConfig
    from agent.pods.model import Pod
    from agent.server.controller import Controller
    from agent.server.intake import PodIntake


_PLUGIN: Final = "device plugin of the kubelet"
_DEVICES: Final = "devices of the kubelet"
#: After which the runtime gets an answer without settings, in seconds, if it does not say that it
#: waits for less: it waits 2 s, and for no other request meanwhile.
_LONGEST_ANSWER: Final = 1.6

log = structlog.get_logger(__name__)


def of_kubelet(
    config: BesideKubeletConfig, controller: Controller, intakes: Iterable[PodIntake]
) -> Iterator[Companion]:
    """Yield the companions that a configuration asks for, for the intake of the kubelet's pods."""
    devices = controller.state.parts.kubelet_devices
    if isinstance(devices, KubeletDevices):
        yield Companion(_DEVICES, partial(devices.follow, controller.clock))
    for intake in intakes:
        if not isinstance(intake.source, KubeletPods):
            continue
        if config.nri_socket is not None:
            yield _runtime(config.nri_socket, config, controller, intake, intake.source)
        if config.exclusive_resource:
            plugin = _exclusive_plugin(config, controller, intake, intake.source)
            yield Companion(_PLUGIN, plugin.serve)


def _runtime(
    socket: Path,
    config: BesideKubeletConfig,
    controller: Controller,
    intake: PodIntake,
    pods: KubeletPods,
) -> Companion:
    from agent.cluster.nri.session import NriSession  # noqa: PLC0415  # if it is on

    events = RuntimeEvents(controller, pods, intake, config.on_reject)
    session = NriSession(
        socket, events, controller.clock, seconds=_LONGEST_ANSWER, observe=events.observe
    )
    controller.state.parts.runtime = lambda: _runtime_document(session.state)

    async def serve() -> None:
        try:
            await session.serve()
        finally:
            await events.close()

    return Companion(SUBJECT, serve)


def _runtime_document(session: SessionState) -> RuntimeDocument:
    runtime = session.runtime
    return RuntimeDocument(
        connected=session.connected,
        since=session.since,
        name="" if runtime is None else runtime.name,
        version="" if runtime is None else runtime.version,
        nri_version="" if runtime is None else runtime.nri_version,
        connections=session.connections,
        error="" if session.connected else session.last_error,
    )


def _exclusive_plugin(
    config: BesideKubeletConfig, controller: Controller, intake: PodIntake, pods: KubeletPods
) -> ExclusivePlugin:
    from agent.cluster.kubelet.exclusive_plugin import ExclusivePlugin  # noqa: PLC0415  # if it is on

    conditions = controller.state.observed.conditions

    def report(line: str) -> None:
        if line:
            conditions[config.exclusive_resource] = line
        else:
            conditions.pop(config.exclusive_resource, None)

    decisions = OptInAdmissions(config.exclusive_resource, controller, pods, intake.sync)
    return ExclusivePlugin(
        config.plugin_directory,
        config.exclusive_resource,
        decisions.decide,
        directory_names,
        controller.clock,
        report,
        partial(controller.metrics.counters.add, names.OPT_IN_ANSWERS),
    )


class OptInAdmissions:
    """Decides pods that ask for `resource` while the kubelet admits them, one after the other.

    The kubelet does not say for which pod it asks a device plugin. It admits one pod after the
    other, and lists a pod from just before its admission on: so the pod is the one that asks for
    the resource and was not in the list of the call before. A pod with several containers is asked
    for once for each of them, with the same list every time.

    A rejected pod is `Failed` for good. So where a later decision may be another one, none is
    given, and the pod passes: its containers are rejected when they are created, until there is
    room.

    `pods` is the source of the kubelet's pods, `sync` has the controller admit and remove what it
    asks for.
    """

    def __init__(
        self,
        resource: str,
        controller: Controller,
        pods: KubeletPods,
        sync: Callable[[], Awaitable[None]],
    ) -> None:
        self._resource = resource
        self._controller = controller
        self._pods = pods
        self._sync = sync
        self._listing = asyncio.Lock()
        #: The uids of the last list that asked for the resource.
        self._listed: frozenset[str] = frozenset()
        #: The last pod that was decided, and its decision.
        self._last = ""
        self._decision: asyncio.Task[str | None] | None = None

    async def decide(self, deadline: float) -> str | None:
        """Return why the pod that the kubelet admits now is rejected, reason first.

        "" if the pod is admitted, None if it is not decided until the `deadline` of the
        controller's clock.
        A decision that has begun is finished even if the caller is cancelled.
        """
        async with self._listing:
            await self._look(max(0.0, deadline - self._controller.clock.monotonic()))
            decision = self._decision
        return None if decision is None else await asyncio.shield(decision)

    async def _look(self, seconds: float) -> None:
        """Begin the decision of the pod that is new since the last list, if there is one."""
        listed = await self._pods.list_now(seconds)
        if listed is None:
            self._pass_on("the kubelet does not list its pods now")
            return
        asking = frozenset(pod.uid for pod in listed if self._opted_in(pod))
        new, self._listed = asking - self._listed, asking
        if not new and self._last in asking:
            if not self._is_open():
                return  # it is asked for a further container of the pod
            new = frozenset((self._last,))  # a static pod that was made again keeps its uid
        if len(new) > 1:
            new = frozenset(uid for uid in new if not self._is_decided(uid))
        if len(new) != 1:
            self._pass_on(f"{len(new)} of {len(asking)} pods may be the one that is admitted")
            return
        [self._last] = new
        self._decision = asyncio.create_task(self._decide(self._last))

    def _pass_on(self, why: str) -> None:
        self._decision = None
        log.warning("opt-in pod not decided", why=why)

    async def _decide(self, uid: str) -> str | None:
        try:
            await self._sync()
        except (*EXPECTED, QueueStopped) as error:
            log.warning("opt-in pod not decided", uid=uid, why=message_of(error))
            return None
        if self._has_allocation(uid):
            return ""
        entry = self._entry(uid)
        if entry is None or entry.state != REJECTED:
            why = "the source of pods does not have it" if entry is None else entry.message
            log.warning("opt-in pod not decided", uid=uid, why=why)
            return None
        ending = still_allocated(self._controller.state.ledger.allocations, self._pods.ending)
        if ending:
            log.warning("opt-in pod not decided", uid=uid, why=f"{entry.message}; {ending}")
            return None
        log.info("opt-in pod rejected", uid=uid, why=entry.message)
        return entry.message

    def _is_open(self) -> bool:
        """Whether the last pod is to be decided again: its decision was not to admit the pod."""
        decision = self._decision
        if decision is None or not decision.done():
            return decision is None
        if decision.cancelled() or decision.exception() is not None:
            return True
        return decision.result() != "" or not self._has_allocation(self._last)

    def _has_allocation(self, uid: str) -> bool:
        return uid in self._controller.state.ledger.allocations

    def _is_decided(self, uid: str) -> bool:
        if self._has_allocation(uid):
            return True
        entry = self._entry(uid)
        return entry is not None and entry.state == REJECTED

    def _entry(self, uid: str) -> ManifestDocument | None:
        source = self._controller.state.observed.sources.by_name[self._pods.name]
        return source.entries.get(self._pods.key(uid))

    def _opted_in(self, pod: Pod) -> bool:
        return any(
            (amount := container.resources.limits.get(self._resource)) is not None
            and amount.nano > 0
            for container in pod.all_containers()
        )
