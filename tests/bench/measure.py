"""Timing one operation many times, and the figures that come of it."""

from __future__ import annotations

import gc
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from agent.lean import settle_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BUDGET_NS: Final = 250_000_000
_LEAST: Final = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """How long one operation took, in microseconds over `n` runs."""

    name: str
    n: int
    p50_us: float
    p99_us: float
    max_us: float

    def as_json(self) -> dict[str, object]:
        """Return the entry of `bench.json`."""
        return asdict(self)


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

    The collector works as in the agent (`agent.lean`).
    """
    run()
    times: list[int] = []
    spent = 0
    settle_memory()
    while len(times) < most and (spent < budget_ns or len(times) < _LEAST):
        started = clock()
        run()
        times.append(clock() - started)
        spent += times[-1]
    gc.unfreeze()
    return of_samples(name, times)


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
