"""`numawarden watch`: events as they happen."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from agent.cli.access import agent_at, output_option, socket_option

if TYPE_CHECKING:
    from agent.wire import EventDocument


@click.command()
@output_option
@socket_option
def watch(output: str, socket_path: str) -> None:
    """Print events as they happen, a line each, until interrupted or the agent ends."""
    from agent.wire import encode  # noqa: PLC0415  # help needs none of it

    with agent_at(socket_path) as agent:
        for event in agent.watch():
            click.echo(encode(event) if output == "json" else _line(event))


def _line(event: EventDocument) -> str:
    when = datetime.fromtimestamp(event.time, UTC).strftime("%H:%M:%SZ")
    said = (event.type, event.pod, event.message)
    return "  ".join((when, *(part for part in said if part)))
