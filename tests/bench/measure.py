"""Timing one operation many times, and the figures that come of it."""

from __future__ import annotations

import gc
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_BUDGET_NS = 400_000_000


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


def measure(
    name: str, run: Callable[[], object], *, most: int = 2000, budget_ns: int = _BUDGET_NS
) -> Figure:
    """Time `run` again and again until the budget or `most` runs are reached.

    The collector is off meanwhile: its pauses belong to whatever allocated last, not to this.
    """
    run()
    times: list[int] = []
    gc.collect()
    gc.disable()
    try:
        while len(times) < most and (sum(times) < budget_ns or len(times) < 3):
            started = perf_counter_ns()
            run()
            times.append(perf_counter_ns() - started)
    finally:
        gc.enable()
    times.sort()
    return Figure(
        name,
        len(times),
        times[len(times) // 2] / 1000,
        times[min(len(times) - 1, len(times) * 99 // 100)] / 1000,
        times[-1] / 1000,
    )
