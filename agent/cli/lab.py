"""`numawarden dashboard` and `playground`: a web page of the agent, and a host to try it on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
import webbrowser
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from agent.api.client import AgentError
from agent.cli.common import agent_at
from agent.cli.errors import CommandError, ExitCode
from agent.cli.lines import moment
from agent.cli.options import socket_option
from agent.tools.dashboard.saved import saved_answers, saved_page
from agent.tools.dashboard.server import Dashboard, ServerLog, address_of, listen, new_token
from agent.tools.playground import (
    HOSTS,
    WELCOME,
    EmulatedHost,
    Playground,
    described_host,
    end_by_signals,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

#: Entries of the history in a saved page; a served one asks for as many.
SAVED_ENTRIES: Final = 100
#: A page that leads to the address. A browser's command line, which all users can see, names this
#: file, which only the user can read.
_REDIRECT: Final = """\
<!doctype html>
<title>Numawarden</title>
<meta http-equiv="refresh" content="0; url={address}">
<a href="{address}">Numawarden</a>
"""


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port of 127.0.0.1; 0 takes a free one.",
)
@click.option("--no-open", is_flag=True, help="Print the address and open no browser.")
@click.option(
    "--save",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page with what it shows now to FILE, for a ticket, and serve nothing.",
)
@socket_option
def dashboard(port: int, file: Path | None, socket_path: str, *, no_open: bool) -> None:
    """Serve a web page for yourself: who has which CPU, live, and a box that tries a pod.

    The page is served on 127.0.0.1 until this command is interrupted, and only to a browser that
    has the whole address, with its token. Nothing can be changed there. From another machine:
    forward the port with ssh -L.

    With --save one HTML file is written, which needs neither an agent nor a network. It is not
    live, and has no box that tries a pod.
    """
    if file is not None:
        if port or no_open:
            message = "--save writes a file and serves nothing: leave out --port and --no-open"
            raise click.UsageError(message)
        _save(file, socket_path)
        return
    with agent_at(socket_path) as agent:
        seconds = agent.timeout
        agent.status()  # an agent that does not answer is reported here, not in a browser
    try:
        listening = listen(port)
    except OSError as error:
        message = f"port {port} of 127.0.0.1: {error.strerror}; name another one with --port"
        raise CommandError(message, ExitCode.ENVIRONMENT) from error
    token = new_token()
    address = address_of(listening, token)
    with listening, _opened(address, open_it=not no_open and _has_display()):
        click.echo(f"the dashboard is at {address}")
        click.echo("until Ctrl-C; the address has a token: do not pass it on")
        asyncio.run(_serve(socket_path, token, seconds, listening))


def _save(file: Path, socket_path: str) -> None:
    """Write a new file that only its owner can read: the socket is not for every user either."""
    with agent_at(socket_path) as agent:
        drawn, pods, status = agent.map(), agent.pods(), agent.status()
        try:
            history = agent.history(limit=SAVED_ENTRIES)
        except AgentError as error:
            if error.status != HTTPStatus.NOT_FOUND:  # which says that none is kept
                raise
            history = None
    when = moment(time.time())
    page = saved_page(saved_answers(drawn, pods, status, history), when)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        message = f"{file} exists; remove it, or name another file"
        raise CommandError(message, ExitCode.BAD_INPUT) from error
    except OSError as error:
        message = f"{file} cannot be written: {error.strerror}; name another file"
        raise CommandError(message, ExitCode.ENVIRONMENT) from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as written:
        written.write(page)
    click.echo(f"{file}: the dashboard of {drawn.hostname or 'the host'}, saved {when}")


async def _serve(socket_path: str, token: str, seconds: float, listening: socket.socket) -> None:
    """Serve until SIGTERM; SIGINT cancels this as it does every command."""
    logging.getLogger().addHandler(ServerLog(lambda text: click.echo(text, err=True)))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with Dashboard(socket_path, token, seconds).serving(listening):
        await ended.wait()


@contextmanager
def _opened(address: str, *, open_it: bool) -> Iterator[None]:
    """Open a browser at the address, by a file that exists until the block ends."""
    if not open_it:
        yield
        return
    with TemporaryDirectory(prefix="numawarden-dashboard-") as folder:  # of mode 0700
        file = Path(folder) / "dashboard.html"
        file.touch(mode=0o600)
        file.write_text(_REDIRECT.format(address=address))
        webbrowser.open(file.as_uri())
        yield


def _has_display() -> bool:
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _complete_hosts(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the hosts whose name begins with a text, else what has the shell complete files."""
    named = [CompletionItem(name) for name in HOSTS if name.startswith(incomplete)]
    return named or [CompletionItem(incomplete, type="file")]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--host",
    "described",
    metavar="HOST",
    default="two-sockets",
    show_default=True,
    help="two-sockets, epyc (one socket, four nodes), gb200 (memory-only nodes), or what "
    "numawarden capture wrote on another host.",
    shell_complete=_complete_hosts,
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
    """Start an agent on an emulated host and leave you at a prompt to try it.

    The host is a directory: a sysfs tree, a cgroup tree of plain files that follows the kernel's
    rules, and the state of a real agent. With a COMMAND (after --) that is run instead of a shell,
    and its exit status returned.
    """
    end_by_signals()

    with TemporaryDirectory(prefix="numawarden-playground-") as name:
        folder = Path(name)
        host = EmulatedHost(folder, described_host(described, folder / "capture"))
        with Playground(host, scope) as made:
            if not command:
                click.echo(WELCOME.format(folder=folder))
            sys.stdout.flush()
            return made.run(command)
