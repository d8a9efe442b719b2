"""`numawarden playground`: a host to try the agent on, without root and without a NUMA machine."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agent.tools.playground.hosts import NamedHost


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--host",
    "described",
    metavar="HOST",
    default="two-sockets",
    show_default=True,
    help="two-sockets, epyc (one socket, four nodes), gb200 (memory-only nodes), or what "
    "numawarden capture wrote on another host.",
)
@click.option(
    "--scope",
    type=click.Choice(["pod", "container"]),
    default="pod",
    show_default=True,
    help="The topologyManagerScope of the agent.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def playground(described: str, scope: str, command: tuple[str, ...]) -> int:
    """Start an agent on an embedded host and leave you at a prompt to try it.

    The host is a directory: a sysfs tree, a cgroup tree of plain files that follows the kernel's
    rules, and the state of a real agent. With a COMMAND (after --) that is run instead of a shell,
    and its exit status returned.
    """
    # Imported here: help and completion need none of it.
    from agent.tools.playground.embedded import EmbeddedHost  # noqa: PLC0415
    from agent.tools.playground.shell import WELCOME, Playground, end_by_signals  # noqa: PLC0415

    end_by_signals()

    with TemporaryDirectory(prefix="numawarden-playground-") as name:
        folder = Path(name)
        host = EmbeddedHost(folder, _host(described, folder / "capture"))
        with Playground(host, scope) as made:
            if not command:
                click.echo(WELCOME.format(folder=folder))
            sys.stdout.flush()
            return made.run(command)


def _host(named: str, folder: Path) -> NamedHost:
    from agent.tools.playground.hosts import captured_host, named_host  # noqa: PLC0415

    found = named_host(named)
    if found is None:
        folder.mkdir()
        found = captured_host(Path(named), folder)
    return found
