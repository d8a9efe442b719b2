"""Pods that opted in: decided while the kubelet admits them, so that the kubelet rejects them.

The kubelet does not say for which pod it asks a device plugin. It admits one pod after the other,
and lists a pod from just before its admission on: so the pod is the one that asks for the resource
and was not in the list of the call before. A pod with several containers is asked for once for
each of them, with the same list every time.

A rejected pod is `Failed` for good. So where a later decision may be another one, none is given,
and the pod passes: its containers are rejected when they are created, until there is room.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from agent.cluster.runtime_events import still_allocated
from agent.server.errors import EXPECTED, message_of
from agent.server.queue import QueueStopped
from agent.sources.source import REJECTED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from agent.api.documents import ManifestDocument
    from agent.pods.model import Pod
    from agent.server.controller import Controller


log = structlog.get_logger(__name__)


class ListedPods(Protocol):
    """What is asked of the kubelet's pods (`agent.cluster.kubelet.source.KubeletPods`)."""

    @property
    def name(self) -> str:
        """The name of the source."""
        ...

    @property
    def ending(self) -> frozenset[str]:
        """The uids of the pods that may have ended, and of which that is not certain yet."""
        ...

    def key(self, uid: str) -> str:
        """Return the key of the entry of a pod."""
        ...

    async def list_now(self, seconds: float) -> Collection[Pod] | None:
        """Return the pods that the kubelet has now and that have not ended.

        They are entries of the source from then on. None if the kubelet does not list them within
        `seconds`.
        """
        ...


class OptInAdmissions:
    """Decides pods that ask for `resource`, one after the other.

    `pods` is the source of the kubelet's pods, `sync` has the controller admit and remove what it
    asks for.
    """

    def __init__(
        self,
        resource: str,
        controller: Controller,
        pods: ListedPods,
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
        source = self._controller.state.sources[self._pods.name]
        return source.entries.get(self._pods.key(uid))

    def _opted_in(self, pod: Pod) -> bool:
        return any(
            (amount := container.resources.limits.get(self._resource)) is not None
            and amount.nano > 0
            for container in pod.all_containers()
        )
