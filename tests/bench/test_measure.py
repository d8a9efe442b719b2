"""Figures of several operations are of the same time, and the machine's evenness is reported."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.bench.measure import Yardstick, in_turns, measure

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.nightly


def ticking(*steps_ns: int) -> Callable[[], int]:
    """Return a clock on which each pair of looks is the next of these times apart."""
    ticks = count()
    now = 0

    def clock() -> int:
        nonlocal now
        tick = next(ticks)
        now += steps_ns[tick // 2 % len(steps_ns)] if tick % 2 else 0
        return now

    return clock


def test_operations_take_turns_of_a_few_runs_each() -> None:
    seen: list[str] = []
    cases = [("a", lambda: seen.append("a")), ("b", lambda: seen.append("b"))]
    first, second = in_turns(cases, most=10, clock=ticking(1000))
    assert "".join(seen) == "ab" + "aaaaabbbbb" * 2
    assert (first.name, first.n, first.p50_us) == ("a", 10, 1)
    assert (second.name, second.n, second.p50_us) == ("b", 10, 1)


def test_all_end_when_the_budget_of_all_is_used_up() -> None:
    cases = [("slow", lambda: None), ("quick", lambda: None)]
    clock = ticking(*[9_000] * 5, *[1_000] * 5)
    slow, quick = in_turns(cases, budget_ns=100_000, clock=clock)
    assert (slow.n, quick.n) == (20, 20)
    assert (slow.p50_us, quick.p50_us) == (9, 1)


def test_one_slow_run_of_many_is_the_maximum_and_not_the_median() -> None:
    figure = measure("a", lambda: None, most=100, clock=ticking(*[2000] * 99, 50_000))
    assert (figure.n, figure.p50_us, figure.max_us) == (100, 2, 50)


def test_the_yardstick_shows_how_evenly_the_machine_ran() -> None:
    yardstick = Yardstick(ticking(*[250_000] * 49, 8_000_000))
    yardstick.look()
    assert "p50 0.25 ms, p99 8.00 ms, at most 8.00 ms" in yardstick.line()
