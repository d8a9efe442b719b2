"""Whether the agent does its work: what `/healthz` and the watchdog stand for.

What counts is progress. However long the queue is, an agent that does one thing after the other is
healthy: ending it would make everybody wait for longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agent.server.clock import Clock
    from agent.server.queue import SerialQueue, Worker

#: One action may wait for systemd or for the kernel to move pages; longer than this it hangs.
STALL_SECONDS: Final = 60.0
#: A comparison with the kernel is late when it is this many periods overdue...
LATE_PERIODS: Final = 3
#: ... and so many actions could have ended: it overtakes all that wait, so before it are at most
#: the one that runs, and one whose turn it is; and it is one itself.
LATE_ACTIONS: Final = 3


class Health:
    """Watches the queue of the ledger's owner, its thread, and the regularity of reconciling."""

    def __init__(self, queue: SerialQueue, worker: Worker, clock: Clock, period: float) -> None:
        self._queue = queue
        self._worker = worker
        self._clock = clock
        self._allowed = LATE_PERIODS * period + LATE_ACTIONS * STALL_SECONDS
        self._reconciled = clock.monotonic()

    def reconciled(self) -> None:
        """Note that a comparison with the kernel was completed."""
        self._reconciled = self._clock.monotonic()

    def problem(self) -> str | None:
        """Return what keeps the agent from its work, None when nothing does."""
        busy = max(self._queue.busy_seconds(), self._worker.busy_seconds())
        if busy > STALL_SECONDS:
            return f"one action has been running for {busy:.0f} s; see the log for what it waits on"
        since = self._clock.monotonic() - self._reconciled
        if since > self._allowed:
            return f"the last comparison with the kernel was {since:.0f} s ago"
        return None
