"""What the HTTP library logs: a line where a peer speaks no HTTP, for that is the peer's mistake.

Anybody who reaches a listener can send anything; the library would log a traceback for each.
"""

from __future__ import annotations

import logging
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError

_LONGEST: Final = 120


class OneLine(logging.Filter):
    """Turns the record of a message that is no HTTP into one short warning."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record; shorten it where a peer is at fault."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.exc_info = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.args = f"a peer speaks no HTTP: {_shortened(error.message)}", ()
        return True


def http_logger() -> logging.Logger:
    """Return the logger for both listeners."""
    logger = logging.getLogger(__name__)
    if not any(isinstance(present, OneLine) for present in logger.filters):
        logger.addFilter(OneLine())
    return logger


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return ascii(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}...")
