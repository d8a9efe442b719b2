"""A click group whose commands are imported when they are called, not when help is shown."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


class LazyCommand(NamedTuple):
    """Where a command is defined (`module:attribute`) and what help says of it in a line."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary and imports one only to run it."""

    def __init__(self, *, lazy: Mapping[str, LazyCommand], **attrs: object) -> None:
        super().__init__(**attrs)  # type: ignore[arg-type]  # click's own keywords, passed through
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order in which they were named."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, None when there is none of that name."""
        known = self._lazy.get(cmd_name)
        if known is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = known.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{known.target} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their summaries, importing none."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, known.summary) for name, known in self._lazy.items()])
