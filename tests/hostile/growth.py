"""How long something may take that any user can hand in, by the length of it.

What counts is the processor time of this thread, and its bound lies far from both sides: what is
linear takes a twentieth of it or less, what is quadratic takes hours at the longest input, so the
load of the machine decides nothing. Lengths grow step by step and the first that exceeds its bound
ends the measurement, so that what is quadratic is found after seconds, and what is exponential at a
few dozen characters.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Input = TypeVar("_Input")

#: As long as a manifest or a message may be at most, in bytes.
LONGEST: Final = 4 << 20
#: What any input may take, and what each byte of it may take beside that, in seconds; reading
#: the slowest of them takes half a microsecond a byte.
_ANY_SECONDS: Final = 1.0
_BYTE_SECONDS: Final = 10e-6
#: Exponential growth doubles with each of these steps or with a few of them.
_SHORT: Final = range(4, 65, 4)
_FIRST: Final = 1 << 10
#: Up to this length each is twice the one before, for it costs little; later four times.
_DENSE: Final = 1 << 16


def demand_quick(
    work: Callable[[_Input], object],
    make: Callable[[int], _Input],
    longest: int = LONGEST,
    *,
    share: float = 1.0,
) -> None:
    """Fail if the time of `work` exceeds its bound for `make(length)`, at any length to `longest`.

    `work` answers for what it raises. `share` is the share of the bound that applies: where there
    are many texts, a smaller bound finds what is quadratic at a smaller length.
    """
    for length in _lengths(longest):
        seconds = _seconds(work, make(length))
        bound = share * (_ANY_SECONDS + _BYTE_SECONDS * length)
        assert seconds <= bound, f"{length} characters take {seconds:.2f} s, more than {bound:.2f}"


def _lengths(longest: int) -> Iterator[int]:
    yield from _SHORT
    length = _FIRST
    while length < longest:
        yield length
        length *= 2 if length < _DENSE else 4
    yield longest


def _seconds(work: Callable[[_Input], object], text: _Input) -> float:
    """Return the processor time of one call, without the collection of garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        started = time.thread_time()
        work(text)
        return time.thread_time() - started
    finally:
        if was_on:
            gc.enable()
