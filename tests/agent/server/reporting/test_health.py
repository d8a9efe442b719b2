from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest

from agent.server.control.queue import SerialQueue, Worker
from agent.server.reporting.health import LATE_ACTIONS, LATE_PERIODS, STALL_SECONDS, Health
from tests.agent.server.support import FakeClock, in_loop

PERIOD = 10.0


class Agent:
    """The parts that health looks at."""

    def __init__(self, period: float = PERIOD) -> None:
        self.clock = FakeClock()
        self.queue = SerialQueue(self.clock)
        self.worker = Worker(self.clock)
        self.health = Health(self.queue, self.worker, self.clock, period)


def test_an_agent_that_compares_regularly_is_healthy() -> None:
    agent = Agent()
    for _ in range(20):
        agent.clock.advance(50)
        assert agent.health.failure() is None
        agent.health.reconciled()


@pytest.mark.parametrize("period", [10.0, 100.0])
def test_a_comparison_that_nothing_delays_and_that_is_long_overdue_is_a_failure(
    period: float,
) -> None:
    agent = Agent(period)
    allowed = LATE_PERIODS * period + LATE_ACTIONS * STALL_SECONDS
    agent.clock.advance(allowed)
    assert agent.health.failure() is None
    agent.clock.advance(1)
    message = f"the last comparison with the kernel was {allowed + 1:.0f} s ago"
    assert agent.health.failure() == message


@in_loop
async def test_an_action_that_hangs_is_a_failure() -> None:
    agent = Agent()
    serving = asyncio.create_task(agent.queue.serve())
    began, go_on = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        began.set()
        await go_on.wait()

    asking = asyncio.create_task(agent.queue.run(hang))
    await began.wait()
    agent.clock.advance(STALL_SECONDS)
    assert agent.health.failure() is None
    agent.clock.advance(1)
    assert agent.health.failure() is not None
    go_on.set()
    await asking
    assert agent.health.failure() is None
    agent.queue.stop()
    await serving


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
    assert agent.health.failure() is not None
    go_on.set()
    await asking
    assert agent.health.failure() is None
    agent.worker.close()


@pytest.mark.parametrize("seconds", [1.0, 5.0, 30.0, STALL_SECONDS - 1])
@in_loop
async def test_a_queue_of_slow_actions_is_progress_and_does_not_starve_the_comparison(
    seconds: float,
) -> None:
    agent, failures, compared = Agent(), list[str | None](), list[float]()

    async def slow() -> None:
        # A watcher looks when it has nearly ended, and once it has.
        agent.clock.advance(seconds)
        failures.append(agent.health.failure())

    async def compare() -> None:
        await slow()
        compared.append(agent.clock.now)
        agent.health.reconciled()

    async def compare_regularly() -> None:
        while True:
            await agent.queue.run(compare, ahead=True)
            await agent.clock.sleep(PERIOD)

    comparing = asyncio.create_task(compare_regularly())
    asked = [asyncio.create_task(agent.queue.run(slow)) for _ in range(200)]
    serving = asyncio.create_task(agent.queue.serve())
    await asyncio.gather(*asked)
    comparing.cancel()
    agent.queue.stop()
    await serving
    assert set(failures) == {None}
    gaps = [later - former for former, later in pairwise(compared)]
    assert max(gaps) <= PERIOD + 3 * seconds
