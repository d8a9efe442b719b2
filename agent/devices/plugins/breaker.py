"""A circuit breaker for one plugin: one that hangs costs few deadlines, not one for each pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: So many calls in a row without an answer open the breaker; admissions are decided one after the
#: other, so every further deadline would delay the pods of all users.
MOST_TIMEOUTS: Final = 2
#: How long the plugin is not called then, in seconds.
BACK_OFF: Final = 60.0


class CallBreaker:
    """Opens after `MOST_TIMEOUTS` unanswered calls in a row, for `BACK_OFF` seconds.

    Then one call is tried: an answer closes the breaker, a further timeout opens it again. A plugin
    that registers again gets a closed one.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._timeouts = 0
        self._closes_at = 0.0

    @property
    def timeouts(self) -> int:
        """How many calls in a row were not answered."""
        return self._timeouts

    @property
    def remaining(self) -> float:
        """For how many more seconds the plugin is not called; 0 if it may be."""
        return max(0.0, self._closes_at - self._monotonic())

    def answered(self) -> None:
        """Note that a call was answered, with an error or without."""
        self._timeouts = 0
        self._closes_at = 0.0

    def timed_out(self) -> None:
        """Note that a call was not answered in time."""
        self._timeouts += 1
        if self._timeouts >= MOST_TIMEOUTS:
            self._closes_at = self._monotonic() + BACK_OFF
