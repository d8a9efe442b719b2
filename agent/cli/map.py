"""`numawarden map`: every CPU, memory node and device of the host, and who uses it."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final

import click

from agent.cli.access import agent_at, find_pod, print_json, socket_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.api.documents import EventDocument
    from agent.api.map import MapDocument
    from agent.tools.map.lines import Line

#: Seconds after which the map is drawn again without an event: containers are found and memory is
#: charged without one.
REDRAW_SECONDS: Final = 5.0
#: Home, and erase what was drawn (ECMA-48, CUP and ED).
_CLEAR: Final = "\x1b[H\x1b[2J"


@click.command("map")
@click.argument("pod", required=False)
@click.option("-w", "--watch", is_flag=True, help="Draw again on every event, until interrupted.")
@click.option(
    "--output",
    type=click.Choice(["text", "json", "svg"]),
    default="text",
    show_default=True,
    help="Text, the JSON document of docs/api.md, or a picture for a browser.",
)
@click.option(
    "--full", is_flag=True, help="Show every core of a large host, and every pod and warning."
)
@socket_option
def show_map(pod: str | None, output: str, socket_path: str, *, watch: bool, full: bool) -> None:
    """Show which CPUs, memory and devices each pod has, with what deserves a look.

    Cores are columns with their threads stacked. With a POD (uid, name or namespace/name), its
    nodes and its allocation alone. Above 128 CPUs cores are counted, unless --full is given.
    """
    if watch and output != "text":
        raise click.UsageError(f"--watch draws text; --output {output} is printed once")
    with agent_at(socket_path) as agent:
        focus = None if pod is None else find_pod(agent, pod).uid

        def draw() -> None:
            if watch and sys.stdout.isatty():
                click.echo(_CLEAR, nl=False)
            _print(agent.map(), output, focus, full=full)

        draw()
        if watch:
            for _ in changes(agent.watch()):
                draw()


def changes(events: Iterable[EventDocument], seconds: float = REDRAW_SECONDS) -> Iterator[None]:
    """Yield on events, once for all that are waiting, and after `seconds` without one.

    Ends with the events; raises what they raise.
    """
    waiting: SimpleQueue[Callable[[], bool]] = SimpleQueue()
    Thread(target=_collect, args=(events, waiting), daemon=True).start()
    while _goes_on(waiting, seconds):
        yield


def _collect(events: Iterable[EventDocument], waiting: SimpleQueue[Callable[[], bool]]) -> None:
    def failed(error: Exception) -> bool:
        raise error

    try:
        for _ in events:
            waiting.put(lambda: True)
    except Exception as error:  # noqa: BLE001  # raised again where the events are waited for
        raised = error
        waiting.put(lambda: failed(raised))
    else:
        waiting.put(lambda: False)


def _goes_on(waiting: SimpleQueue[Callable[[], bool]], seconds: float) -> bool:
    """Wait for an event or the time, take all events that are there; return False at the end."""
    with suppress(Empty):
        go_on = waiting.get(timeout=seconds)()
        while go_on:
            go_on = waiting.get_nowait()()
        return False
    return True


def _print(document: MapDocument, output: str, focus: str | None, *, full: bool) -> None:
    if output == "json":
        print_json(document)
    elif output == "svg":
        from agent.tools.map.svg import svg_of  # noqa: PLC0415  # help needs no drawing

        click.echo(svg_of(document, focus))
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
    print_drawn(map_lines(document, layout), colours=terminal and not os.environ.get("NO_COLOR"))


def print_drawn(lines: Iterable[Line], *, colours: bool) -> None:
    """Print the lines of a picture."""
    from agent.tools.map.lines import painted, plain  # noqa: PLC0415  # as above

    for spans in lines:
        click.echo(painted(spans) if colours else plain(spans))


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
