"""The decision of a pod that opted in, while the kubelet admits it (`OptInAdmissions`).

In: a call of the kubelet's device manager, which does not name the pod. Out: why the pod is
rejected ("" if it is admitted), or None if it is not decided.

Which pod it is: the kubelet admits one pod after the other, and lists a pod from just before its
admission on. So it is the pod that asks for the resource and was not in the list of the call
before. A pod with several containers is asked for once for each, with the same list.

A rejected pod is `Failed` for good. So a rejection that a later decision may take back is not
given: the pod passes, and its containers are rejected when they are created, until there is room.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from agent.cluster.handover import still_allocated
from agent.server.errors import EXPECTED, message_of
from agent.server.queue import QueueStopped
from agent.sources.source import REJECTED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.api.documents.status import ManifestDocument
    from agent.cluster.kubelet.source import KubeletPods
    from agent.pods.model import Pod
    from agent.server.controller import Controller

log = structlog.get_logger(__name__)


class OptInAdmissions:
    """Decides pods that ask for `resource`, one after the other.

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

        "" if the pod is admitted, None if the kubelet does not list it until the `deadline` of the
        controller's clock or it is not decided. A decision that has begun goes on if the caller is
        cancelled.
        """
        async with self._listing:
            await self._begin(max(0.0, deadline - self._controller.clock.monotonic()))
            decision = self._decision
        return None if decision is None else await asyncio.shield(decision)

    async def _begin(self, seconds: float) -> None:
        """Begin the decision of the pod that is new since the last list, if there is one."""
        listed = await self._pods.list_now(seconds)
        if listed is None:
            self._pass_on("the kubelet does not list its pods now")
            return
        asking = frozenset(pod.uid for pod in listed if self._opted_in(pod))
        new, self._listed = asking - self._listed, asking
        if not new and self._last in asking:
            if not self._is_open():
                return  # the call is for a further container of the last pod
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
        """Whether the last pod is to be decided again, since its decision did not admit it."""
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
