"""`numawarden topology` and `capture`: show a host, and archive what discovery reads of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import BinaryIO

import click

from agent.api.host.mapped import map_of_host
from agent.api.host.topology import topology_view
from agent.cli.common import print_encoded, warn
from agent.cli.errors import CommandError, ExitCode
from agent.cli.map import draw_map
from agent.cli.options import Output, host_option, output_option
from sysfs.capture import capture as write_capture
from sysfs.discover import discover


@click.command()
@host_option(
    "Show the host described by the sys/ tree in this directory, such as an unpacked capture; "
    "also taken from NUMAWARDEN_ROOT.",
    envvar="NUMAWARDEN_ROOT",
)
@output_option
@click.option(
    "--full", is_flag=True, help="Show every node with its CPUs and every core, without summaries."
)
def topology(root: Path, output: Output, *, full: bool) -> None:
    """Show packages, dies, nodes, caches, cores, memory, distances and devices of a host.

    Above 128 CPUs, equal neighbours share a line of the picture, unless --full is given.
    """
    host = discover(root)
    warn(host.warnings)
    if output.is_document:
        print_encoded(json.dumps(topology_view(host)).encode(), output)
    else:
        draw_map(map_of_host(host), full=full)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@host_option("Capture the host described by the sys/ tree in this directory.")
def capture(file: Path, root: Path) -> None:
    """Archive in FILE (a .tar.gz, - is standard output) what discovery reads of this host.

    Unpacked into a directory, the archive shows the same host:
    numawarden topology --root DIRECTORY. It holds totals and places, no MAC addresses and no
    serial numbers.
    """
    piped = str(file) == "-"
    if not piped and file.is_file() and not file.is_symlink():
        message = f"{file} exists; remove it, or name another file"
        raise CommandError(message, ExitCode.BAD_INPUT)
    target: Path | BinaryIO = sys.stdout.buffer if piped else file
    captured = write_capture(root, target)
    warn(captured.warnings)
    name = "standard output" if piped else file
    click.echo(f"{name}: {captured.files} files of the host at {root}", err=piped)
