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


class _Job(Struct, Generic[_Result]):
    action: Callable[[], Coroutine[None, None, _Result]]
    outcome: asyncio.Future[_Result]
    begun: Callable[[], None] = field(default_factory=pause)
    caller: Caller = field(default_factory=caller_now)
    context: Context = field(default_factory=copy_context)


class SerialQueue:
    """Runs asynchronous actions strictly one after another.

    Actions queued with `ahead` alternate with all others, those of privileged callers with those of
    the rest, and these come in turn by caller, each caller's in the order of their arrival. So no
    kind starves, and an action waits for one of each other caller. An action is dropped if its
    caller was cancelled before it began, and finished otherwise. `finished` counts
    completed actions, including failed ones.
    """

    def __init__(self, progress: Progress) -> None:
        self.finished = 0
        self._ahead: deque[_Job[object]] = deque()
        self._privileged: deque[_Job[object]] = deque()
        self._others: dict[Caller, deque[_Job[object]]] = {}
        self._went_ahead = self._went_privileged = False
        self._woken = asyncio.Event()
        self._stopping = False
        #: What else ends when the queue stops: what will be queued again.
        self.at_stop: list[Callable[[], None]] = []
        #: Owes progress while anything waits or runs.
        self._part = progress.part("queue of changes")

    @property
    def waiting(self) -> int:
        """The number of queued actions."""
        return sum(map(len, self._lines()))

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
        if ahead or job.caller.privileged:
            line = self._ahead if ahead else self._privileged
        else:
            line = self._others.setdefault(job.caller, deque())
            if len(line) >= MOST_WAITING:
                raise BusyError
        line.append(job)  # type: ignore[arg-type]  # a queue of any
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
        for line in self._lines():
            while line:
                _settle(line.popleft().outcome, error=QueueStopped())
        for end in self.at_stop:
            end()
        self._woken.set()

    def _lines(self) -> tuple[deque[_Job[object]], ...]:
        return (self._ahead, self._privileged, *self._others.values())

    async def _next(self) -> _Job[object] | None:
        while not self._stopping:
            others = self._privileged or self._others
            self._went_ahead = bool(self._ahead) and not (self._went_ahead and others)
            if self._went_ahead or others:
                self._part.begin()
                return self._ahead.popleft() if self._went_ahead else self._next_in_turn()
            self._part.rest()
            self._woken.clear()
            await self._woken.wait()
        self._part.rest()
        return None

    def _next_in_turn(self) -> _Job[object]:
        self._went_privileged = bool(self._privileged) and not (
            self._went_privileged and self._others
        )
        if self._went_privileged:
            return self._privileged.popleft()
        caller = next(iter(self._others))
        line = self._others.pop(caller)
        job = line.popleft()
        if line:  # behind the other callers
            self._others[caller] = line
        return job


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
