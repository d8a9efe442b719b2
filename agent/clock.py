"""The clock that everything waits by, which tests replace."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Time and timers; all values in seconds."""

    def time(self) -> float:
        """Return the time since 1970 (UTC)."""

    def monotonic(self) -> float:
        """Return the time since an arbitrary moment; it never runs backwards."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class SystemClock:
    """The machine's clocks and the running loop's timers."""

    def time(self) -> float:
        """Return the time since 1970 (UTC)."""
        return time.time()

    def monotonic(self) -> float:
        """Return the time since an arbitrary moment; it never runs backwards."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


async def wait_for(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Wait until an event is set, at most `seconds`; return whether it was."""
    waiting = asyncio.ensure_future(event.wait())
    sleeping = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        sleeping.cancel()
    return event.is_set()
