"""The controller's queue of actions, and the thread for blocking work."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agent.clock import Clock

_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class QueueStopped(Exception):  # noqa: N818  # named after the state
    """The action was requested after the service began to stop and was not started."""

    def __init__(self) -> None:
        super().__init__("the agent is stopping; ask again once it runs")


class Worker:
    """One thread that runs blocking calls in the order of their requests.

    Cgroup writes, fsync and D-Bus calls may take seconds; the loop must not wait for them. `name`
    is the suffix of the thread's name. The thread is started with the first call.
    """

    def __init__(self, clock: Clock, name: str = "worker") -> None:
        self.clock = clock
        self._busy_since: float | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"numawarden-{name}")

    def busy_seconds(self) -> float:
        """Return for how long the current call has been running; 0 when there is none."""
        since = self._busy_since
        return 0.0 if since is None else self.clock.monotonic() - since

    async def run(
        self, call: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """Run a blocking call in the thread, with the caller's context variables."""
        context = copy_context()

        def timed() -> _Result:
            self._busy_since = self.clock.monotonic()
            try:
                return context.run(call, *args, **kwargs)
            finally:
                self._busy_since = None

        return await asyncio.get_running_loop().run_in_executor(self._pool, timed)

    def close(self) -> None:
        """Finish all requested calls and end the thread."""
        self._pool.shutdown(wait=True)


class _Job(Struct, Generic[_Result]):
    action: Callable[[], Coroutine[None, None, _Result]]
    outcome: asyncio.Future[_Result]
    context: Context = field(default_factory=copy_context)

    async def run(self) -> None:
        """Run the action and pass its result or exception to the caller."""
        task = asyncio.create_task(self.action(), context=self.context)
        await asyncio.wait((task,))
        if self.outcome.done():
            return
        error = task.exception()
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


class SerialQueue:
    """Runs asynchronous actions strictly one after another, in the order of their arrival.

    Actions queued with `ahead` run before all others, but alternate with them, so that neither kind
    starves. An action that was started is finished even if its caller was cancelled. `finished`
    counts completed actions, including failed ones.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.finished = 0
        self._waiting: deque[_Job[object]] = deque()
        self._ahead: deque[_Job[object]] = deque()
        self._went_ahead = False
        self._woken = asyncio.Event()
        self._busy_since: float | None = None
        self._stopping = False

    @property
    def waiting(self) -> int:
        """The number of queued actions."""
        return len(self._waiting) + len(self._ahead)

    def busy_seconds(self) -> float:
        """Return for how long the current action has been running; 0 when there is none."""
        return 0.0 if self._busy_since is None else self.clock.monotonic() - self._busy_since

    async def run(
        self, action: Callable[[], Coroutine[None, None, _Result]], *, ahead: bool = False
    ) -> _Result:
        """Queue an action and return its result; raises `QueueStopped`."""
        return await self.put(action, ahead=ahead)

    def put(
        self, action: Callable[[], Coroutine[None, None, _Result]], *, ahead: bool = False
    ) -> asyncio.Future[_Result]:
        """Queue an action and return what will be its result; raises `QueueStopped`."""
        if self._stopping:
            raise QueueStopped
        outcome: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        line = self._ahead if ahead else self._waiting
        line.append(_Job(action, outcome))  # type: ignore[arg-type]  # a queue of any
        self._woken.set()
        return outcome

    async def serve(self) -> None:
        """Run actions until `stop`; an action that was started is finished."""
        while (job := await self._next()) is not None:
            self._busy_since = self.clock.monotonic()
            try:
                await job.run()
            finally:
                self._busy_since = None
                self.finished += 1

    def stop(self) -> None:
        """Accept no more actions; callers of queued ones get `QueueStopped`."""
        self._stopping = True
        for line in (self._ahead, self._waiting):
            while line:
                outcome = line.popleft().outcome
                if not outcome.done():
                    outcome.set_exception(QueueStopped())
        self._woken.set()

    async def _next(self) -> _Job[object] | None:
        while not self._stopping:
            self._went_ahead = bool(self._ahead) and not (self._went_ahead and self._waiting)
            line = self._ahead if self._went_ahead else self._waiting
            if line:
                return line.popleft()
            self._woken.clear()
            await self._woken.wait()
        return None
