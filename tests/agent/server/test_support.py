"""What stands in for time and patience: a lost wake-up shows soon, a late sleeper is not missed."""

from __future__ import annotations

import asyncio

import pytest

from tests.agent.server import support
from tests.agent.server.support import FakeClock, in_loop, until


def test_a_test_that_waits_for_what_does_not_come_fails_soon_and_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(support, "QUIET_SECONDS", 1)

    @in_loop
    async def lost() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match=r"nothing ran for 1 s:(.|\n)*asyncio.Event\(\)"):
        lost()


@in_loop
async def test_time_passes_for_a_task_that_sleeps_late_and_once_more() -> None:
    clock, turns = FakeClock(), 0

    async def periodic() -> None:
        nonlocal turns
        while True:
            await asyncio.to_thread(int)  # busy, then asleep
            await clock.sleep(10)
            turns += 1

    task = asyncio.create_task(periodic())
    await clock.passing(10, until(lambda: turns == 2))
    task.cancel()
    assert clock.now == 1020
