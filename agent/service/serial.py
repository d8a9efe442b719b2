"""One thing at a time: the queue of the ledger's owner, and the thread for blocking work."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agent.service.clock import Clock

_Result = TypeVar("_Result")
_Params = ParamSpec("_Params")


class Stopped(Exception):  # noqa: N818  # named for what it tells
    """Asked after the service began to stop; nothing was done."""

    def __init__(self) -> None:
        super().__init__("the agent is stopping; ask again once it runs")


class Worker:
    """The one thread in which blocking work runs, in the order in which it was asked for.

    Cgroup writes, fsync and D-Bus calls may take seconds; the loop must not wait for them.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="numawarden-worker")

    async def run(
        self, call: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """Run a blocking call in the thread, with the caller's context variables."""
        context = copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: context.run(call, *args, **kwargs))

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
        self._pool.shutdown(wait=True)


class _Job(Struct, Generic[_Result]):
    action: Callable[[], Coroutine[None, None, _Result]]
    outcome: asyncio.Future[_Result]
    context: Context = field(default_factory=copy_context)

    async def run(self) -> None:
        """Do the action; whoever asked gets its result or its exception."""
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

    An action that began is finished even when whoever asked for it went away.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: asyncio.Queue[_Job[object] | None] = asyncio.Queue()
        self._busy_since: float | None = None
        self._stopping = False

    @property
    def waiting(self) -> int:
        """How many actions wait for their turn."""
        return self._jobs.qsize()

    def busy_seconds(self) -> float:
        """Return for how long the current action has been running; 0 when there is none."""
        return 0.0 if self._busy_since is None else self._clock.monotonic() - self._busy_since

    async def run(self, action: Callable[[], Coroutine[None, None, _Result]]) -> _Result:
        """Do an action when its turn comes and return its result; raises `Stopped`."""
        if self._stopping:
            raise Stopped
        outcome: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait(_Job(action, outcome))  # type: ignore[arg-type]  # a queue of any
        return await outcome

    async def serve(self) -> None:
        """Do actions until `stop`; those already queued are still done."""
        while (job := await self._jobs.get()) is not None:
            self._busy_since = self._clock.monotonic()
            try:
                await job.run()
            finally:
                self._busy_since = None

    def stop(self) -> None:
        """Take no more actions; `serve` returns after the last one queued."""
        if not self._stopping:
            self._stopping = True
            self._jobs.put_nowait(None)
