"""`numawarden topology` and `capture`: show a host, and archive what discovery reads of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli.terminal.output import Output, output_option, print_encoded

if TYPE_CHECKING:
    from typing import BinaryIO

    from sysfs.host import Host


@click.command()
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    envvar="NUMAWARDEN_ROOT",
    help="Show the host described by the sys/ tree in this directory, such as an unpacked capture; "
    "also taken from NUMAWARDEN_ROOT.",
)
@output_option
@click.option(
    "--full", is_flag=True, help="Show every node with its CPUs and every core, without summaries."
)
def topology(root: Path, output: Output, *, full: bool) -> None:
    """Show packages, dies, nodes, caches, cores, memory, distances and devices of a host.

    Above 128 CPUs, equal neighbours share a line of the picture, unless --full is given.
    """
    # Imported here, as below: help and completion do not need them.
    from agent.cli.access import warn  # noqa: PLC0415
    from sysfs.discover import discover  # noqa: PLC0415

    host = discover(root)
    warn(host.warnings)
    if output.is_document:
        _print_details(host, output)
    else:
        _draw(host, full=full)


def _print_details(host: Host, output: Output) -> None:
    from agent.api.host.topology import topology_view  # noqa: PLC0415

    print_encoded(json.dumps(topology_view(host)).encode(), output)


def _draw(host: Host, *, full: bool) -> None:
    from agent.api.host.mapped import map_of_host  # noqa: PLC0415
    from agent.cli.map import draw_text  # noqa: PLC0415

    draw_text(map_of_host(host), full=full)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Capture the host described by the sys/ tree in this directory.",
)
def capture(file: Path, root: Path) -> None:
    """Archive in FILE (a .tar.gz, - is standard output) what discovery reads of this host.

    Unpacked into a directory, the archive shows the same host:
    numawarden topology --root DIRECTORY. It holds totals and places, no MAC addresses and no
    serial numbers.
    """
    # Imported here: help and completion need no archives.
    from agent.cli.access import warn  # noqa: PLC0415
    from sysfs.capture import capture as write_capture  # noqa: PLC0415

    piped = str(file) == "-"
    if not piped and file.is_file() and not file.is_symlink():
        from agent.cli.errors import CommandError, ExitCode  # noqa: PLC0415  # as above

        message = f"{file} exists; remove it, or name another file"
        raise CommandError(message, ExitCode.BAD_INPUT)
    target: Path | BinaryIO = sys.stdout.buffer if piped else file
    captured = write_capture(root, target)
    warn(captured.warnings)
    name = "standard output" if piped else file
    click.echo(f"{name}: {captured.files} files of the host at {root}", err=piped)
