"""`numawarden map`: every CPU, memory node and device of the host, and who uses it."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from agent.cli.access import agent_at, find_pod, socket_option
from agent.cli.terminal.completion import pod_argument
from agent.cli.terminal.output import Output, has_colours, output_of, print_document
from agent.cli.terminal.redraw import check_watch, draw_again, watch_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.api.host.map import MapDocument
    from agent.tools.map.lines import Line


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
