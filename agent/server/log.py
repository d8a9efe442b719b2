"""The log: one line per event on standard error, for this project and libraries.

Where standard error is the journal, lines go there as entries of the same text, with priority and
fields to search by. The format is JSON or console. The fields that an operation bound
(`agent.server.events`) are on all its lines, in every thread. Manifests and environments are never
logged.

What goes into a line is short: texts and lists of clients are cut (`shortened`, `first`), and lines
that a peer can cause any number of times are counted (`LimitedLog`). journald cuts a line at 48 KiB
and a pod may have a thousand containers: `allocation_fields` has them in their order as far as they
fit, with the number of the others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias, TypeVar

import msgspec
import structlog
from structlog.stdlib import ProcessorFormatter

from agent.managers.sharing import shares, unused_budget
from agent.text import printable
from sysfs.mask import EMPTY
from systemd.journal import JournalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structlog.typing import EventDict, FilteringBoundLogger, Processor

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.sharing import Share
    from sysfs.mask import Mask
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
    """Leave of each list the first items, and in `NAME_left_out` the number of the others.

    What concerns every cgroup of a host would otherwise be longer than journald takes (48 KiB).
    """
    for name, value in tuple(event.items()):
        if isinstance(value, list | tuple) and len(value) > ITEMS_LOGGED:
            event[name], event[f"{name}_left_out"] = first(value, ITEMS_LOGGED)
    return event


def _on_one_line(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape line breaks and terminal control sequences in values chosen by clients."""
    return {key: _line(value) if key != "exception" else value for key, value in event.items()}


def _line(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


_Item = TypeVar("_Item")

#: The longest text, in characters.
LONGEST_TEXT: Final = 512
#: How many items of a list are logged.
ITEMS_LOGGED: Final = 64


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text of at most `longest` characters, with an ellipsis if it was cut."""
    return text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def first(items: Sequence[_Item], most: int) -> tuple[Sequence[_Item], int]:
    """Return the first items, and the number of the others."""
    return items[:most], max(0, len(items) - most)


#: How many bytes of JSON the containers of a pod may take, of which `ITEMS_LOGGED` are logged.
BYTES_LOGGED: Final = 16 << 10
#: How many devices of a resource are logged.
DEVICES_LOGGED: Final = 32
#: The longest set of CPUs or nodes, name or reason, in characters.
_LONGEST: Final = 256

_Value: TypeAlias = "str | dict[str, list[str]] | None"


def allocation_fields(allocation: PodAllocation, shared_pool: Mask) -> dict[str, object]:
    """Return the allocation of each container and why it is not exclusive.

    `containers` has one entry each; `containers_left_out` is set if there are more, and
    `unused_budget` (by resource, CPUs or bytes) if no container can use some of the budget.
    """
    logged: list[dict[str, _Value]] = []
    room = BYTES_LOGGED
    for container, share in zip(allocation.containers, shares(allocation), strict=True):
        entry = _entry(container, share, shared_pool)
        room -= len(msgspec.json.encode(entry))
        if logged and (room < 0 or len(logged) == ITEMS_LOGGED):
            break
        logged.append(entry)
    fields: dict[str, object] = {"containers": logged}
    if left_out := len(allocation.containers) - len(logged):
        fields["containers_left_out"] = left_out
    if unused := {each.resource: each.unused for each in unused_budget(allocation)}:
        fields["unused_budget"] = unused
    return fields


def allocation_line(allocation: PodAllocation) -> str:
    """Return what a pod has for itself in a line, "" where it shares all: for events."""
    nodes, devices = EMPTY, Counter[str]()
    for container in allocation.containers:
        if container.memory:
            nodes |= container.mems
        devices.update({name: len(ids) for name, ids in container.devices.items()})
    parts = [f"exclusive CPUs {allocation.exclusive_cpus}"] if allocation.exclusive_cpus else []
    if allocation.idle:
        parts[0] += f" (siblings {allocation.idle} idle)"
    if nodes:
        parts.append(f"memory on node{'s' * (len(nodes) > 1)} {nodes}")
    parts.extend(f"{count} {name}" for name, count in sorted(devices.items()))
    return ", ".join(parts)


def _entry(container: ContainerAllocation, share: Share, shared_pool: Mask) -> dict[str, _Value]:
    cpus = shared_pool if container.cpus is None else container.cpus
    return {
        "name": shortened(container.name, _LONGEST),
        "cpus": shortened(str(cpus), _LONGEST),
        "isolation": str(container.isolation),
        "sharing": str(share.sharing),
        "mems": shortened(str(container.mems), _LONGEST) if container.mems else None,
        "devices": _devices(container),
        **{name: shortened(_json(part), _LONGEST) for name, part in container.others.items()},
        "why": shortened(container.why, _LONGEST),
    }


def _json(part: object) -> str:
    return msgspec.json.encode(part).decode()


def _devices(container: ContainerAllocation) -> dict[str, list[str]]:
    logged: dict[str, list[str]] = {}
    for resource, ids in sorted(container.devices.items()):
        listed, left_out = first(ids, DEVICES_LOGGED)
        logged[resource] = [shortened(device, _LONGEST) for device in listed]
        if left_out:
            logged[resource].append(f"and {left_out} more")
    return logged


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
