"""A circuit breaker for one method of a plugin: what hangs costs few deadlines, not each pod's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: How long a method is not called after a call without an answer, in seconds. Admissions are
#: decided one after the other, so that every further deadline would delay the pods of all users.
BACK_OFF: Final = 60.0
#: The longest that it is not called; every further call without an answer doubles `BACK_OFF`.
LONGEST_BACK_OFF: Final = 960.0


class CallBreaker:
    """Opens with an unanswered call, for `BACK_OFF` seconds; then one call is tried.

    An answer closes the breaker, a further timeout opens it for twice as long. An answer to another
    method of the plugin shows nothing, and a plugin that registers again gets closed ones.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._closes_at = 0.0
        self.timeouts = 0

    @property
    def remaining(self) -> float:
        """For how many more seconds the method is not called; 0 if it may be."""
        return max(0.0, self._closes_at - self._monotonic())

    def answered(self) -> None:
        """Note that a call was answered, with an error or without."""
        self.timeouts = 0
        self._closes_at = 0.0

    def timed_out(self) -> None:
        """Note that a call was not answered in time."""
        pause = min(BACK_OFF * 2**self.timeouts, LONGEST_BACK_OFF)
        self.timeouts += 1
        self._closes_at = self._monotonic() + pause
