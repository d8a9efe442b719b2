"""Events for watchers; the id of an operation is in all its log lines, events and answers."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from structlog.contextvars import bound_contextvars

from agent.api.documents import EventDocument
from agent.pods.model import NO_GIVEN_DEVICES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent.api.history import RequesterDocument
    from agent.api.status import DriftDocument
    from agent.clock import Clock
    from agent.pods.model import GivenDevices
    from agent.server.reporting.history import HistoryRecorder

QUEUE_LENGTH: Final = 1024


class Watcher:
    """One reader of events, with a bounded queue: a slow reader loses events."""

    def __init__(self, length: int = QUEUE_LENGTH) -> None:
        self._queue: asyncio.Queue[EventDocument | None] = asyncio.Queue()
        self._length = length
        self._lost = 0

    def offer(self, event: EventDocument) -> bool:
        """Queue an event; return False if the queue is full and the event is lost."""
        if self._queue.qsize() >= self._length:
            self._lost += 1
            return False
        if self._lost:
            self._queue.put_nowait(_lost(self._lost, event.time))
            self._lost = 0
        self._queue.put_nowait(event)
        return True

    def close(self) -> None:
        """End the reader's iteration after the queued events."""
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[EventDocument]:
        while (event := await self._queue.get()) is not None:
            yield event


class Events:
    """Passes each event to all watchers and to the `history` (None: no history is kept).

    `dropped` is called for each event that a watcher misses.
    """

    def __init__(
        self,
        dropped: Callable[[], None],
        clock: Clock,
        history: HistoryRecorder | None = None,
        length: int = QUEUE_LENGTH,
    ) -> None:
        self._watchers: set[Watcher] = set()
        self._dropped = dropped
        self._clock = clock
        self._history = history
        self._length = length
        self._closed = False

    def publish(
        self,
        kind: str,
        uid: str | None = None,
        pod: str | None = None,
        message: str = "",
        differences: tuple[DriftDocument, ...] = (),
        given: GivenDevices = NO_GIVEN_DEVICES,
    ) -> None:
        """Publish an event (`agent.api.documents.EventDocument`) of the present operation.

        The history has the `differences`, what the kubelet had `given` to the pod, and who
        requested the operation, too.
        """
        event = EventDocument(
            type=kind,
            time=self._clock.time(),
            operation=current_operation(),
            uid=uid,
            pod=pod,
            message=message,
        )
        for watcher in self._watchers:
            if not watcher.offer(event):
                self._dropped()
        if self._history is not None:
            self._history.note(event, current_requester(), differences, given)

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
        """End the iteration of all present and later watchers."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()


def _lost(count: int, time: float) -> EventDocument:
    message = f"{count} events were lost because this watcher read too slowly"
    return EventDocument(type="EventsLost", time=time, operation="", message=message)


_current: ContextVar[str] = ContextVar("operation", default="")


def current_operation() -> str:
    """Return the id of the operation that runs in this context, "" without one."""
    return _current.get()


@contextmanager
def operation(action: str, **facts: str) -> Iterator[str]:
    """Run the block as an operation; its log lines have its id, `action` and `facts`.

    An operation within another one is a part of that: both have the same id.
    """
    identity = _current.get() or secrets.token_hex(6)
    token = _current.set(identity)
    try:
        with bound_contextvars(operation=identity, action=action, **facts):
            yield identity
    finally:
        _current.reset(token)


_requester: ContextVar[RequesterDocument | None] = ContextVar("requester", default=None)


def current_requester() -> RequesterDocument | None:
    """Return who asked for what runs in this context; None for what the agent does by itself."""
    return _requester.get()


@contextmanager
def requested_by(requester: RequesterDocument) -> Iterator[None]:
    """Run the block on behalf of a requester."""
    token = _requester.set(requester)
    try:
        yield
    finally:
        _requester.reset(token)
