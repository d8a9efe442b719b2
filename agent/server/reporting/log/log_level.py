"""The level of the log at run time: another one for a while, then the configured one again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from agent.api.maintenance import LogLevelDocument
from agent.clock import wait_for
from agent.config.model import LogLevel
from agent.server.errors import RequestError
from agent.server.reporting.log.logs import set_level
from agent.yaml import Mistake

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.api.maintenance import LogLevelRequest
    from agent.clock import Clock

log = structlog.get_logger(__name__)

#: The longest time for another level than the configured one, in seconds: a week.
LONGEST: Final = 7 * 24 * 3600.0
_ORDER: Final = tuple(LogLevel)


class LogLevelSwitch:
    """Which level is in effect; a restart begins with the `configured` one."""

    def __init__(
        self, configured: LogLevel = LogLevel.INFO, apply: Callable[[str], None] = set_level
    ) -> None:
        self._configured = configured
        self._level = configured
        #: When the configured level returns: the monotonic and the Unix time; None: never.
        self._until: tuple[float, float] | None = None
        self._apply = apply
        self._changed = asyncio.Event()

    def document(self) -> LogLevelDocument:
        """Return the level in effect, the configured one, and until when they differ."""
        until = None if self._until is None else self._until[1]
        return LogLevelDocument(level=self._level, configured=self._configured, until=until)

    def switch(self, request: LogLevelRequest, clock: Clock) -> LogLevelDocument:
        """Log at another level, for a time or until the agent ends; raises `RequestError`."""
        try:
            level = LogLevel(request.level)
        except ValueError:
            message = f"level is one of {', '.join(LogLevel)}, found {request.level[:32]!r}"
            raise RequestError(message, (Mistake("level", "unknown"),)) from None
        seconds = request.seconds
        if seconds is not None and not 0 < seconds <= LONGEST:
            message = f"seconds are more than 0 and at most {LONGEST:.0f}, found {seconds:g}"
            raise RequestError(message, (Mistake("seconds", "out of bounds"),))
        self._until = None
        if seconds is not None and level is not self._configured:
            self._until = clock.monotonic() + seconds, clock.time() + seconds
        self._take(level, seconds)
        self._changed.set()
        return self.document()

    async def serve(self, clock: Clock) -> NoReturn:
        """Return to the configured level when the time is over."""
        while True:
            if self._until is None:
                await self._changed.wait()
            else:
                await wait_for(self._changed, self._until[0] - clock.monotonic(), clock)
            self._changed.clear()
            if self._until is not None and self._until[0] <= clock.monotonic():
                self._until = None
                self._take(self._configured, None)

    def _take(self, level: LogLevel, seconds: float | None) -> None:
        """Use a level; the change itself is logged at the more talkative of both levels."""
        if _ORDER.index(level) > _ORDER.index(self._level):
            log.warning("log level changed", level=str(level), seconds=seconds)
            self._apply(level)
        else:
            self._apply(level)
            log.warning("log level changed", level=str(level), seconds=seconds)
        self._level = level
