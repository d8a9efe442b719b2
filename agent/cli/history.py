"""`numawarden history`: what happened, who asked for it, and which settings differed.

Renders `HistoryDocument`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from agent.cli.common import agent_at
from agent.cli.completion import complete_pods
from agent.cli.lines import labelled, moment
from agent.cli.options import Output, output_option, socket_option
from agent.cli.output import print_answer
from agent.cli.resource_text import kubelet_container_lines
from agent.config.durations import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.history import HistoryDocument, HistoryEntry
    from agent.api.documents.verification import DriftDocument

#: Digits of the days of a duration at most.
_DIGITS: Final = 5


def _duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return a duration in seconds; raises `click.BadParameter`."""
    if text is None:
        return None
    days, has_days, rest = text.partition("d")
    if not has_days:
        days, rest = "0", text
    seconds = seconds_of(rest) if rest or not has_days else 0.0
    if seconds is None or not (days.isascii() and days.isdecimal() and len(days) <= _DIGITS):
        raise click.BadParameter(f"{text!r} is not a duration such as 90s, 15m, 1h30m or 7d")
    return int(days) * 86400 + seconds


@click.command()
@click.argument("pod", default="", shell_complete=complete_pods)
@click.option(
    "--since",
    metavar="DURATION",
    callback=_duration,
    help="Only what happened within this time: 90s, 15m, 1h30m, 7d.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="At most so many entries.",
)
@output_option
@socket_option
def history(pod: str, since: float | None, limit: int, output: Output, socket_path: str) -> None:
    """Show what happened, the latest first: to POD (uid, name or namespace/name), or to all.

    Admissions, rejections and removals with who asked for them, settings of cgroups that another
    process changed, changes of the host and of the configuration, starts and stops of the agent.
    """
    start = 0.0 if since is None else max(0.0, time.time() - since)
    with agent_at(socket_path) as agent:
        answer = agent.history(pod=pod, since=start, limit=limit)
    print_answer(answer, output, history_lines)


def history_lines(history: HistoryDocument) -> Iterator[str]:
    """Yield the lines of a history."""
    for entry in history.entries:
        yield from _entry_lines(entry)
    if not history.entries:
        yield "nothing of that kind is in the history"
    if history.more:
        yield "there are older entries: -n shows more"
    if history.damaged:
        yield f"note: {history.damaged} damaged lines of the history were passed over"


def _entry_lines(entry: HistoryEntry) -> Iterator[str]:
    parts = (
        moment(entry.time),
        f"{entry.type:<20}",
        entry.pod or entry.uid,
        "" if entry.requester is None else entry.requester.line(),
        f"operation {entry.operation}" if entry.operation else "",
    )
    yield "  ".join(part for part in parts if part.strip())
    yield from labelled("    ", entry.message.splitlines())
    yield from labelled("    ", kubelet_container_lines(entry.kubelet_devices))
    yield from labelled("    ", map(_difference, entry.differences))


def _difference(difference: DriftDocument) -> str:
    container = f"container {difference.container}: " if difference.container else ""
    repaired = "repaired" if difference.repaired else "not repaired by that comparison"
    writer = "" if difference.writer is None else f"; {difference.writer.line()}"
    return f"{container}{difference.detail} ({difference.cause}), {repaired}{writer}"
