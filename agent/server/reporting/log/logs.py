"""The log: one line per event on standard error, for this project and libraries.

Where standard error is the journal, lines go there as entries with priority and fields
(`agent.server.reporting.log.journal`). The format is JSON or console. The fields that an operation
bound (`agent.server.reporting.events`) are on all its lines, in every thread. Manifests and
environments are never logged.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter

from agent.server.reporting.log.journal import JournalHandler

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

    from systemd.journal import Journal

CONSOLE: Final = "console"
#: The packages of this project; of all others only warnings are logged.
OURS: Final = ("agent", "cgroupfs", "sysfs", "systemd")


def configure(
    log_format: str, level: str, stream: TextIO | None = None, journal: Journal | None = None
) -> None:
    """Log events of at least `level` (`debug` ... `error`) to `stream`, standard error if None.

    With a `journal` they go there, and to the stream only while the journal is away. `log_format`
    is `json` or `console`.
    """
    target = sys.stderr if stream is None else stream
    rendering = _rendering(log_format, colors=target.isatty())
    handler: logging.Handler = logging.StreamHandler(target)
    handler.setFormatter(_formatter(rendering))
    if journal is not None:
        handler = JournalHandler(journal, instead=handler)
        handler.setFormatter(_formatter([handler.keep_fields, *rendering]))
    logging.getLogger().handlers = [handler]
    set_level(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_common(),
            ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _formatter(rendering: list[Processor]) -> ProcessorFormatter:
    return ProcessorFormatter(
        foreign_pre_chain=_common(),
        processors=[ProcessorFormatter.remove_processors_meta, *rendering],
    )


def set_level(level: str) -> None:
    """Log events of at least `level` from now on."""
    # Debug and info lines of libraries are of use to their developers only.
    root = max(logging.getLevelNamesMapping()[level.upper()], logging.WARNING)
    logging.getLogger().setLevel(root)
    for package in OURS:
        logging.getLogger(package).setLevel(level.upper())


def _common() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _rendering(log_format: str, *, colors: bool) -> list[Processor]:
    if log_format == CONSOLE:
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)
        return [_on_one_line, renderer]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(),
    ]


def _on_one_line(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape line breaks and terminal control sequences in values chosen by clients."""
    return {key: _escaped(value) if key != "exception" else value for key, value in event.items()}


def _escaped(value: object) -> object:
    if not isinstance(value, str) or value.isprintable():
        return value
    return value.encode("unicode_escape").decode("ascii")
