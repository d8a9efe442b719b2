"""`numawarden replay`: decides pods on a described host, without an agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli.errors import ExitCode
from agent.cli.terminal.output import print_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.tools.replay.play import ReplaySequence


@click.command()
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "jsonl"]),
    default="text",
    show_default=True,
    help="Text, or one line of JSON for each step.",
)
def replay(files: tuple[Path, ...], output: str) -> int:
    """Decide sequences of pods on described hosts, without changing anything.

    A FILE is a sequence in YAML or JSON (docs/replay.md), or one of recorded sequences (*.jsonl,
    *.jsonl.gz), a line each. Exits with 0 when every pod was admitted, 1 when any was rejected or
    the agent would not start, and 3 when a file is wrong; nothing is decided of that file then.
    """
    # Imported here: help and completion do not need them.
    from agent.api.documents import encode  # noqa: PLC0415
    from agent.cli.text.replay import outcome_lines, title  # noqa: PLC0415
    from agent.tools.replay.documents import step_line  # noqa: PLC0415
    from agent.tools.replay.play import play  # noqa: PLC0415

    code = ExitCode.OK
    for file, sequence in _sequences(files):
        if output == "text":
            click.echo(title(file, sequence))
        for outcome in play(sequence):
            if outcome.state is None or (outcome.decision and not outcome.decision.admitted):
                code = ExitCode.REJECTED
            if output == "jsonl":
                click.echo(encode(step_line(str(file), sequence.name, outcome)))
            else:
                print_lines(outcome_lines(outcome))
    return code


def _sequences(files: tuple[Path, ...]) -> Iterator[tuple[Path, ReplaySequence]]:
    from agent.tools.replay.reading import load_sequence  # noqa: PLC0415
    from agent.tools.replay.recorded import SUFFIXES, recorded_sequences  # noqa: PLC0415

    for file in files:
        if file.name.endswith(SUFFIXES):
            yield from ((file, sequence) for sequence in recorded_sequences(file))
        else:
            yield file, load_sequence(file)
