"""Whether a guest's clock agrees with the host's: timeouts and measured shares stand on it.

The guest writes its uptime on the console now and then, and the host notes when it read the line:
a stamp. A line comes late on a busy machine, never early, so of several stamps the one that came
with the least delay is the truest; rates are taken between the truest of the first and of the last
third of a span. What is left of the delays matters the less the longer the span is, and a host at
load 12 was seen to hold lines up for more than a second: a clock is right once it agreed after
`ENOUGH` seconds, and only what does not agree after `LONGEST` is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How much faster or slower than the host's a guest's clock may be.
TOLERANCE: Final = 0.05
#: Seconds of a span, by the clock that went further, that can acquit a clock, and condemn it: all
#: lines of ten seconds would have to be late by one and a half to condemn a right one.
ENOUGH: Final = 2.0
LONGEST: Final = 30.0
#: Stamps in each of the two thirds without which no clock is condemned.
NEEDED: Final = 4

#: A line of the guest with its uptime in seconds. The start mark, which comes long before the other
#: lines on a busy host, would be a third by itself.
LINE: Final = re.compile(rb"guest-job: (?:clock|end) (?:\S+ )*?uptime=(\d+\.\d+)\s")


@dataclass(frozen=True, slots=True)
class Stamp:
    """One moment in seconds: of the guest's clock, and of the host's when it heard of it."""

    guest: float
    host: float

    @property
    def delay(self) -> float:
        """How late the line came, but for a constant."""
        return self.host - self.guest


def stamps(said: bytes, now: float) -> list[Stamp]:
    """Return the stamps in whole lines that were read at `now` (the host's monotonic seconds)."""
    return [Stamp(float(found[1]), now) for found in LINE.finditer(said)]


def span(seen: Sequence[Stamp]) -> float:
    """Return the seconds between the first and the last stamp by the clock that went further."""
    if not seen:
        return 0.0
    first, last = seen[0], seen[-1]
    return max(last.host - first.host, last.guest - first.guest)


def rate(seen: Sequence[Stamp]) -> float | None:
    """Return how many seconds the guest's clock goes in one of the host's.

    None when the stamps are too near to each other.
    """
    if span(seen) < ENOUGH:
        return None
    first, last = (min(part, key=lambda stamp: stamp.delay) for part in _thirds(seen))
    passed = last.host - first.host
    return (last.guest - first.guest) / passed if passed > 0 else float("inf")


def _thirds(seen: Sequence[Stamp]) -> tuple[list[Stamp], list[Stamp]]:
    """Return the stamps of the first and of the last third of a span."""
    third = (seen[-1].host - seen[0].host) / 3
    early = [stamp for stamp in seen if stamp.host <= seen[0].host + third]
    late = [stamp for stamp in seen if stamp.host >= seen[-1].host - third]
    return early, late


def agrees(seen: Sequence[Stamp]) -> bool:
    """Return whether the clock goes right by all that was seen."""
    found = rate(seen)
    return found is not None and abs(found - 1) <= TOLERANCE


def is_wrong(seen: Sequence[Stamp]) -> bool:
    """Return whether the clock is known to be wrong, so that the guest need not go on."""
    if span(seen) < LONGEST or agrees(seen):
        return False
    return all(len(third) >= NEEDED for third in _thirds(seen))


def problem(seen: Sequence[Stamp]) -> str:
    """Return what is wrong with the clock once no more stamps will come; empty: nothing."""
    agreed = any(agrees(seen[:count]) for count in range(2, len(seen) + 1))
    if agreed and not is_wrong(seen):
        return ""
    found = rate(seen)
    if found is None:
        return f"its clock could not be measured: {len(seen)} stamps in {span(seen):.1f} s"
    passed, guests = seen[-1].host - seen[0].host, seen[-1].guest - seen[0].guest
    return (
        f"its clock goes {found:.2f} times as fast as the host's, allowed is {1 - TOLERANCE:.2f} to"
        f" {1 + TOLERANCE:.2f}: {guests:.1f} s of the guest in {passed:.1f} s of the host"
    )
