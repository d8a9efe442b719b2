"""`numawarden capture`: archive what discovery reads of a host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from typing import BinaryIO


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
    target: Path | BinaryIO = sys.stdout.buffer if piped else file
    captured = write_capture(root, target)
    warn(captured.warnings)
    name = "standard output" if piped else file
    click.echo(f"{name}: {captured.files} files of the host at {root}", err=piped)
