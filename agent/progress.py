"""Progress of what must move, part by part: what stands still or has ended is named.

A part is something of the agent that others depend on: a queue, a thread, a loop. While it owes
progress it may go its limit without a sign of it. A sign is a finished step: a call to the thread,
to a plugin, to systemd, a decided pod. So a part is not late because it has much to do, or because
each step has to wait some seconds for a neighbour.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import TypeVar

    from agent.clock import Clock

    _Result = TypeVar("_Result")

#: A step may wait for systemd, for a plugin or for page migration; after this time it counts as
#: hung, in seconds. Every call to another process has a deadline below it.
STALL_SECONDS: Final = 60.0


class EndedError(Exception):
    """A part ended that runs as long as the agent does."""

    def __init__(self, why: str = "what it waited for was cancelled") -> None:
        super().__init__(why)


class Part:
    """One part in the table; `limit` is in seconds."""

    def __init__(self, clock: Clock, limit: float) -> None:
        self.limit = limit
        self.ended = ""
        self._clock = clock
        self._since: float | None = None
        self._turn = 0
        self._waits = 0

    @property
    def owes(self) -> bool:
        """Whether the part owes progress."""
        return self._since is not None

    def begin(self) -> None:
        """Owe progress from now on; what was done before gives no more signs."""
        self._take_turn(self._clock.monotonic())
        self.ended = ""

    def rest(self) -> None:
        """Owe nothing until `begin`."""
        self._take_turn(None)

    def end(self, why: str) -> None:
        """Record that the part has ended, until `begin`."""
        self.ended = why

    def standing(self) -> str:
        """Return how the part stands still, "" if it does not."""
        if self.ended:
            return f"has ended: {self.ended}; restart the agent"
        now = self._clock.monotonic()
        since = now if self._since is None or self._waits else self._since
        if now - since <= self.limit:
            return ""
        return f"has made no progress for {self.limit:.0f} s; see the log for what it waits on"

    @contextmanager
    def working(self) -> Iterator[None]:
        """Owe progress in the block; `progressed` in its context is a sign of it. Then rest."""
        self.begin()
        token = _working.set((*_working.get(), (self, self._turn)))
        try:
            yield
        finally:
            _working.reset(token)
            self.rest()

    def note(self, turn: int, waits: int = 0) -> None:
        """Take a sign of progress of that turn, which waits for so many more other parts."""
        with _lock:
            if turn == self._turn and self._since is not None:
                self._since = self._clock.monotonic()
                self._waits += waits

    def _take_turn(self, since: float | None) -> None:
        with _lock:
            self._turn += 1
            self._since, self._waits = since, 0


#: Threads give signs, too.
_lock: Final = Lock()
#: The parts, each with its turn, for which the present context works.
_working: ContextVar[tuple[tuple[Part, int], ...]] = ContextVar("working", default=())


def progressed() -> None:
    """Give a sign of progress of all parts that the present context works for."""
    for part, turn in _working.get():
        part.note(turn)


def pause() -> Callable[[], None]:
    """Let all parts that the present context works for owe nothing until the result is called.

    That is for waiting in the line of another part, which owes progress meanwhile.
    """
    waiting = list(_working.get())
    for part, turn in waiting:
        part.note(turn, 1)

    def resume() -> None:
        while waiting:
            part, turn = waiting.pop()
            part.note(turn, -1)

    return resume


class Progress:
    """The table of parts by name."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._parts: dict[str, Part] = {}

    def part(self, name: str, limit: float = STALL_SECONDS) -> Part:
        """Return a new part, which owes nothing yet."""
        part = self._parts[name] = Part(self.clock, limit)
        return part

    def failures(self) -> dict[str, str]:
        """Return how each part that stands still does so, by name."""
        standing = {name: part.standing() for name, part in self._parts.items()}
        return {name: how for name, how in standing.items() if how}

    def failure(self) -> str | None:
        """Return which parts make no progress, None if all do."""
        return "; ".join(f"{name} {how}" for name, how in self.failures().items()) or None


def cancelled_here() -> bool:
    """Return whether the running task itself is cancelled, not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def uncancelled(work: Awaitable[_Result]) -> _Result:
    """Return what work returns; `EndedError` if it was cancelled and the running task was not.

    Who awaits a cancelled task or call gets the same exception as who is cancelled, and a task that
    ends by it ends silently.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        if cancelled_here():
            raise
        raise EndedError from error
