"""The controller's queue of actions, and the thread for blocking work."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

import structlog
from msgspec import Struct, field

from agent.progress import EndedError, pause, progressed, uncancelled
from agent.server.errors import BusyError
from agent.server.limits import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from agent.progress import Progress

log = structlog.get_logger(__name__)

#: So many requests of a user that is not privileged may wait, and so many of all such users.
MOST_OF_USER: Final = 128
MOST_OF_USERS: Final = 256
#: So many urgent requests have their turn while a normal one waits, before that has. A turn may
#: wait seconds for a plugin: with fewer, many urgent ones would wait for as many of these.
MOST_IN_A_ROW: Final = 8
#: The agent's own actions, such as comparisons and those of its sources, go with root's.
OWN: Final = Caller("the agent", privileged=True)
_caller: ContextVar[Caller] = ContextVar("caller", default=OWN)

_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class QueueStopped(Exception):  # noqa: N818  # named after the state
    """The action was requested after the service began to stop and was not started."""

    def __init__(self) -> None:
        super().__init__("the agent is stopping; ask again once it runs")


@contextmanager
def called_by(caller: Caller) -> Iterator[None]:
    """Let what is queued in the block be this caller's."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


def caller_now() -> Caller:
    """Return whose action would be queued now."""
    return _caller.get()


async def outcome_of(
    work: Coroutine[None, None, _Result], context: Context
) -> tuple[_Result | None, BaseException | None]:
    """Return what work returns and what it raises, one of them None; it has a task of its own.

    Work that was cancelled has failed: its caller waits for an answer.
    """
    task = asyncio.create_task(work, context=context)
    await asyncio.wait((task,))
    if task.cancelled():
        log.error("action cancelled", action=getattr(work, "__qualname__", ""))
        return None, EndedError()
    error = task.exception()
    return (task.result(), None) if error is None else (None, error)


class Worker:
    """One thread that runs blocking calls in the order of their requests.

    Cgroup writes, fsync and D-Bus calls may take seconds; the loop must not wait for them. `name`
    is the suffix of the thread's name. The thread is started with the first call.
    """

    def __init__(self, progress: Progress, name: str = "worker") -> None:
        self.progress = progress
        self._part = progress.part(f"thread {name}")
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"numawarden-{name}")

    async def run(
        self, call: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """Run a blocking call in the thread, with the caller's context variables."""
        context = copy_context()

        def watched() -> _Result:
            begun()
            with self._part.working():
                try:
                    return call(*args, **kwargs)
                finally:
                    progressed()

        begun = pause()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, partial(context.run, watched)
            )
        finally:
            begun()

    def close(self) -> None:
        """Finish all requested calls and end the thread."""
        self._pool.shutdown(wait=True)


class Waiting(Struct, Generic[_Result], eq=False, kw_only=True):
    """What waits for its turn, and what its caller gets."""

    outcome: asyncio.Future[_Result]
    caller: Caller = field(default_factory=caller_now)

    @property
    def urgent(self) -> bool:
        """Whether it is of root or the agent's own; the rest are of members of the socket group."""
        return self.caller.privileged


_Item = TypeVar("_Item", bound=Waiting[Any])


class Lanes(Generic[_Item]):
    """What waits, in two lanes, each in the order of arrival.

    In the urgent lane are root's requests and the agent's own, those for which a container waits
    among them; in the normal lane those of members of the socket group. While both wait, one normal
    turn comes after `MOST_IN_A_ROW` urgent ones. Nothing else decides whose turn it is. Of members
    only so many may wait, of each and of all. What has its outcome already is passed over: its
    caller is gone.
    """

    def __init__(self, of_user: int = MOST_OF_USER, of_users: int = MOST_OF_USERS) -> None:
        self._most = of_user, of_users
        self._urgent: deque[_Item] = deque()
        self._normal: deque[_Item] = deque()
        self._in_a_row = 0

    def __len__(self) -> int:
        return len(self._urgent) + len(self._normal)

    def append(self, item: _Item) -> None:
        """Let an item wait; raises `BusyError` if too many of its user wait, or of all users."""
        if item.urgent:
            self._urgent.append(item)
            return
        for gone in [each for each in self._normal if each.outcome.done()]:
            self._normal.remove(gone)
        of_user, of_users = self._most
        own = sum(each.caller == item.caller for each in self._normal)
        if own >= of_user or len(self._normal) >= of_users:
            raise BusyError
        self._normal.append(item)

    def popleft(self) -> _Item | None:
        """Remove and return what has the next turn, None if nothing waits."""
        urgent, normal = self.first(urgent=True), self.first(urgent=False)
        if urgent is not None and (normal is None or self._in_a_row < MOST_IN_A_ROW):
            self._in_a_row += 1
            return self._urgent.popleft()
        self._in_a_row = 0
        return None if normal is None else self._normal.popleft()

    def take(self, first: _Item) -> None:
        """Remove what comes next in its lane: it has no turn of its own."""
        (self._urgent if first.urgent else self._normal).remove(first)

    def first(self, *, urgent: bool) -> _Item | None:
        """Return what comes next in a lane, None if nothing waits in it."""
        lane = self._urgent if urgent else self._normal
        while lane and lane[0].outcome.done():
            lane.popleft()
        return lane[0] if lane else None


class Turns:
    """A lock. Tasks that wait for it do so in two lanes; `async with` raises `BusyError`."""

    def __init__(self, of_user: int = MOST_OF_USER, of_users: int = MOST_OF_USERS) -> None:
        self._lanes: Lanes[Waiting[None]] = Lanes(of_user, of_users)
        self._taken = False

    async def __aenter__(self) -> None:
        if not self._taken:
            self._taken = True
            return
        turn: Waiting[None] = Waiting(outcome=asyncio.get_running_loop().create_future())
        self._lanes.append(turn)
        try:
            await turn.outcome
        except asyncio.CancelledError:
            if not turn.outcome.cancelled():  # the turn came at the same moment
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        turn = self._lanes.popleft()
        if turn is None:
            self._taken = False
        else:
            turn.outcome.set_result(None)


class Job(Waiting[_Result], eq=False, kw_only=True):
    """What waits in the line: an action, and the outcome that its caller waits for."""

    action: Callable[[], Coroutine[None, None, _Result]]
    begun: Callable[[], None] = field(default_factory=pause)
    context: Context = field(default_factory=copy_context)

    def settle(self, result: _Result | None = None, error: BaseException | None = None) -> None:
        """Give a caller that still waits the result or the error."""
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(result)  # type: ignore[arg-type]  # None is a result, too


class SerialQueue:
    """The line: runs asynchronous actions strictly one after another, in the order of `Lanes`.

    An action is dropped if its caller was cancelled before it began, and finished otherwise.
    `finished` counts completed actions, including failed ones.
    """

    def __init__(self, progress: Progress) -> None:
        self.finished = 0
        self._lanes: Lanes[Job[Any]] = Lanes()
        self._woken = asyncio.Event()
        self._stopping = False
        #: Owes progress while anything waits or runs.
        self._part = progress.part("queue of changes")

    @property
    def waiting(self) -> int:
        """The number of queued actions."""
        return len(self._lanes)

    async def run(self, action: Callable[[], Coroutine[None, None, _Result]]) -> _Result:
        """Queue an action and return its result; raises as `add` does."""
        outcome: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        return await self.add(Job(action=action, outcome=outcome))

    def add(self, job: Job[_Result]) -> asyncio.Future[_Result]:
        """Have a job wait for its turn; return its outcome.

        Raises `QueueStopped`, and `BusyError` if too many of the user's wait, or of all users.
        """
        if self._stopping:
            raise QueueStopped
        self._lanes.append(job)
        job.outcome.add_done_callback(lambda _: job.begun())
        if not self._part.owes:
            self._part.begin()
        self._woken.set()
        return job.outcome

    def following(self, job: Job[Any]) -> Job[Any] | None:
        """Return who comes next in the lane of a job; None while an urgent one waits for it."""
        if not job.urgent and self._lanes.first(urgent=True) is not None:
            return None
        return self._lanes.first(urgent=job.urgent)

    def take(self, job: Job[Any]) -> None:
        """Let who comes next have its turn within that of what runs, which settles it."""
        self._lanes.take(job)
        job.begun()

    async def serve(self) -> None:
        """Run actions until `stop`; an action that was started is finished.

        Nothing that an action or a caller does ends this.
        """
        try:
            while not self._stopping:
                try:
                    await uncancelled(self._serve())
                except Exception:
                    log.exception("queue of changes failed")
        finally:
            if not self._stopping:
                self._part.end("it was cancelled")

    async def _serve(self) -> None:
        while (job := await self._next()) is not None:
            try:
                job.settle(*await outcome_of(self._watched(job), job.context))
            finally:
                # Without an outcome the caller would wait for ever.
                job.settle(error=EndedError())
                self.finished += 1

    async def _watched(self, job: Job[_Result]) -> _Result:
        job.begun()
        with self._part.working():
            return await job.action()

    def stop(self) -> None:
        """Accept no more actions; callers of queued ones get `QueueStopped`."""
        self._stopping = True
        while (job := self._lanes.popleft()) is not None:
            job.settle(error=QueueStopped())
        self._woken.set()

    async def _next(self) -> Job[Any] | None:
        while not self._stopping:
            if (job := self._lanes.popleft()) is not None:
                self._part.begin()
                return job
            self._part.rest()
            self._woken.clear()
            await self._woken.wait()
        self._part.rest()
        return None
