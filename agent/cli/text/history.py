"""The history as text: each entry with who asked for it, and which settings differed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cli.access import moment
from agent.cli.text.pods import given_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.history import HistoryDocument, HistoryEntry
    from agent.api.status import DriftDocument


def history_lines(history: HistoryDocument) -> Iterator[str]:
    """Yield the lines of a history."""
    for entry in history.entries:
        yield from map(_printable, _entry_lines(entry))
    if not history.entries:
        yield "nothing of that kind is in the history"
    if history.more:
        yield "there are older entries: -n shows more"
    if history.damaged:
        yield f"note: {history.damaged} damaged lines of the history were passed over"


def _entry_lines(entry: HistoryEntry) -> Iterator[str]:
    said = (
        moment(entry.time),
        f"{entry.type:<20}",
        entry.pod or entry.uid,
        "" if entry.requester is None else entry.requester.line(),
        f"operation {entry.operation}" if entry.operation else "",
    )
    yield "  ".join(part for part in said if part.strip())
    for line in entry.message.splitlines():
        yield f"    {line}"
    yield from (f"    {line}" for line in given_lines(entry.kubelet_devices))
    for difference in entry.differences:
        yield f"    {_difference(difference)}"


def _difference(difference: DriftDocument) -> str:
    container = f"container {difference.container}: " if difference.container else ""
    repaired = "repaired" if difference.repaired else "not repaired by that comparison"
    writer = "" if difference.writer is None else f"; {difference.writer.line()}"
    return f"{container}{difference.detail} ({difference.cause}), {repaired}{writer}"


def _printable(line: str) -> str:
    """Return a line with control characters of the names of processes and cgroups escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
