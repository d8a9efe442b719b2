"""Records events in the history, beside the event loop.

In go events, from the loop; out come the entries of `agent.state.history` on the disk. An entry
waits in a queue of bounded length for a thread that writes. A full queue and a full disk lose
entries, which are counted, and the next entry that is written says how many the disk lost. A
decision never waits for the history.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.api.documents.history import HistoryEntry
from agent.api.views import kubelet_device_documents
from agent.pods.model import NO_GIVEN_DEVICES
from agent.server import metrics as names
from agent.server.log import shortened
from agent.state.checkpoint import CheckpointIOError

if TYPE_CHECKING:
    from agent.api.documents.history import EventDocument, HistoryDocument, RequesterDocument
    from agent.api.documents.verification import DriftDocument
    from agent.clock import Clock
    from agent.pods.model import GivenDevices
    from agent.server.counters import Counters
    from agent.state.history import HistoryQuery, HistoryStore

log = structlog.get_logger(__name__)

#: The most entries that wait for the disk.
MOST_QUEUED: Final = 4096
#: The longest message of an entry, in characters.
LONGEST_MESSAGE: Final = 4096


class HistoryRecorder:
    """Writes and reads the history in a thread of its own, which starts with the first entry.

    Call its methods in the event loop's thread.
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
        #: Guards the next three fields.
        self._lock = threading.Lock()
        self._queued: deque[HistoryEntry] = deque()
        #: Whether the thread was asked to write and has not yet taken what is queued.
        self._writing = False
        self._closed = False
        #: Why the last entries could not be written, None if they were.
        self._failure: str | None = None
        #: How many entries could not be written since the last one that was.
        self._missing = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="numawarden-history")

    def note(
        self,
        event: EventDocument,
        requester: RequesterDocument | None,
        differences: tuple[DriftDocument, ...] = (),
        given: GivenDevices = NO_GIVEN_DEVICES,
    ) -> None:
        """Queue an event for the thread; never waits. A full queue loses the event."""
        entry = HistoryEntry(
            type=event.type,
            time=event.time,
            operation=event.operation,
            uid=event.uid or "",
            pod=event.pod or "",
            # The differences say the same as the message.
            message="" if differences else shortened(event.message, LONGEST_MESSAGE),
            requester=requester,
            differences=tuple(map(_bounded, differences)),
            kubelet_devices=kubelet_device_documents(given),
        )
        with self._lock:
            if self._closed or len(self._queued) >= self._most_queued:
                self._lose("queue", 1)
                return
            self._queued.append(entry)
            self._begin()

    def try_again(self) -> None:
        """Have the thread write that entries are missing, if the last ones could not be written."""
        with self._lock:
            if self._failure is not None and not self._closed:
                self._begin()

    def _begin(self) -> None:
        if not self._writing:
            self._writing = True
            self._pool.submit(self._write)

    async def latest(self, query: HistoryQuery) -> HistoryDocument:
        """Return the latest entries, those that wait in the queue included; raises `OSError`."""
        now = self._clock.time()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._store.latest, query, now)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Why entries are lost at present, a line each."""
        return () if self._failure is None else (self._failure,)

    def close(self) -> None:
        """Write what waits and end the thread; later entries are lost."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=True)
        self._store.close()

    def _write(self) -> None:
        """Write all entries that wait, in these steps; runs in the thread.

        1. Take the queue. An entry that comes from now on asks for another run.
        2. Put an entry before them that says how many are missing, where the last were not written.
        3. Append. Whatever fails is kept as `_failure`, a condition.
        4. Count what is lost: on the disk what was not appended; `torn` and `size` by the store.
        """
        # 1.
        with self._lock:
            entries = tuple(self._queued)
            self._queued.clear()
            self._writing = False
        # 2.
        store, now = self._store, self._clock.time()
        gap = () if self._failure is None else (_not_written(self._missing, now),)
        before = (store.appended, store.torn, store.too_large)
        # 3.
        try:
            store.append((*gap, *entries), now)
        except (OSError, CheckpointIOError) as error:
            self._note_failure(error)
        except Exception:  # a defect must not end the recording of what follows
            log.exception("history not written")
            self._failure = "the history is not written: internal error; see the agent log"
        else:
            if self._failure is not None:
                log.info("history written again")
            self._failure = None
        # 4.
        after = (store.appended, store.torn, store.too_large)
        appended, torn, too_large = (
            count - former for count, former in zip(after, before, strict=True)
        )
        lost = len(entries) - max(0, appended + too_large - len(gap))
        missing = 0 if appended else self._missing  # the first entry says how many were missing
        self._missing = 0 if self._failure is None else missing + lost
        self._lose("torn", torn)
        self._lose("size", too_large)
        self._lose("disk", lost)

    def _note_failure(self, error: OSError | CheckpointIOError) -> None:
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
    return HistoryEntry(type="EventsLost", time=time, message=message)


def _bounded(difference: DriftDocument) -> DriftDocument:
    """Return a difference with short texts: a list of CPUs may have thousands of characters."""
    observed = difference.observed
    return replace(
        difference,
        observed=None if observed is None else shortened(observed),
        desired=shortened(difference.desired),
        detail=shortened(difference.detail),
    )
