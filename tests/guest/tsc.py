"""The rate of the host's time stamp counter, which is the one that an emulated guest reads.

A guest calibrates its TSC against an emulated timer for some milliseconds. When the host takes the
core away meanwhile, the guest believes in a slower counter, and its clock runs too fast from then
on (3.2 times, seen at load 9). Given the frequency, it has nothing to calibrate.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: `rdtsc; shl $32, %rdx; or %rdx, %rax; ret`: Python has no way to read the counter.
READ_COUNTER: Final = bytes.fromhex("0f31 48c1e220 4809d0 c3")

#: Seconds between the two samples, and how many readings a sample has: the one that took the
#: shortest was not interrupted, so a busy host makes no difference.
APART: Final = 0.1
READINGS: Final = 64

Reading = tuple[int, int]


def frequency_khz() -> int | None:
    """Return the TSC's frequency in kHz, right to 1 in 10,000.

    None where the host does not let a process run code that it wrote: a guest then has to
    calibrate, and the check of its clock shows when that went wrong.
    """
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    code.write(READ_COUNTER)
    start = ctypes.addressof(ctypes.c_char.from_buffer(code))
    counter: Callable[[], int] = ctypes.CFUNCTYPE(ctypes.c_uint64)(start)
    first = _look(counter)
    time.sleep(APART)
    return rate_khz(first, _look(counter))


def _look(counter: Callable[[], int]) -> Reading:
    return best([(time.monotonic_ns(), counter(), time.monotonic_ns()) for _ in range(READINGS)])


def best(readings: list[tuple[int, int, int]]) -> Reading:
    """Return the counter and the time in nanoseconds of the reading that took the shortest.

    A reading is the time before it, the counter, and the time after it.
    """
    before, ticks, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return ticks, (before + after) // 2


def rate_khz(first: Reading, second: Reading) -> int:
    """Return the rate between two samples in kHz."""
    return round((second[0] - first[0]) * 1_000_000 / (second[1] - first[1]))
