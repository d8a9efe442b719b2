"""Health of the agent, for `/healthz` and the watchdog.

The criterion is progress. An agent with a long queue is healthy as long as it completes actions:
restarting it would only make callers wait longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agent.clock import Clock
    from agent.server.control.queue import SerialQueue, Worker

#: An action may wait for systemd or for page migration; after this time it counts as hung.
STALL_SECONDS: Final = 60.0
#: A comparison with the kernel is late when it is this many periods overdue...
LATE_PERIODS: Final = 3
#: ... and this many actions could have been completed: a comparison is queued ahead, so that at
#: most the running action and one waiting action precede it.
LATE_ACTIONS: Final = 3


class Health:
    """Watches the controller's queue, its thread, and the interval between comparisons."""

    def __init__(self, queue: SerialQueue, worker: Worker, clock: Clock, period: float) -> None:
        self._queue = queue
        self._worker = worker
        self._clock = clock
        self._allowed = LATE_PERIODS * period + LATE_ACTIONS * STALL_SECONDS
        self._reconciled = clock.monotonic()

    def reconciled(self) -> None:
        """Record that a comparison with the kernel was completed."""
        self._reconciled = self._clock.monotonic()

    def failure(self) -> str | None:
        """Return why the agent makes no progress, None if it does."""
        busy = max(self._queue.busy_seconds(), self._worker.busy_seconds())
        if busy > STALL_SECONDS:
            return f"one action has been running for {busy:.0f} s; see the log for what it waits on"
        since = self._clock.monotonic() - self._reconciled
        if since > self._allowed:
            return f"the last comparison with the kernel was {since:.0f} s ago"
        return None
