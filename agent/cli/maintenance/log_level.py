"""`numawarden log-level`: log more, or less, for a while."""

from __future__ import annotations

import click

from agent.cli.access import agent_at, level_text, socket_option
from agent.cli.terminal.output import Output, output_option, print_document


@click.command("log-level")
@click.argument("level", required=False, metavar="[debug|info|warning|error]")
@click.option("--for", "time", metavar="TIME", help="Then the configured level: 10m, 1h30m, 90s.")
@output_option
@socket_option
def log_level(level: str | None, time: str | None, output: Output, socket_path: str) -> None:
    """Show the level of the agent's log, or log at another LEVEL.

    Without --for the level stays until the agent ends; the configuration (agent.logging.level)
    stays as it is.
    """
    from agent.api.maintenance import LogLevelRequest  # noqa: PLC0415  # help needs none of it

    if time is not None and level is None:
        raise click.UsageError("--for needs a LEVEL")
    seconds = None if time is None else _seconds(time)
    with agent_at(socket_path) as agent:
        asked = None if level is None else LogLevelRequest(level=level, seconds=seconds)
        answer = agent.log_level(asked)
    if output is Output.TEXT:
        click.echo(level_text(answer))
    else:
        print_document(answer, output)


def _seconds(text: str) -> float:
    from agent.config.kinds import seconds_of  # noqa: PLC0415  # help reads no duration

    seconds = seconds_of(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not a duration such as 10m", param_hint="--for")
    return seconds
