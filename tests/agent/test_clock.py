from __future__ import annotations

import asyncio

from agent.clock import SystemClock, wait_for
from tests.agent.server.support import FakeClock, in_loop


@in_loop
async def test_waiting_ends_with_the_event_or_the_time() -> None:
    clock, event = FakeClock(), asyncio.Event()
    waiting = asyncio.create_task(wait_for(event, 10, clock))
    for _ in range(3):
        await asyncio.sleep(0)
    clock.advance(10)
    assert not await waiting
    waiting = asyncio.create_task(wait_for(event, 10, clock))
    await asyncio.sleep(0)
    event.set()
    assert await waiting


@in_loop
async def test_the_machines_clock_goes_forward() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0)
    assert clock.monotonic() >= before
    assert clock.time() > 1_700_000_000
