"""How the time that something takes grows with the length of its input.

What counts is the processor time of this thread, which other processes do not lengthen much, and
the growth from one length to four times that: 4 where time is linear, 16 where it is quadratic.
Lengths grow step by step, so that what is quadratic is found after seconds, and not after days.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Input = TypeVar("_Input")

#: As long as a manifest or a message may be at most, in bytes.
LONGEST: Final = 4 << 20
_STEP: Final = 4
#: Between linear (4) and quadratic (16) growth over one step.
_MOST: Final = 8.0
#: What is quicker, in seconds, says nothing.
_NOTHING: Final = 0.05
#: A measurement that seems too long is repeated that often; its shortest time counts.
_REPETITIONS: Final = 4
#: Short enough for what is exponential to end, and to be seen.
_SHORTEST: Final = (4, 8, 12, 16, 20, 24)
_SHORT_SECONDS: Final = 0.2


def demand_linear(
    work: Callable[[_Input], object], make: Callable[[int], _Input], longest: int = LONGEST
) -> None:
    """Fail unless the time of `work` grows with the length of `make(length)` at most.

    `work` answers for what it raises.
    """
    for length in _SHORTEST:
        seconds = _seconds(work, make(length), 0.0)
        assert seconds < _SHORT_SECONDS, f"{length} characters take {seconds:.2f} s"
    shorter, before = 0, 0.0
    for length in _lengths(longest):
        bound = _MOST * before + _NOTHING if shorter else float("inf")
        seconds = _seconds(work, make(length), bound)
        if seconds > bound:  # the shorter one may have been measured in a better moment
            before = max(before, _seconds(work, make(shorter), 0.0))
            bound = _MOST * before + _NOTHING
            seconds = min(seconds, _seconds(work, make(length), bound))
        assert seconds <= bound, (
            f"{shorter} characters take {before:.3f} s and {length} take {seconds:.3f} s"
        )
        shorter, before = length, seconds


def _lengths(longest: int) -> Iterable[int]:
    lengths = [longest]
    while lengths[-1] > _STEP << 8:
        lengths.append(lengths[-1] // _STEP)
    return reversed(lengths)


def _seconds(work: Callable[[_Input], object], text: _Input, enough: float) -> float:
    """Return the shortest time of several, or the first that is short enough."""
    shortest = float("inf")
    was_on = gc.isenabled()
    gc.disable()
    try:
        for _ in range(_REPETITIONS):
            started = time.thread_time()
            work(text)
            shortest = min(shortest, time.thread_time() - started)
            if shortest <= enough:
                break
    finally:
        if was_on:
            gc.enable()
    return shortest
