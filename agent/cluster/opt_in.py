"""The decision of a pod that opted in, while the kubelet admits it (`OptInAdmissions`).

In: a call of the kubelet's device manager, which does not name the pod. Out: the reason of the
pod's rejection, "" for an admitted pod, None for a pod that was not decided.

Which pod it is: the kubelet admits one pod after the other, and lists a pod from just before its
admission on. So it is the pod that asks for the resource and was not in the list of the call
before. The kubelet calls once for each container of the pod, and lists the same pods each time.

A rejected pod is `Failed` for good. So no pod is rejected while another pod that may have ended
still has its allocation: the kubelet admits the pod undecided, and the creation of its containers
fails until there is room.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

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


class _Decision(NamedTuple):
    uid: str
    task: asyncio.Task[str | None]


class OptInAdmissions:
    """Decides pods that ask for `resource`, one after the other.

    `pods` is the source of the kubelet's pods. `sync` has the controller admit the pods of that
    source that are new, and remove those that are gone.
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
        #: The decision of the pod of the last call; None if that pod is not known.
        self._last: _Decision | None = None

    async def decide(self, deadline: float) -> str | None:
        """Return why the pod that the kubelet admits now is rejected, reason first.

        "" if the pod is admitted, None if it is not decided. The kubelet may list its pods until
        the `deadline` of the controller's clock; the decision that follows has no deadline, and
        goes on if the caller is cancelled. What `sync` raises is raised, except `EXPECTED` and
        `QueueStopped`, which leave the pod undecided.
        """
        async with self._listing:
            await self._begin(max(0.0, deadline - self._controller.clock.monotonic()))
            last = self._last
        return None if last is None else await asyncio.shield(last.task)

    async def _begin(self, seconds: float) -> None:
        """Begin the decision of the pod that is new since the last list, if there is one."""
        listed = await self._pods.list_now(seconds)
        if listed is None:
            self._leave_undecided("the kubelet does not list its pods now")
            return
        asking = frozenset(pod.uid for pod in listed if self._opted_in(pod))
        new, self._listed = asking - self._listed, asking
        last = self._last
        if not new and last is not None and last.uid in asking:
            if not self._is_open(last):
                return  # the call is for a further container of the last pod
            new = frozenset((last.uid,))  # a static pod that was made again keeps its uid
        if len(new) > 1:
            new = frozenset(uid for uid in new if not self._is_decided(uid))
        if len(new) != 1:
            self._leave_undecided(f"{len(new)} of {len(asking)} pods may be the one of this call")
            return
        [uid] = new
        self._last = _Decision(uid, asyncio.create_task(self._decide(uid)))

    def _leave_undecided(self, why: str) -> None:
        self._last = None
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

    def _is_open(self, last: _Decision) -> bool:
        """Whether a pod is to be decided again, since its decision did not admit it."""
        if not last.task.done():
            return False
        if last.task.cancelled() or last.task.exception() is not None:
            return True
        return last.task.result() != "" or not self._has_allocation(last.uid)

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
