"""Drawing again on every change of the agent (`-w`)."""

from __future__ import annotations

import sys
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

import click

from agent.cli.errors import CommandError, ExitCode
from agent.cli.terminal.output import Output, reader_is_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.api.client import AgentClient
    from agent.api.documents import EventDocument

_T = TypeVar("_T")

#: Seconds after which is drawn again without an event: containers are found and memory is charged
#: without one.
REDRAW_SECONDS: Final = 5.0
#: Home, and erase what was drawn (ECMA-48, CUP and ED).
_CLEAR: Final = "\x1b[H\x1b[2J"
_DRAWN: Final = frozenset({Output.TEXT, Output.TABLE, Output.WIDE})

watch_option: Final = click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Draw again on every event, until interrupted; exits with 4 when the agent ends.",
)


def draw_again(agent: AgentClient, draw: Callable[[], None], *, watch: bool) -> None:
    """Draw once, or with `watch` again on every change; a terminal is cleared before."""
    clear = watch and sys.stdout.isatty()

    def cleared() -> None:
        if clear:
            click.echo(_CLEAR, nl=False)
        draw()

    cleared()
    if watch:
        for _ in until_unread(changes(agent.watch())):
            cleared()
        agent_ended()


def until_unread(events: Iterable[_T]) -> Iterator[_T]:
    """Yield events for as long as standard output has a reader."""
    for event in events:
        if reader_is_gone():
            raise click.exceptions.Exit(ExitCode.OK)
        yield event


def agent_ended() -> None:
    """Raise `CommandError`: what was to go on until interrupted has ended."""
    message = "the agent ended; see 'systemctl status numawarden' and 'journalctl -u numawarden'"
    raise CommandError(message, ExitCode.UNREACHABLE)


def check_watch(output: Output, *, watch: bool) -> None:
    """Raise `click.UsageError` for a form of output that is not drawn but printed once."""
    if watch and output not in _DRAWN:
        raise click.UsageError(f"--watch draws text; --output {output} is printed once")


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
