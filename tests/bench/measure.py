"""Timing one operation many times, and the figures that come of it."""

from __future__ import annotations

import gc
from dataclasses import asdict, dataclass
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

    def as_json(self) -> dict[str, object]:
        """Return the entry of `bench.json`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Rest:
    """What a resident agent takes while nothing happens: bytes, and percent of one CPU."""

    resident_bytes: int
    cpu_percent: float

    def as_json(self) -> dict[str, object]:
        """Return the entry of `bench-rest.json`."""
        return asdict(self)


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

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._times: list[int] = []

    def look(self) -> None:
        """Time the piece of work some times."""
        for _ in range(_LOOKS):
            started = self._clock()
            sum(range(_STEPS))
            self._times.append(self._clock() - started)

    def line(self) -> str:
        """Return what was seen, in one line."""
        seen = of_samples("", self._times)
        return (
            f"the machine meanwhile: a fixed loop took p50 {seen.p50_us / 1000:.2f} ms, "
            f"p99 {seen.p99_us / 1000:.2f} ms, at most {seen.max_us / 1000:.2f} ms"
        )


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
