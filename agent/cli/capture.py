"""`numawarden capture`: archive what discovery reads of a host."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Capture the host whose sys/ stands here instead of this one.",
)
def capture(file: Path, root: Path) -> None:
    """Archive in FILE (a .tar.gz) the files that discovery reads of this host.

    Unpacked into a directory, the archive shows the same host:
    numawarden topology --root DIRECTORY. It holds totals and places, no MAC addresses and no
    serial numbers.
    """
    # Imported here: help and completion need no archives.
    from sysfs.capture import capture as write_capture  # noqa: PLC0415

    count = write_capture(root, file)
    click.echo(f"{file}: {count} files of the host at {root}")
