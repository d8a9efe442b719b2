"""`numawarden map`, `topology` and `capture`: who uses a host, what it has, and its archive."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from agent.api.map import map_of_host
from agent.api.topology import topology_view
from agent.cli.common import agent_at, find_pod, names_of
from agent.cli.completion import complete_pods
from agent.cli.errors import CommandError, ExitCode
from agent.cli.options import (
    Output,
    host_option,
    output_option,
    socket_option,
    watch_option,
)
from agent.cli.output import has_colours, print_document, print_encoded, print_lines, warn
from agent.cli.watching import check_watch, draw_again
from agent.tools.map.owners import owner_lines
from agent.tools.map.spans import painted, plain
from agent.tools.map.text import MapLayout, map_lines
from sysfs.capture import capture as write_capture
from sysfs.discover import discover
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.client import AgentClient
    from agent.api.documents.map import MapDocument


@click.command("map")
@click.argument("named", metavar="[POD|CPUS|node:N]", required=False, shell_complete=complete_pods)
@watch_option
@output_option
@click.option(
    "--full", is_flag=True, help="Show every core of a large host, and every pod and warning."
)
@socket_option
def show_map(
    named: str | None, output: Output, socket_path: str, *, watch: bool, full: bool
) -> None:
    """Show which CPUs, memory and devices each pod has, with what deserves a look.

    Cores are columns with their threads stacked. With a POD (uid, name or namespace/name), its
    nodes and its allocation alone; with CPUs such as 12 or a node, who has them, by name. Above 128
    CPUs cores are counted, unless --full is given.
    """
    check_watch(output, watch=watch)
    with agent_at(socket_path) as agent:
        place, focus = _place(agent, named), None
        if named is not None and place is None:
            focus = find_pod(agent, named).uid

        def draw() -> None:
            document = agent.map()
            if place is not None and not output.is_document:
                print_lines(_owners(document, *place))
            else:
                _print(document, output, focus, full=full)

        draw_again(agent, draw, watch=watch)


#: CPUs, or nodes: a pod may be called so, too.
_PLACE: Final = re.compile(r"(node:)?([0-9][0-9,-]*)")


def _place(agent: AgentClient, named: str | None) -> tuple[str, Mask] | None:
    """Return `CPU` or `node` with its numbers; None for what is the name of a pod."""
    match = None if named is None else _PLACE.fullmatch(named)
    if match is None or any(named in names_of(pod) for pod in agent.pods()):
        return None
    try:
        return "node" if match[1] else "CPU", Mask.parse(match[2])
    except ValueError as error:
        raise click.UsageError(f"{named}: {error}") from error


def _owners(document: MapDocument, what: str, ids: Mask) -> Iterator[str]:
    parts = document.nodes if what == "node" else document.cpus
    of_host = Mask.from_ids(part.id for part in parts)
    if unknown := ids - of_host:
        message = f"this host has no {what} {unknown}; it has {what}s {of_host}"
        raise CommandError(message, ExitCode.BAD_INPUT)
    if what == "node":
        ids = Mask.from_ids(
            cpu.id for cpu in document.cpus if cpu.node is not None and cpu.node in ids
        )
    yield from owner_lines(document, ids)
    if not ids:
        yield "no CPUs are there"


def _print(document: MapDocument, output: Output, focus: str | None, *, full: bool) -> None:
    if output.is_document:
        print_document(document, output)
    else:
        draw_map(document, focus=focus, full=full)


def draw_map(document: MapDocument, *, focus: str | None = None, full: bool = False) -> None:
    """Print a map.

    A terminal gets lines of its width, in colours unless NO_COLOR (https://no-color.org) is set. A
    pipe gets lines that are not wrapped.
    """
    terminal = sys.stdout.isatty()
    layout = MapLayout(
        width=shutil.get_terminal_size().columns if terminal else None,
        full=full,
        focus=focus,
        ascii_only=not _can_show("█░▒"),
    )
    form = painted if has_colours() else plain
    for spans in map_lines(document, layout):
        click.echo(form(spans))


def _can_show(text: str) -> bool:
    """Return whether standard output can show a text.

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
