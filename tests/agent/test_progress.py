from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from agent.progress import (
    STALL_SECONDS,
    EndedError,
    Progress,
    cancelled_here,
    pause,
    progressed,
    uncancelled,
)
from agent.server.limits import Caller
from agent.server.queue import SerialQueue, Worker, called_by
from tests.agent.server.support import FakeClock, in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PERIOD = 10.0


class Agent:
    """A queue and a thread, and what is known of their progress."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.progress = Progress(self.clock)
        self.queue = SerialQueue(self.progress)
        self.worker = Worker(self.progress)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the queue until the block ends."""
        serving = asyncio.create_task(self.queue.serve())
        yield
        self.queue.stop()
        await serving
        self.worker.close()


async def nothing() -> None:
    """Stand for an action that takes no time."""


def test_what_owes_progress_stands_still_after_its_limit_and_not_before() -> None:
    clock = FakeClock()
    progress = Progress(clock)
    part = progress.part("comparison", 30)
    clock.advance(1000)
    assert progress.failure() is None
    part.begin()
    clock.advance(30)
    assert progress.failure() is None
    clock.advance(1)
    how = "has made no progress for 30 s; see the log for what it waits on"
    assert progress.failures() == {"comparison": how}
    part.begin()
    assert progress.failure() is None


def test_what_has_ended_is_a_failure_at_once_until_it_begins_again() -> None:
    progress = Progress(FakeClock())
    part = progress.part("queue")
    part.end("no reason")
    assert progress.failure() == "queue has ended: no reason; restart the agent"
    part.begin()
    assert progress.failure() is None


def test_each_step_of_long_work_is_progress_of_all_that_wait_for_it() -> None:
    clock = FakeClock()
    progress = Progress(clock)
    with progress.part("sync").working(), progress.part("queue").working():
        for _ in range(9):
            clock.advance(STALL_SECONDS)
            assert progress.failure() is None
            progressed()
        clock.advance(STALL_SECONDS + 1)
        assert progress.failures().keys() == {"sync", "queue"}
    assert progress.failure() is None


def test_what_was_begun_before_gives_no_signs_for_what_runs_now() -> None:
    """A task outlives the action that made it."""
    clock = FakeClock()
    progress = Progress(clock)
    part = progress.part("queue")
    with part.working():
        part.begin()
        clock.advance(STALL_SECONDS + 1)
        progressed()
        assert progress.failure() is not None


def test_who_waits_in_the_line_of_another_owes_nothing_meanwhile() -> None:
    clock = FakeClock()
    progress = Progress(clock)
    with progress.part("sync").working():
        resume = pause()
        clock.advance(9 * STALL_SECONDS)
        assert progress.failure() is None
        resume()
        resume()
        clock.advance(STALL_SECONDS + 1)
        assert progress.failure() is not None


@in_loop
async def test_an_action_that_hangs_is_a_failure() -> None:
    agent = Agent()
    began, go_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        began.set()
        await go_on.wait()

    async with agent.serving():
        asking = asyncio.create_task(agent.queue.run(hang))
        await began.wait()
        agent.clock.advance(STALL_SECONDS)
        assert agent.progress.failure() is None
        agent.clock.advance(1)
        assert agent.progress.failures().keys() == {"queue of changes"}
        go_on.set()
        await asking
        assert agent.progress.failure() is None


@in_loop
async def test_a_queue_that_does_not_begin_what_waits_is_a_failure() -> None:
    agent = Agent()
    asking = asyncio.create_task(agent.queue.run(nothing))
    await asyncio.sleep(0)
    agent.clock.advance(STALL_SECONDS + 1)
    assert agent.progress.failures().keys() == {"queue of changes"}
    agent.queue.stop()
    await asyncio.wait((asking,))


@in_loop
async def test_a_thread_that_hangs_is_a_failure_with_no_action_under_way() -> None:
    agent = Agent()
    began, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        go_on.wait(10)

    asking = asyncio.create_task(agent.worker.run(hang))
    await asyncio.to_thread(began.wait, 10)
    agent.clock.now += STALL_SECONDS + 1
    assert agent.progress.failures().keys() == {"thread worker"}
    go_on.set()
    await asking
    assert agent.progress.failure() is None
    agent.worker.close()


@in_loop
async def test_slow_neighbours_are_no_failure_of_what_waits_for_them() -> None:
    """Ten calls of 50 s each in the thread, such as to systemd, while another part waits."""
    agent, failures = Agent(), list[str | None]()

    def call() -> None:
        agent.clock.now += STALL_SECONDS - 10
        failures.append(agent.progress.failure())

    async def slow() -> None:
        for _ in range(10):
            await agent.worker.run(call)

    async with agent.serving():
        first = asyncio.create_task(agent.queue.run(slow))
        with agent.progress.part("sync").working():
            await agent.queue.run(nothing)
            await agent.queue.run(slow)
        await first
    assert failures == [None] * 20


@pytest.mark.parametrize("seconds", [1.0, 30.0, STALL_SECONDS - 1])
@in_loop
async def test_a_queue_of_slow_actions_does_not_starve_the_comparison(seconds: float) -> None:
    agent, failures, compared = Agent(), list[str | None](), list[float]()

    async def slow() -> None:
        # A watcher looks when it has nearly ended, and once it has.
        agent.clock.advance(seconds)
        failures.append(agent.progress.failure())

    async def compare() -> None:
        await slow()
        compared.append(agent.clock.now)

    async def compare_regularly() -> None:
        while True:
            await agent.queue.run(compare)
            await agent.clock.sleep(PERIOD)

    comparing = asyncio.create_task(compare_regularly())
    asked = []
    for member in ("a", "b"):
        with called_by(Caller(member)):
            asked += [asyncio.create_task(agent.queue.run(slow)) for _ in range(100)]
    async with agent.serving():
        await asyncio.gather(*asked)
        comparing.cancel()
    assert set(failures) == {None}
    gaps = [later - former for former, later in pairwise(compared)]
    assert max(gaps) <= PERIOD + 3 * seconds


@in_loop
async def test_a_cancellation_of_what_is_awaited_is_an_error_and_ones_own_is_not() -> None:
    never = asyncio.get_running_loop().create_future()
    own: list[bool] = []

    async def wait() -> None:
        try:
            await uncancelled(asyncio.shield(never))
        except asyncio.CancelledError:
            own.append(cancelled_here())
            raise

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert (waiting.cancelled(), own) == (True, [True])
    failing = asyncio.create_task(wait())
    await asyncio.sleep(0)
    never.cancel()
    with pytest.raises(EndedError):
        await failing
