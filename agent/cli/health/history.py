"""`numawarden history`: what happened, and who asked for it."""

from __future__ import annotations

import time
from typing import Final

import click

from agent.cli.access import agent_at, socket_option
from agent.cli.terminal.completion import complete_pods
from agent.cli.terminal.output import Output, output_option, print_document, print_lines

#: How many digits the days of a duration have at most.
_DIGITS: Final = 5


def _duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return a duration in seconds; raises `click.BadParameter`."""
    if text is None:
        return None
    from agent.config.kinds import seconds_of  # noqa: PLC0415  # not needed for help

    days, found, rest = text.partition("d")
    if not found:
        days, rest = "0", text
    seconds = seconds_of(rest) if rest or not found else 0.0
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
    from agent.cli.text.history import history_lines  # noqa: PLC0415  # not needed for help

    start = 0.0 if since is None else max(0.0, time.time() - since)
    with agent_at(socket_path) as agent:
        answer = agent.history(pod=pod, since=start, limit=limit)
    if output.is_document:
        print_document(answer, output)
    else:
        print_lines(history_lines(answer))
