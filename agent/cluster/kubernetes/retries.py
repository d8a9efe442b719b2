"""When a request to the API server that failed is made again."""

from __future__ import annotations

from typing import Final

_FIRST_RETRY_SECONDS: Final = 10.0
_LAST_RETRY_SECONDS: Final = 300.0


class Retries:
    """When to try again: later after each failure, at once after a success; times in seconds."""

    def __init__(
        self, first: float = _FIRST_RETRY_SECONDS, last: float = _LAST_RETRY_SECONDS
    ) -> None:
        self._first = first
        self._last = last
        self._failures = 0
        self._not_before = float("-inf")

    def allow(self, now: float) -> bool:
        """Return whether the next attempt may be made."""
        return now >= self._not_before

    def failed(self, now: float) -> None:
        """Note a failed attempt."""
        # The bound keeps the power small; the wait has long been the longest by then.
        self._not_before = now + min(self._first * 2 ** min(self._failures, 16), self._last)
        self._failures += 1

    def succeeded(self) -> None:
        """Note that the last attempt succeeded."""
        self._failures, self._not_before = 0, float("-inf")
