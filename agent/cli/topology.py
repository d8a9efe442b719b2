"""`numawarden topology`: show a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sysfs.host import Host


@click.command()
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Show the host described by the sys/ tree in this directory, such as an unpacked capture.",
)
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="A picture, or all details as JSON.",
)
@click.option(
    "--full", is_flag=True, help="Show every node with its CPUs and every core, without summaries."
)
def topology(root: Path, output: str, *, full: bool) -> None:
    """Show packages, dies, nodes, caches, cores, memory, distances and devices of a host.

    Above 128 CPUs, equal neighbours share a line of the picture, unless --full is given.
    """
    # Imported here, as below: help and completion do not need them.
    from agent.cli.access import warn  # noqa: PLC0415
    from sysfs.discover import discover  # noqa: PLC0415

    host = discover(root)
    warn(host.warnings)
    if output == "json":
        _print_json(host)
    else:
        _draw(host, full=full)


def _print_json(host: Host) -> None:
    from agent.api.topology import topology_view  # noqa: PLC0415

    click.echo(json.dumps(topology_view(host), indent=2))


def _draw(host: Host, *, full: bool) -> None:
    from rich.console import Console  # noqa: PLC0415

    from agent.tools.topology import picture, plain_lines  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    for part in picture(host, full=full):
        if console.is_terminal:
            console.print(part)
            continue
        for line in plain_lines(part):
            click.echo(line)
