"""Admissions that wait at the same time: decided one after the other, saved and enforced together.

A save of the checkpoint waits for the disk, and an enforcement that changes the shared pool writes
the cgroups of all classes and sets units of systemd, for one pod as for ten. Pods come in
groups: those of a node that starts, of a job, of a deployment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct, field

from agent.progress import EndedError, moved, pause
from agent.server.control.queue import QueueStopped, caller_now, outcome_of
from agent.server.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from agent.api.documents import AdmissionDocument
    from agent.managers.allocations.origin import Source
    from agent.pods.model import Pod
    from agent.server.control.queue import SerialQueue
    from agent.server.listeners.limits import Caller

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
    caller: Caller = field(default_factory=caller_now)
    context: Context = field(default_factory=copy_context)

    async def run(self, work: Coroutine[None, None, _Result]) -> _Result | None:
        """Return what work on this request returns, in its context; None: the caller gets an error.

        The error is what the work raised.
        """
        result, error = await outcome_of(work, self.context)
        if error is not None:
            self.fail(error)
        moved()
        return result

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
        #: The uid of the pod that comes first, and how many actions of each caller are queued.
        self._preferred = ""
        self._queued: Counter[Caller] = Counter()

    @property
    def waiting(self) -> int:
        """The number of requests whose decision has not begun."""
        return len(self._waiting)

    async def admit(self, pod: Pod, source: Source, *, replace_pod: bool) -> AdmissionDocument:
        """Admit a pod with those that wait already; raises `QueueStopped` and what fails.

        A caller that is cancelled before the decision begins no longer asks for it.
        """
        outcome: asyncio.Future[AdmissionDocument] = asyncio.get_running_loop().create_future()
        request = AdmissionRequest(pod, source, replace_pod, outcome)
        self._waiting.append(request)
        decided = pause()
        outcome.add_done_callback(lambda _: decided())
        if pod.uid == self._preferred:
            self._queue_next(ahead=True)
        elif not self._queued[request.caller]:
            self._queue_next()
        return await outcome

    def prefer(self, uid: str) -> None:
        """Admit a pod before all others, and with a few others only, once it is asked for."""
        self._preferred = uid
        if any(request.pod.uid == uid for request in self._waiting):
            self._queue_next(ahead=True)

    def _queue_next(self, *, ahead: bool = False) -> None:
        """Queue an action of the present caller for the requests that wait."""
        caller = caller_now()
        try:
            queued = self._queue.put(self._next, ahead=ahead)
        except QueueStopped as error:
            _fail(self._waiting, error)
        except BusyError as error:
            _fail([each for each in self._waiting if each.caller == caller], error)
        else:
            self._queued[caller] += 1
            queued.add_done_callback(partial(self._done, caller))

    async def _next(self) -> None:
        self._group = []
        await self._admit_all(self._taken())

    def _taken(self) -> Iterator[AdmissionRequest]:
        """Yield the requests of one group, each once the one before it is decided.

        Callers take turns, all privileged ones together and before the others.
        """
        while len(self._group) < MOST_AT_ONCE and (request := self._first()) is not None:
            self._waiting.remove(request)
            self._group.append(request)
            yield request
            preferred = any(each.pod.uid == self._preferred for each in self._group)
            if preferred and len(self._group) >= MOST_WITH_PREFERRED:
                return

    def _first(self) -> AdmissionRequest | None:
        """Return the request whose turn it is; those whose callers are gone are dropped."""
        self._waiting = [each for each in self._waiting if not each.outcome.done()]
        taken = Counter(_turn(each) for each in self._group)
        return min(
            self._waiting,
            key=lambda each: (each.pod.uid != self._preferred, taken[_turn(each)], _turn(each)[0]),
            default=None,
        )

    def _done(self, caller: Caller, queued: asyncio.Future[None]) -> None:
        """Pass on what the action raised, or that the queue stopped before it began."""
        self._queued[caller] -= 1
        error = EndedError() if queued.cancelled() else queued.exception()
        if isinstance(error, QueueStopped):
            _fail(self._waiting, error)
        else:  # a caller without an outcome would wait for ever
            _fail(self._group, error or EndedError())
        if not self._queued[caller] and any(each.caller == caller for each in self._waiting):
            self._queue_next()


def _turn(request: AdmissionRequest) -> tuple[bool, str]:
    """Return whose turn a request is of; that of privileged callers comes first."""
    caller = request.caller
    return (False, "") if caller.privileged else (True, caller.name)


def _fail(requests: list[AdmissionRequest], error: BaseException) -> None:
    for request in requests:
        request.fail(error)
    requests.clear()
