"""Whether the agent does its work: what `/healthz`, `/readyz` and the watchdog stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agent.service.clock import Clock
    from agent.service.serial import SerialQueue

#: One action may wait for systemd or for the kernel to move pages; longer than this it hangs.
STALL_SECONDS: Final = 60.0
#: A reconcile is late when it is this many periods overdue, and at least the stall time.
LATE_PERIODS: Final = 3


class Health:
    """Watches the queue of the ledger's owner and the regularity of reconciling."""

    def __init__(self, queue: SerialQueue, clock: Clock, period: float) -> None:
        self._queue = queue
        self._clock = clock
        self._allowed = max(LATE_PERIODS * period, STALL_SECONDS)
        self._reconciled = clock.monotonic()

    def reconciled(self) -> None:
        """Note that a comparison with the kernel was completed."""
        self._reconciled = self._clock.monotonic()

    def problem(self) -> str | None:
        """Return what keeps the agent from its work, None when nothing does."""
        busy = self._queue.busy_seconds()
        if busy > STALL_SECONDS:
            return f"one action has been running for {busy:.0f} s; see the log for what it waits on"
        since = self._clock.monotonic() - self._reconciled
        if since > self._allowed:
            return f"the last comparison with the kernel was {since:.0f} s ago"
        return None
