from __future__ import annotations

from agent.service.health import Health
from agent.service.serial import SerialQueue
from tests.agent.service.support import FakeClock


def test_an_agent_that_compares_regularly_is_healthy() -> None:
    clock = FakeClock()
    health = Health(SerialQueue(clock), clock, period=10)
    for _ in range(20):
        clock.advance(50)
        assert health.problem() is None
        health.reconciled()


def test_a_comparison_that_is_long_overdue_is_a_problem() -> None:
    clock = FakeClock()
    health = Health(SerialQueue(clock), clock, period=10)
    clock.advance(61)
    assert health.problem() == "the last comparison with the kernel was 61 s ago"


def test_a_long_period_is_given_three_of_its_length() -> None:
    clock = FakeClock()
    health = Health(SerialQueue(clock), clock, period=100)
    clock.advance(300)
    assert health.problem() is None
    clock.advance(1)
    assert health.problem() is not None
