"""`numawarden map`, `topology` and `capture`: a host, who uses it, and an archive of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli.common import (
    Output,
    agent_at,
    check_watch,
    draw_again,
    find_pod,
    has_colours,
    output_of,
    output_option,
    pod_argument,
    print_document,
    print_encoded,
    socket_option,
    watch_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from agent.api.host.map import MapDocument
    from agent.tools.map.lines import Line
    from sysfs.host import Host


@click.command("map")
@pod_argument(required=False)
@watch_option
@output_of(Output.TEXT, Output.JSON, Output.YAML, Output.SVG)
@click.option(
    "--full", is_flag=True, help="Show every core of a large host, and every pod and warning."
)
@socket_option
def show_map(pod: str | None, output: Output, socket_path: str, *, watch: bool, full: bool) -> None:
    """Show which CPUs, memory and devices each pod has, with what deserves a look.

    Cores are columns with their threads stacked. With a POD (uid, name or namespace/name), its
    nodes and its allocation alone. Above 128 CPUs cores are counted, unless --full is given.
    """
    check_watch(output, watch=watch)
    with agent_at(socket_path) as agent:
        focus = None if pod is None else find_pod(agent, pod).uid
        draw_again(agent, lambda: _print(agent.map(), output, focus, full=full), watch=watch)


def _print(document: MapDocument, output: Output, focus: str | None, *, full: bool) -> None:
    if output.is_document:
        print_document(document, output)
    elif output is Output.SVG:
        from agent.tools.map.svg import svg_of  # noqa: PLC0415  # help needs no drawing

        click.echo(svg_of(document, focus, full=full))
    else:
        draw_text(document, focus=focus, full=full)


def draw_text(document: MapDocument, *, focus: str | None = None, full: bool = False) -> None:
    """Print a map: as wide as the terminal and in its colours, or unbroken lines into a pipe.

    NO_COLOR (https://no-color.org) switches colours off.
    """
    from agent.tools.map.text import MapLayout, map_lines  # noqa: PLC0415  # help needs no drawing

    terminal = sys.stdout.isatty()
    layout = MapLayout(
        width=shutil.get_terminal_size().columns if terminal else None,
        full=full,
        focus=focus,
        ascii_only=not _can_show("█░▒"),
    )
    print_drawn(map_lines(document, layout), colours=has_colours())


def print_drawn(lines: Iterable[Line], *, colours: bool) -> None:
    """Print the lines of a picture."""
    from agent.tools.map.lines import painted, plain  # noqa: PLC0415  # as above

    for spans in lines:
        click.echo(painted(spans) if colours else plain(spans))


def _can_show(text: str) -> bool:
    """Return whether standard output takes a text.

    In the C locale terminals show ASCII, though Python writes UTF-8 there (PEP 540).
    """
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    if locale in {"C", "POSIX"}:
        return text.isascii()
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


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
    from agent.cli.common import warn  # noqa: PLC0415
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
    from agent.cli.common import warn  # noqa: PLC0415
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
