"""Events: what happens, for everybody who watches, and for the history.

In goes what the agent publishes; out comes each event, in order, to each watcher and to the
recorder of the history. Publishing never waits: a watcher that reads too slowly loses events, and
the next one that it gets is preceded by how many those were.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from agent.api.documents.history import EventDocument
from agent.pods.model import NO_GIVEN_DEVICES
from agent.server.operations import current_operation, current_requester

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent.api.documents.verification import DriftDocument
    from agent.clock import Clock
    from agent.pods.model import GivenDevices
    from agent.server.history_recorder import HistoryRecorder

#: The most events that wait for a watcher.
QUEUE_LENGTH: Final = 1024


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
        """Publish an event (`agent.api.documents.history.EventDocument`) of the present operation.

        The history keeps more than watchers get: the `differences`, the devices that the kubelet
        had `given` to the pod, and who requested the operation.
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


class Watcher:
    """One reader of events, with a queue of bounded length: a slow reader loses events."""

    def __init__(self, length: int = QUEUE_LENGTH) -> None:
        #: None ends the reader's iteration.
        self._queue: asyncio.Queue[EventDocument | None] = asyncio.Queue()
        self._length = length
        #: The events that were lost since the last one that was queued.
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


def _lost(count: int, time: float) -> EventDocument:
    message = f"{count} events were lost because this watcher read too slowly"
    return EventDocument(type="EventsLost", time=time, operation="", message=message)
