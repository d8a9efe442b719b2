"""Events: what happens, for watchers and for the history.

In goes what the agent publishes. Each watcher gets every event in order, unless it reads too
slowly. `HistoryRecorder` records each event beside the event loop: an entry waits in a queue of
bounded length for a thread that writes; a full queue and a full disk lose entries, which are
counted, and never keep a decision waiting. The id of an operation is in all its log lines, events
and answers.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace
from structlog.contextvars import bound_contextvars

from agent.api.documents import EventDocument, HistoryEntry
from agent.api.views import kubelet_device_documents
from agent.pods.model import NO_GIVEN_DEVICES
from agent.server import metrics as names
from agent.server.log import shortened
from agent.state.checkpoint import CheckpointIOError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from agent.api.documents import DriftDocument, HistoryDocument, RequesterDocument
    from agent.clock import Clock
    from agent.pods.model import GivenDevices
    from agent.server.metrics import Counters
    from agent.state.history import HistoryQuery, HistoryStore

log = structlog.get_logger(__name__)

#: How many events may wait for a watcher.
QUEUE_LENGTH: Final = 1024
#: How many entries may wait for the disk.
MOST_QUEUED: Final = 4096
#: The longest message of an entry, in characters.
LONGEST_MESSAGE: Final = 4096
#: The type of an event or entry in the place of those that are missing.
_LOST: Final = "EventsLost"


class HistoryRecorder:
    """Writes and reads the history in a thread of its own, which starts with the first entry.

    Call `note` and `latest` in the event loop's thread.
    """

    def __init__(
        self,
        store: HistoryStore,
        clock: Clock,
        counters: Counters,
        most_queued: int = MOST_QUEUED,
    ) -> None:
        self._counters = counters
        self._store = store
        self._clock = clock
        self._most_queued = most_queued
        self._queued: deque[HistoryEntry] = deque()
        self._changing = threading.Lock()
        self._writing = False
        self._closed = False
        #: Why the last entries were lost, and how many since the last that was written.
        self._failure: str | None = None
        self._missing = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="numawarden-history")

    def note(
        self,
        event: EventDocument,
        requester: RequesterDocument | None,
        differences: tuple[DriftDocument, ...] = (),
        given: GivenDevices = NO_GIVEN_DEVICES,
    ) -> None:
        """Record an event, soon; never waits."""
        entry = HistoryEntry(
            type=event.type,
            time=event.time,
            operation=event.operation,
            uid=event.uid or "",
            pod=event.pod or "",
            # The differences say the same.
            message="" if differences else shortened(event.message, LONGEST_MESSAGE),
            requester=requester,
            differences=tuple(map(_bounded, differences)),
            kubelet_devices=kubelet_device_documents(given),
        )
        with self._changing:
            if self._closed or len(self._queued) >= self._most_queued:
                self._lose("queue", 1)
                return
            self._queued.append(entry)
            self._begin()

    def try_again(self) -> None:
        """Write, soon, that entries were lost, if the last could not be written."""
        with self._changing:
            if self._failure is not None and not self._closed:
                self._begin()

    def _begin(self) -> None:
        if not self._writing:
            self._writing = True
            self._pool.submit(self._write)

    async def latest(self, query: HistoryQuery) -> HistoryDocument:
        """Return the latest entries, with all that were noted before; raises `OSError`."""
        now = self._clock.time()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._store.latest, query, now)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Why entries are lost at present, a line each."""
        return () if self._failure is None else (self._failure,)

    def close(self) -> None:
        """Write what waits and end the thread; later entries are lost."""
        with self._changing:
            self._closed = True
        self._pool.shutdown(wait=True)
        self._store.close()

    def _write(self) -> None:
        """Write all entries that wait, after how many were lost before them; in the thread."""
        with self._changing:
            entries = tuple(self._queued)
            self._queued.clear()
            self._writing = False
        store, now = self._store, self._clock.time()
        gap = () if self._failure is None else (_not_written(self._missing, now),)
        before = (store.appended, store.torn, store.too_large)
        try:
            store.append((*gap, *entries), now)
        except (OSError, CheckpointIOError) as error:
            self._failed(error)
        except Exception:  # a defect must not end the recording of what follows
            log.exception("history not written")
            self._failure = "the history is not written: internal error; see the agent log"
        else:
            if self._failure is not None:
                log.info("history written again")
            self._failure = None
        after = (store.appended, store.torn, store.too_large)
        appended, torn, too_large = (each - then for each, then in zip(after, before, strict=True))
        lost = len(entries) - max(0, appended + too_large - len(gap))
        missing = 0 if appended else self._missing  # how many is the first entry
        self._missing = 0 if self._failure is None else missing + lost
        self._lose("torn", torn)
        self._lose("size", too_large)
        self._lose("disk", lost)

    def _failed(self, error: OSError | CheckpointIOError) -> None:
        why = str(error) if isinstance(error, CheckpointIOError) else error.strerror or str(error)
        if self._failure is None:
            log.error("history not written", why=why)
        self._failure = (
            f"the history is not written: {self._store.path}: {why}; decisions are not affected"
        )

    def _lose(self, reason: str, count: int) -> None:
        """Count lost entries; each reason is counted in one thread only."""
        if count:
            self._counters.add(names.HISTORY_LOST, reason, by=count)


def _not_written(count: int, time: float) -> HistoryEntry:
    message = f"{count} entries are missing here, which could not be written"
    return HistoryEntry(type=_LOST, time=time, message=message)


def _bounded(difference: DriftDocument) -> DriftDocument:
    """Return a difference whose texts are short: a list of CPUs may have thousands of characters.

    The names of pod and time are those of the entry; `detail` says what the other fields say.
    """
    observed = difference.observed
    return replace(
        difference,
        observed=None if observed is None else shortened(observed),
        desired=shortened(difference.desired),
        detail=shortened(difference.detail),
    )


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
    return EventDocument(type=_LOST, time=time, operation="", message=message)


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
