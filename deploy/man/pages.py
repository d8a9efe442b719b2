"""The pages: one for `numawarden`, and one for each command and subcommand."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

import click

from agent import __version__
from agent.cli.errors import ExitCode
from agent.cli.main import numawarden
from agent.cli.options import DEFAULT_SOCKET
from deploy.man import roff

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import date
    from pathlib import Path

NAME: Final = "numawarden"

ENVIRONMENT: Final[Mapping[str, str]] = {
    "NUMAWARDEN_SOCKET": "The agent's socket, where --socket does not name it.",
    "NO_COLOR": "Switches colours off if it is not empty.",
    "TERM": "Colours are off if it is dumb.",
    "COLUMNS": "The width for which a map is drawn on a terminal.",
}
FILES: Final[Mapping[str, str]] = {
    "/etc/numawarden/config.yaml": "The configuration; numawarden config show --defaults prints "
    "every key.",
    DEFAULT_SOCKET: "The socket of the admission API.",
    "/var/lib/numawarden/checkpoint.json": "All allocations.",
    "/usr/share/doc/numawarden": "With the Debian package: README.md, docs with every page that "
    "messages name (docs/api.md), and deploy with examples, alerts, dashboards and hooks.",
}


def write(folder: Path, day: date) -> list[Path]:
    """Write all pages into a folder, which is made, and return their files.

    `day` is the date that stands in the pages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for ctx in contexts():
        file = folder / f"{page_name(ctx)}.1"
        file.write_text(page(ctx, day), encoding="utf-8")
        files.append(file)
    return files


def contexts() -> Iterator[click.Context]:
    """Yield the context of each command, groups before what they contain."""
    waiting = [click.Context(numawarden, info_name=NAME, **numawarden.context_settings)]
    while waiting:
        ctx = waiting.pop(0)
        yield ctx
        waiting += [_inside(ctx, name) for name in _names(ctx)]


def page_name(ctx: click.Context) -> str:
    """Return the name of the page of a command: `numawarden-config-check`."""
    return ctx.command_path.replace(" ", "-")


def page(ctx: click.Context, day: date) -> str:
    """Return the page of a command."""
    command = ctx.command
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    first = text.partition("\n\n")[0]
    usage = f"{roff.bold(ctx.command_path)} {roff.escaped(' '.join(_usage(ctx)))}"
    lines = [
        roff.title(page_name(ctx), day.isoformat(), f"{NAME} {__version__}"),
        *roff.section("name", [f"{roff.escaped(page_name(ctx))} \\- {_summary(first)}"]),
        *roff.section("synopsis", [usage]),
        *roff.section("description", roff.paragraphs(text)),
        *roff.section("commands", _commands(ctx)),
        *roff.section("options", _options(ctx)),
        *roff.section("exit status", _exit_codes()),
        *roff.section("environment", _table(ENVIRONMENT)),
        *(roff.section("files", _table(FILES)) if ctx.parent is None else ()),
        *roff.section("see also", [_see_also(ctx)]),
    ]
    return "\n".join(lines) + "\n"


def _summary(first: str) -> str:
    """Return the first paragraph as whatis(1) wants it: no period at the end."""
    return roff.escaped(first).rstrip(".")


def _usage(ctx: click.Context) -> list[str]:
    return ctx.command.collect_usage_pieces(ctx)


def _options(ctx: click.Context) -> Iterator[str]:
    for parameter in ctx.command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            names, text = record
            yield from roff.entry(roff.bold(names), text)


def _commands(ctx: click.Context) -> Iterator[str]:
    for name in _names(ctx):
        inner = _inside(ctx, name)
        text = inner.command.get_short_help_str(limit=1000)
        yield from roff.entry(f"{roff.bold(page_name(inner))}(1)", text)


def _exit_codes() -> Iterator[str]:
    for code in ExitCode:
        yield from roff.entry(roff.bold(str(code.value)), code.meaning)


def _table(rows: Mapping[str, str]) -> Iterator[str]:
    for name, text in rows.items():
        yield from roff.entry(roff.bold(name), text)


def _see_also(ctx: click.Context) -> str:
    above = ctx.parent
    if above is None:
        others = ["systemctl", "journalctl", "taskset", "numactl"]
        return ", ".join(f"{roff.bold(name)}(1)" for name in others)
    return f"{roff.bold(page_name(above))}(1)"


def _names(ctx: click.Context) -> list[str]:
    return ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []


def _inside(ctx: click.Context, name: str) -> click.Context:
    """Return the context of a command of a group."""
    command = ctx.command.get_command(ctx, name) if isinstance(ctx.command, click.Group) else None
    if command is None:
        raise ValueError(f"{ctx.command_path} has no command {name}")
    return click.Context(command, info_name=name, parent=ctx)
