"""What keeps log lines short and few, whatever others send: bounds, and a log that counts.

In go texts and lists that others chose, and lines that others can cause at any rate, such as those
of a peer that sends nonsense. Out come texts of a bounded length (`shortened`), the first items of
a list (`first`), and lines of a bounded rate (`LimitedLog`). What is left out is counted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structlog.typing import FilteringBoundLogger

_Item = TypeVar("_Item")

#: The most characters of a text that others chose.
LONGEST_TEXT: Final = 512
#: The most items of a list in a line.
ITEMS_LOGGED: Final = 64
#: How long the lines of a kind are counted before the count is written, in seconds.
COUNTING_SECONDS: Final = 60.0


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text of at most `longest` characters, with an ellipsis if it was cut."""
    return text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def first(items: Sequence[_Item], most: int) -> tuple[Sequence[_Item], int]:
    """Return the first `most` items, and the number of the others."""
    return items[:most], max(0, len(items) - most)


class LimitedLog:
    """Writes the first line of each kind to `log`, and counts further ones.

    A count has the fields of the last line, and the number of lines in `more`. `later(seconds,
    callback, *arguments)` is the running loop's `call_later` where it is None.
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


class _Kind:
    """The counted lines of one kind."""

    def __init__(self, write: Callable[..., Any]) -> None:
        self.write = write
        self.count = 0
        #: Those of the last counted line.
        self.fields: dict[str, object] = {}
