"""Admissions that wait at the same time: decided one after the other, saved and enforced together.

A save of the checkpoint waits for the disk, and an enforcement that changes the shared pool writes
the cgroups of all classes and sets units of systemd, for one pod as for ten. Pods come in
groups: those of a node that starts, of a job, of a deployment.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct, field

from agent.server.control.queue import QueueStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from agent.api.documents import AdmissionDocument
    from agent.managers.allocations.origin import Source
    from agent.pods.model import Pod
    from agent.server.control.queue import SerialQueue

#: So many pods are decided at most before they are saved and enforced: a pod that comes meanwhile
#: waits for as many.
MOST_AT_ONCE: Final = 32
#: So many at most with a pod whose container waits: what they have written is waited for, too.
MOST_WITH_PREFERRED: Final = 4

_Result = TypeVar("_Result")


class AdmissionRequest(Struct, eq=False):
    """One pod to admit, what its caller waits for, and the context of the caller's log lines."""

    pod: Pod
    source: Source
    replace_pod: bool
    outcome: asyncio.Future[AdmissionDocument]
    context: Context = field(default_factory=copy_context)

    async def run(self, work: Coroutine[None, None, _Result]) -> _Result | None:
        """Return what work on this request returns, in its context; None: the caller gets an error.

        The error is what the work raised.
        """
        task = asyncio.create_task(work, context=self.context)
        await asyncio.wait((task,))
        error = task.exception()
        if error is None:
            return task.result()
        self.fail(error)
        return None

    async def answer(self, work: Coroutine[None, None, AdmissionDocument]) -> None:
        """Let the caller have what work returns or raises, unless the caller waits no longer."""
        document = await self.run(work)
        if document is not None and not self.outcome.done():
            self.outcome.set_result(document)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the caller, unless that has an outcome or waits no longer."""
        if not self.outcome.done():
            self.outcome.set_exception(error)


class GroupedAdmissions:
    """Has `admit_all` admit the requests that wait, as many as `MOST_AT_ONCE` in a queued action.

    `admit_all` takes them one by one and gives each its outcome; what it raises is raised in all
    callers without one.
    """

    def __init__(
        self,
        queue: SerialQueue,
        admit_all: Callable[[Iterator[AdmissionRequest]], Coroutine[None, None, None]],
    ) -> None:
        self._queue = queue
        self._admit_all = admit_all
        self._waiting: list[AdmissionRequest] = []
        self._group: list[AdmissionRequest] = []
        #: The uid of the pod that comes first, and how many actions are queued for those waiting.
        self._preferred = ""
        self._queued = 0

    @property
    def waiting(self) -> int:
        """The number of requests whose decision has not begun."""
        return len(self._waiting)

    async def admit(self, pod: Pod, source: Source, *, replace_pod: bool) -> AdmissionDocument:
        """Admit a pod with those that wait already; raises `QueueStopped` and what fails.

        It is admitted even if the caller is cancelled.
        """
        outcome: asyncio.Future[AdmissionDocument] = asyncio.get_running_loop().create_future()
        self._waiting.append(AdmissionRequest(pod, source, replace_pod, outcome))
        if pod.uid == self._preferred:
            self._queue_next(ahead=True)
        elif not self._queued:
            self._queue_next()
        return await outcome

    def prefer(self, uid: str) -> None:
        """Admit a pod before all others, and with a few others only, once it is asked for."""
        self._preferred = uid
        if any(request.pod.uid == uid for request in self._waiting):
            self._queue_next(ahead=True)

    def _queue_next(self, *, ahead: bool = False) -> None:
        try:
            self._queue.put(self._next, ahead=ahead).add_done_callback(self._done)
        except QueueStopped as error:
            _fail(self._waiting, error)
        else:
            self._queued += 1

    async def _next(self) -> None:
        self._group = []
        await self._admit_all(self._taken())

    def _taken(self) -> Iterator[AdmissionRequest]:
        """Yield the requests of one group, each once the one before it is decided."""
        while self._waiting and len(self._group) < MOST_AT_ONCE:
            uids = [request.pod.uid for request in self._waiting]
            place = uids.index(self._preferred) if self._preferred in uids else 0
            self._group.append(self._waiting.pop(place))
            yield self._group[-1]
            preferred = any(request.pod.uid == self._preferred for request in self._group)
            if preferred and len(self._group) >= MOST_WITH_PREFERRED:
                return

    def _done(self, queued: asyncio.Future[None]) -> None:
        """Pass on what the action raised, or that the queue stopped before it began."""
        self._queued -= 1
        error = queued.exception()
        if isinstance(error, QueueStopped):
            _fail(self._waiting, error)
        elif error is not None:
            _fail(self._group, error)
        if self._waiting and not self._queued:
            self._queue_next()


def _fail(requests: list[AdmissionRequest], error: BaseException) -> None:
    for request in requests:
        request.fail(error)
    requests.clear()
