"""`numawarden dashboard`: the map, pods, conditions and events as a web page."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import webbrowser
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import click

from agent.cli.access import agent_at, socket_option
from agent.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

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
@socket_option
def dashboard(port: int, socket_path: str, *, no_open: bool) -> None:
    """Serve a web page for yourself: who has which CPU, live, and a box that tries a pod.

    The page is served on 127.0.0.1 until this command is interrupted, and only to a browser that
    has the whole address, with its token. Nothing can be changed there. From another machine:
    forward the port with ssh -L.
    """
    from agent.tools.dashboard.access import new_token  # noqa: PLC0415  # help needs no server
    from agent.tools.dashboard.server import address_of, listen  # noqa: PLC0415

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


async def _serve(socket_path: str, token: str, seconds: float, listening: socket.socket) -> None:
    """Serve until SIGTERM; SIGINT cancels this as it does every command."""
    from agent.tools.dashboard.server import Dashboard, ServerLog  # noqa: PLC0415  # as above

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
