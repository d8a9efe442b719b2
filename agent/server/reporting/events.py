"""Events, for all who watch; each operation's id is in every log line and event it causes."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from structlog.contextvars import bound_contextvars

from agent.api.documents import EventDocument

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent.server.clock import Clock

QUEUE_LENGTH: Final = 1024


class Watcher:
    """One reader of events: a bounded queue, so that a slow reader costs events, not memory."""

    def __init__(self, length: int = QUEUE_LENGTH) -> None:
        self._queue: asyncio.Queue[EventDocument | None] = asyncio.Queue()
        self._length = length
        self._lost = 0

    def offer(self, event: EventDocument) -> bool:
        """Queue an event; False when the reader is too far behind and it is lost."""
        if self._queue.qsize() >= self._length:
            self._lost += 1
            return False
        if self._lost:
            self._queue.put_nowait(_lost(self._lost, event.time))
            self._lost = 0
        self._queue.put_nowait(event)
        return True

    def close(self) -> None:
        """End the reader's iteration after what is queued."""
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[EventDocument]:
        while (event := await self._queue.get()) is not None:
            yield event


class EventHub:
    """Gives every event to every watcher; `dropped` is called for each one a watcher misses."""

    def __init__(self, dropped: Callable[[], None], length: int = QUEUE_LENGTH) -> None:
        self._watchers: set[Watcher] = set()
        self._dropped = dropped
        self._length = length
        self._closed = False

    def publish(self, event: EventDocument) -> None:
        """Give an event to all watchers."""
        for watcher in self._watchers:
            if not watcher.offer(event):
                self._dropped()

    @contextmanager
    def watch(self) -> Iterator[Watcher]:
        """Watch from now until the block ends."""
        watcher = Watcher(self._length)
        self._watchers.add(watcher)
        if self._closed:
            watcher.close()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """End every watcher's iteration, those to come included."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()


class EventReporter:
    """Gives events to everybody who watches, each with its time and the operation it is part of."""

    def __init__(self, hub: EventHub, clock: Clock) -> None:
        self._hub = hub
        self._clock = clock

    def tell(
        self, kind: str, uid: str | None = None, pod: str | None = None, message: str = ""
    ) -> None:
        """Give an event (`agent.api.documents.EventDocument`) to everybody who watches."""
        event = EventDocument(
            type=kind,
            time=self._clock.time(),
            operation=current_operation(),
            uid=uid,
            pod=pod,
            message=message,
        )
        self._hub.publish(event)


def _lost(count: int, time: float) -> EventDocument:
    message = f"{count} events were lost because this watcher read too slowly"
    return EventDocument(type="EventsLost", time=time, operation="", message=message)


_current: ContextVar[str] = ContextVar("operation", default="")


def current_operation() -> str:
    """Return the id of the operation that runs in this context, "" outside of any."""
    return _current.get()


@contextmanager
def operation(action: str, **facts: str) -> Iterator[str]:
    """Give everything in the block one id; `action` and `facts` go into its log lines."""
    identity = secrets.token_hex(6)
    token = _current.set(identity)
    try:
        with bound_contextvars(operation=identity, action=action, **facts):
            yield identity
    finally:
        _current.reset(token)
