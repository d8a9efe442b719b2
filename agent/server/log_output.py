"""Where log lines go: one line per event on standard error, for this project and libraries.

In go the events of structlog and of `logging`; out come lines in JSON or for a console, or entries
of the journal where standard error is the journal: the same text, with a priority and with fields
to search by. The fields that an operation bound (`agent.server.operations`) are on all its lines,
in every thread. The agent never waits for the journal. Manifests and environments are never logged,
and lists are cut: journald cuts a line at 48 KiB.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter

from agent.server.log import ITEMS_LOGGED, first
from agent.text import printable
from systemd.journal import JournalError

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

    from systemd.journal import Journal

CONSOLE: Final = "console"
#: The packages of this project; of all others only warnings are logged.
OURS: Final = ("agent", "cgroupfs", "sysfs", "systemd")
#: The fields of an entry, by the key of the log event that they are made of.
FIELDS: Final = {
    "event": "EVENT",
    "operation": "OPERATION",
    "action": "ACTION",
    "pod": "POD",
    "uid": "POD_UID",
    "container": "CONTAINER",
    "cgroup": "CGROUP",
    "logger": "LOGGER",
}
#: The identifier by which `journalctl -t` finds the agent.
IDENTIFIER: Final = "numawarden"
#: From `logging`'s levels to those of syslog(3).
_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
_DEBUG: Final = 7


def configure(
    log_format: str, level: str, stream: TextIO | None = None, journal: Journal | None = None
) -> None:
    """Log events from `level` (`debug` ... `error`) on to `stream`, standard error if None.

    With a `journal` they go there, and to the stream only while there is no journal. `log_format`
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
    _set_level(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_common(),
            _first_of_lists,
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


def _set_level(level: str) -> None:
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


def _first_of_lists(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Cut each list to its first items; the field `NAME_left_out` has the number of the others."""
    for name, value in tuple(event.items()):
        if isinstance(value, list | tuple) and len(value) > ITEMS_LOGGED:
            event[name], event[f"{name}_left_out"] = first(value, ITEMS_LOGGED)
    return event


def _on_one_line(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape line breaks and terminal control sequences in values chosen by clients."""
    return {key: _line(value) if key != "exception" else value for key, value in event.items()}


def _line(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


class JournalHandler(logging.Handler):
    """Writes log lines to the journal, and to the handler `instead` while there is no journal.

    A journal that does not keep up has no room for a line. Such lines are lost, and the next line
    that arrives has their number (field `LINES_LOST`).
    """

    def __init__(self, journal: Journal, instead: logging.Handler) -> None:
        super().__init__()
        self._journal = journal
        self._instead = instead
        #: The lines that were lost since the last one that arrived.
        self._lost = 0
        #: The journal's fields of the line that is being formatted.
        self._fields: dict[str, str] = {}

    def keep_fields(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Keep the journal's fields of an event, before the event becomes a text.

        This is the first processor of this handler's formatter, and runs under the handler's lock.
        """
        fields = {name: event.get(key) for key, name in FIELDS.items()}
        self._fields = {name: str(value) for name, value in fields.items() if value is not None}
        return event

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; an error loses the line, as in all handlers, and its caller goes on."""
        try:
            self._write(record)
        except Exception:  # noqa: BLE001  # reported as logging reports every handler's errors
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        fields = {
            "MESSAGE": text,
            "PRIORITY": str(priority(record.levelno)),
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            **self._fields,
        }
        if self._lost:
            fields["LINES_LOST"] = str(self._lost)
        try:
            self._journal.send(fields)
        except JournalError as error:
            if error.full:
                self._lost += 1
            else:
                self._instead.handle(record)
        else:
            self._lost = 0


def priority(level: int) -> int:
    """Return the priority of syslog(3) of a level of `logging`."""
    return next((number for least, number in _PRIORITIES if level >= least), _DEBUG)
