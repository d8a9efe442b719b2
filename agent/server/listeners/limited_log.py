"""Rate-limited log lines: the first of a kind at once, then one line with a count each minute.

For lines that any peer can cause. Otherwise a peer could fill the journal, whose rate limit would
then drop important lines.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

#: How long further lines of a kind are only counted, in seconds.
COUNTING_SECONDS: Final = 60.0


class _Kind:
    """The suppressed lines of one kind: their number, and the fields of the last one."""

    def __init__(self, write: Callable[..., Any]) -> None:
        self.write = write
        self.count = 0
        self.fields: dict[str, object] = {}


class LimitedLog:
    """Writes the first line of each kind (level and event) at once, and counts further ones.

    A counted line has the fields of the last one and their number in `more`.
    `later(seconds, callback, *arguments)` is the running loop's `call_later` where it is None.
    """

    def __init__(
        self, log: FilteringBoundLogger, later: Callable[..., object] | None = None
    ) -> None:
        self._log = log
        self._later = later
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def warning(self, event: str, **fields: object) -> None:
        """Log a warning, at once or as part of a count."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log an error, at once or as part of a count."""
        self._say("error", event, fields)

    def flush(self) -> None:
        """Write all counts."""
        for key in tuple(self._kinds):
            self._report(key)

    def _say(self, level: str, event: str, fields: dict[str, object]) -> None:
        kind = self._kinds.get((level, event))
        if kind is not None:
            kind.count += 1
            kind.fields = fields
            return
        kind = self._kinds[level, event] = _Kind(getattr(self._log, level))
        kind.write(event, **fields)
        self._await_more((level, event))

    def _report(self, key: tuple[str, str]) -> None:
        """Write the count of a kind and start the next count; stop if there were no lines."""
        kind = self._kinds.get(key)
        if kind is None:
            return
        if not kind.count:
            del self._kinds[key]
            return
        kind.write(key[1], more=kind.count, **kind.fields)
        kind.count, kind.fields = 0, {}
        self._await_more(key)

    def _await_more(self, key: tuple[str, str]) -> None:
        later = self._later or asyncio.get_running_loop().call_later
        later(COUNTING_SECONDS, self._report, key)
