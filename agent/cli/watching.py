"""Drawing again: a command with `--watch` draws once, then again after every event of the agent.

Ends when standard output loses its reader (exit code 0), or when the agent ends (exit code 4).
"""

from __future__ import annotations

import sys
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

import click

from agent.cli.errors import CommandError, ExitCode, reader_is_gone
from agent.cli.options import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.api.client import AgentClient
    from agent.api.documents.history import EventDocument

_T = TypeVar("_T")

#: Seconds without an event after which a command draws again. No event says that a container was
#: found or that memory was charged.
REDRAW_SECONDS: Final = 5.0
#: Home, and erase the screen (ECMA-48, CUP and ED).
_CLEAR: Final = "\x1b[H\x1b[2J"
_DRAWN: Final = frozenset({Output.TEXT, Output.TABLE, Output.WIDE})


def check_watch(output: Output, *, watch: bool) -> None:
    """Raise `click.UsageError` for `--watch` with a document, which is printed once."""
    if watch and output not in _DRAWN:
        raise click.UsageError(f"--watch draws text; --output {output} is printed once")


def draw_again(agent: AgentClient, draw: Callable[[], None], *, watch: bool) -> None:
    """Draw once; with `watch` again after every event. A terminal is cleared before."""
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
    """Raise `CommandError`: the agent's events ended before the user interrupted the command."""
    message = "the agent ended; see 'systemctl status numawarden' and 'journalctl -u numawarden'"
    raise CommandError(message, ExitCode.UNREACHABLE)


def changes(events: Iterable[EventDocument], seconds: float = REDRAW_SECONDS) -> Iterator[None]:
    """Yield once for all events that wait, and once after `seconds` without an event.

    Ends when the events end; raises what they raise.
    """
    #: None for an event, else the exception that ended the events.
    waiting: SimpleQueue[Exception | None] = SimpleQueue()

    def collect() -> None:
        try:
            for _ in events:
                waiting.put(None)
        except Exception as error:  # noqa: BLE001  # raised below, where the events are waited for
            waiting.put(error)
        else:
            waiting.put(StopIteration())

    Thread(target=collect, daemon=True).start()
    while True:
        with suppress(Empty):
            end = waiting.get(timeout=seconds)
            while end is None:
                end = waiting.get_nowait()
            if isinstance(end, StopIteration):
                return
            raise end
        yield
