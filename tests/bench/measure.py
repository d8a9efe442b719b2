"""Timing one operation many times, and the figures that come of it."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from agent.server.memory import settle_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BUDGET_NS: Final = 250_000_000
_LEAST: Final = 3
#: Runs of one operation in its turn.
_IN_A_ROW: Final = 5
#: The yardstick's loop takes about as long as a decision, and is looked at so many times in a row.
_STEPS: Final = 20_000
_LOOKS: Final = 50


@dataclass(frozen=True, slots=True)
class Figure:
    """How long one operation took, in microseconds over `n` runs.

    `writes` to cgroups and `bus_calls` are the most of any run, None where these are not counted.
    """

    name: str
    n: int
    p50_us: float
    p99_us: float
    max_us: float
    writes: int | None = None
    bus_calls: int | None = None

    def __str__(self) -> str:
        counted = "" if self.writes is None else f"  {self.writes} writes, {self.bus_calls} calls"
        micros = " ".join(f"{each:11.1f}" for each in (self.p50_us, self.p99_us, self.max_us))
        return f"{self.name:58} {self.n:6} {micros}{counted}"


@dataclass(frozen=True, slots=True)
class Rest:
    """What a resident agent takes while nothing happens: bytes, and percent of one CPU."""

    resident_bytes: int
    cpu_percent: float

    def __str__(self) -> str:
        mib = self.resident_bytes / (1 << 20)
        return f"at rest: {mib:.1f} MiB resident, {self.cpu_percent:.2f} % of one CPU"


def measure(
    name: str,
    run: Callable[[], object],
    *,
    most: int = 2000,
    budget_ns: int = _BUDGET_NS,
    clock: Callable[[], int] = perf_counter_ns,
) -> Figure:
    """Time `run` again and again until the budget or `most` runs are reached.

    The collector works as in the agent (`agent.server.memory`).
    """
    (figure,) = in_turns([(name, run)], most=most, budget_ns=budget_ns, clock=clock)
    return figure


def in_turns(
    cases: Sequence[tuple[str, Callable[[], object]]],
    *,
    most: int = 2000,
    budget_ns: int = _BUDGET_NS,
    clock: Callable[[], int] = perf_counter_ns,
) -> Iterator[Figure]:
    """Time several operations, each a few times in its turn, until the budget of all is used up.

    So they see the same machine: what slows it down for a moment strikes all of them, and what is
    compared was measured at the same time.
    """
    for _, run in cases:
        run()
    times: list[list[int]] = [[] for _ in cases]
    spent = runs = 0
    settle_memory()
    while runs < most and (spent < budget_ns * len(cases) or runs < _LEAST):
        for (_, run), taken in zip(cases, times, strict=True):
            for _ in range(_IN_A_ROW):
                started = clock()
                run()
                taken.append(clock() - started)
            spent += sum(taken[-_IN_A_ROW:])
        runs += _IN_A_ROW
    gc.unfreeze()
    for (name, _), taken in zip(cases, times, strict=True):
        yield of_samples(name, taken)


class Yardstick:
    """A fixed piece of work, timed now and then through a run: how evenly the machine itself runs.

    A shared machine that stops this loop for milliseconds does so to what is measured as well.
    """

    def __init__(self) -> None:
        self._times: list[int] = []

    def look(self) -> None:
        """Time the piece of work some times."""
        for _ in range(_LOOKS):
            started = perf_counter_ns()
            sum(range(_STEPS))
            self._times.append(perf_counter_ns() - started)

    def figure(self) -> Figure:
        """Return what was seen."""
        return of_samples("the machine: a fixed loop", self._times)


def of_samples(name: str, nanoseconds: Sequence[int]) -> Figure:
    """Return the figure of some runs."""
    times = sorted(nanoseconds)
    return Figure(
        name,
        len(times),
        times[len(times) // 2] / 1000,
        times[min(len(times) - 1, len(times) * 99 // 100)] / 1000,
        times[-1] / 1000,
    )
