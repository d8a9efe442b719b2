"""Log lines as entries of the journal: with their priority and with fields to search by.

The text of an entry is the same line that standard error would have.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from systemd.journal import JournalError

if TYPE_CHECKING:
    from structlog.typing import EventDict

    from systemd.journal import Journal

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


class JournalHandler(logging.Handler):
    """Writes log lines to the journal; to another handler while the journal is away.

    Lines for which a journal that does not keep up has no room are lost, and counted in the next
    line that arrives (field `LINES_LOST`): the agent never waits for its log.
    """

    def __init__(self, journal: Journal, instead: logging.Handler) -> None:
        super().__init__()
        self._journal = journal
        self._instead = instead
        self._lost = 0
        self._fields: dict[str, str] = {}

    def keep_fields(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Keep the fields of an event that is being formatted, before it becomes a text.

        The first processor of this handler's formatter; under the handler's lock.
        """
        found = {FIELDS[key]: event.get(key) for key in FIELDS}
        self._fields = {name: str(value) for name, value in found.items() if value is not None}
        return event

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; an error costs the line, not its caller, as of all handlers."""
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
