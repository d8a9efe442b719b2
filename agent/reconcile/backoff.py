"""Backoff for cgroups that another process writes again after every repair.

In go the repairs that were made, each with the setting and how the cgroup differed; out come the
cgroups that rest, which are not to be repaired yet.

The first repairs of a cgroup are made at once. When the cgroup differs again soon after each of
them, another writer is at work, and repairing at every comparison would only waste CPU time and
fill the log: the next repair waits, twice as long every time, up to some minutes. A cgroup that
stays as desired for long enough is forgotten. When the desired setting changes, nothing waits,
since the other writer may not conflict with the new one. Only the same change made again counts;
several different changes in a row do not, up to a limit.

A cgroup whose set names exclusive CPUs of other pods, and one above the pods, rests for no one: the
enforcer repairs these all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgroupfs.plan import Setting

#: This many repairs in a row are made without a pause.
AT_ONCE: Final = 5
FIRST_PAUSE: Final = 20.0
LONGEST_PAUSE: Final = 300.0
#: A cgroup that differs again within this many seconds after a repair (and its pause) counts as
#: differing in a row.
IN_A_ROW: Final = 60.0
#: More different changes in a row than this count as a conflict as well.
_DIFFERENT: Final = 16


class WriterConflict(Struct, frozen=True):
    """A cgroup that differed after it was repaired: how often, and how long it rests (seconds).

    `times` counts how often a change was found that had been found before (`seen`).
    """

    setting: Setting
    times: int
    since: float
    pause: float
    seen: frozenset[str]

    @property
    def ends(self) -> float:
        """When the next repair may be made, on the clock of `since`."""
        return self.since + self.pause


class Backoff:
    """Remembers which cgroups had to be repaired, and which of them rest (seconds)."""

    def __init__(self) -> None:
        self._contests: dict[str, WriterConflict] = {}

    def resting(self, now: float) -> Mapping[str, WriterConflict]:
        """Return the cgroups that are not to be repaired yet."""
        return {path: one for path, one in self._contests.items() if now < one.ends}

    def note(self, repaired: Iterable[tuple[Setting, str]], now: float) -> None:
        """Note what was repaired just now and how it differed."""
        self._contests = {
            path: one for path, one in self._contests.items() if now < one.ends + IN_A_ROW
        }
        for setting, found in repaired:
            before = self._contests.get(setting.cgroup)
            self._contests[setting.cgroup] = _next(before, setting, found, now)


def _next(
    before: WriterConflict | None, setting: Setting, found: str, now: float
) -> WriterConflict:
    if before is None or before.setting != setting:
        return WriterConflict(setting, 1, now, 0.0, frozenset((found,)))
    again = found in before.seen or len(before.seen) >= _DIFFERENT
    times = before.times + 1 if again else before.times
    seen = before.seen if again else before.seen | {found}
    return WriterConflict(setting, times, now, _pause(times) if again else 0.0, seen)


def _pause(times: int) -> float:
    if times < AT_ONCE:
        return 0.0
    return min(FIRST_PAUSE * 2.0 ** (times - AT_ONCE), LONGEST_PAUSE)
