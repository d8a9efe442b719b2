"""The controller's queue of actions, and the thread for blocking work."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, TypeVar

import structlog
from msgspec import Struct, field

from agent.progress import EndedError, moved, pause, uncancelled
from agent.server.errors import BusyError
from agent.server.limits import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from agent.progress import Progress

log = structlog.get_logger(__name__)

#: So many actions of a caller that is not privileged may wait.
MOST_WAITING: Final = 128
#: The agent's own actions, such as comparisons and those of its sources, go with root's.
OWN: Final = Caller("the agent", privileged=True)
_caller: ContextVar[Caller] = ContextVar("caller", default=OWN)

_Item = TypeVar("_Item")
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
                    moved()

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


class Line(Generic[_Item]):
    """What waits, by caller.

    Items of privileged callers alternate with those of the rest, and these come in turn by caller,
    each caller's in the order of their arrival. So an item waits for one of each other caller.
    """

    def __init__(self) -> None:
        self._privileged: deque[_Item] = deque()
        self._others: dict[Caller, deque[_Item]] = {}
        self._went_privileged = False

    def __len__(self) -> int:
        return len(self._privileged) + sum(map(len, self._others.values()))

    def of(self, caller: Caller) -> int:
        """Return how many items of a caller wait; all privileged ones count as one caller."""
        return len(self._privileged if caller.privileged else self._others.get(caller, ()))

    def append(self, item: _Item, caller: Caller) -> None:
        """Add an item behind the caller's others."""
        if caller.privileged:
            self._privileged.append(item)
        else:
            self._others.setdefault(caller, deque()).append(item)

    def popleft(self) -> _Item:
        """Remove and return the item whose turn it is; raises `IndexError` without any."""
        self._went_privileged = bool(self._privileged) and not (
            self._went_privileged and self._others
        )
        if self._went_privileged or not self._others:
            return self._privileged.popleft()
        caller = next(iter(self._others))
        line = self._others.pop(caller)
        item = line.popleft()
        if line:  # behind the other callers
            self._others[caller] = line
        return item


class Turns:
    """Lets one task at a time go on; those that wait do so in a `Line`."""

    def __init__(self) -> None:
        self._line: Line[asyncio.Future[None]] = Line()
        self._taken = False

    def waiting(self, caller: Caller) -> int:
        """Return how many tasks of a caller wait, with those cancelled since the last turn."""
        return self._line.of(caller)

    async def __aenter__(self) -> None:
        if not self._taken:
            self._taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn, caller_now())
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came at the same moment
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        """Give the turn to the next task that still waits."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


class _Job(Struct, Generic[_Result]):
    action: Callable[[], Coroutine[None, None, _Result]]
    outcome: asyncio.Future[_Result]
    begun: Callable[[], None] = field(default_factory=pause)
    caller: Caller = field(default_factory=caller_now)
    context: Context = field(default_factory=copy_context)


class SerialQueue:
    """Runs asynchronous actions strictly one after another.

    Actions queued with `ahead` alternate with all others, which come in the order of a `Line`. So
    no kind starves. An action is dropped if its caller was cancelled before it began, and finished
    otherwise. `finished` counts completed actions, including failed ones.
    """

    def __init__(self, progress: Progress) -> None:
        self.finished = 0
        self._ahead: deque[_Job[object]] = deque()
        self._others: Line[_Job[object]] = Line()
        self._went_ahead = False
        self._woken = asyncio.Event()
        self._stopping = False
        #: What else ends when the queue stops: what will be queued again.
        self.at_stop: list[Callable[[], None]] = []
        #: Owes progress while anything waits or runs.
        self._part = progress.part("queue of changes")

    @property
    def waiting(self) -> int:
        """The number of queued actions."""
        return len(self._ahead) + len(self._others)

    async def run(
        self, action: Callable[[], Coroutine[None, None, _Result]], *, ahead: bool = False
    ) -> _Result:
        """Queue an action and return its result; raises `QueueStopped`, `BusyError`."""
        return await self.put(action, ahead=ahead)

    def put(
        self, action: Callable[[], Coroutine[None, None, _Result]], *, ahead: bool = False
    ) -> asyncio.Future[_Result]:
        """Queue an action and return what will be its result.

        Raises `QueueStopped`, and `BusyError` if too many of the caller's actions wait.
        """
        if self._stopping:
            raise QueueStopped
        outcome: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        job = _Job(action, outcome)
        outcome.add_done_callback(lambda _: job.begun())
        if ahead:
            self._ahead.append(job)  # type: ignore[arg-type]  # a queue of any
        elif job.caller.privileged or self._others.of(job.caller) < MOST_WAITING:
            self._others.append(job, job.caller)  # type: ignore[arg-type]  # a queue of any
        else:
            raise BusyError
        if not self._part.owes:
            self._part.begin()
        self._woken.set()
        return outcome

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
            if job.outcome.done():  # its caller is gone
                continue
            try:
                result, error = await outcome_of(self._watched(job), job.context)
                if error is None:
                    _settle(job.outcome, result)
                else:
                    _settle(job.outcome, error=error)
            finally:
                # Without an outcome the caller would wait for ever.
                _settle(job.outcome, error=EndedError())
                self.finished += 1

    async def _watched(self, job: _Job[object]) -> object:
        job.begun()
        with self._part.working():
            return await job.action()

    def stop(self) -> None:
        """Accept no more actions; callers of queued ones get `QueueStopped`."""
        self._stopping = True
        for line in (self._ahead, self._others):
            while line:
                _settle(line.popleft().outcome, error=QueueStopped())
        for end in self.at_stop:
            end()
        self._woken.set()

    async def _next(self) -> _Job[object] | None:
        while not self._stopping:
            self._went_ahead = bool(self._ahead) and not (self._went_ahead and self._others)
            if self._went_ahead or self._others:
                self._part.begin()
                return (self._ahead if self._went_ahead else self._others).popleft()
            self._part.rest()
            self._woken.clear()
            await self._woken.wait()
        self._part.rest()
        return None


def _settle(
    outcome: asyncio.Future[_Result],
    result: _Result | None = None,
    error: BaseException | None = None,
) -> None:
    """Give a caller that still waits the result or the error."""
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)  # type: ignore[arg-type]  # None is a result, too
