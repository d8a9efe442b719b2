"""A listener: accepts connections at a socket, moves to another socket, and stops.

In go a listening socket and an `HttpServer`, which knows the handler of requests and the caps of
callers. aiohttp's runner accepts and stops (`ServerRunner` and `SockSite`). Always true: what is
connected stays connected while the socket changes; after a stop nothing is connected.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any, Final

from aiohttp.web_runner import ServerRunner, SockSite

from agent.server.sockets import BACKLOG

if TYPE_CHECKING:
    import socket
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from agent.server.connection import HttpServer
    from agent.server.log import LimitedLog


#: How many connections are accepted before the event loop runs other tasks.
AT_A_TIME: Final = 64
#: How long requests under way may take when the agent stops, in seconds; handlers that are
#: cancelled then have as long again.
STOP_SECONDS: Final = 4.0


class Listener:
    """A listener at one socket."""

    def __init__(
        self, server: HttpServer, listening: socket.socket, stop_seconds: float = STOP_SECONDS
    ) -> None:
        self._server = server
        self._listening = listening
        self._runner = ServerRunner(server, shutdown_timeout=stop_seconds)
        self._site: SockSite | None = None
        #: Connections that were accepted until the last call of `standing`.
        self._accepted = 0

    async def start(self) -> None:
        """Start accepting."""
        await self._runner.setup()
        await self.listen(self._listening)

    async def listen(self, listening: socket.socket) -> None:
        """Accept at another socket from now on; what is connected stays connected."""
        former, self._listening = self._site, listening
        # asyncio takes the backlog for the number of connections to accept at a time as well.
        self._site = SockSite(self._runner, listening, backlog=AT_A_TIME)
        await self._site.start()
        listening.listen(BACKLOG)
        if former is not None:
            await former.stop()

    def standing(self) -> str:
        """Return how accepting stands still, "" if it does not.

        It does if it has ended, or if connections wait and none was accepted since the last call.
        """
        if self._listening.fileno() < 0:
            return "accepting has ended"
        before, self._accepted = self._accepted, self._server.accepted
        waiting = select.poll()
        waiting.register(self._listening, select.POLLIN)
        stuck = self._accepted == before and waiting.poll(0)
        return "connections wait and none is accepted" if stuck else ""

    async def stop(self) -> None:
        """Stop accepting, let requests under way end, and close all connections."""
        await self._runner.cleanup()
        self._server.close()


def report_to(lines: LimitedLog) -> Callable[[AbstractEventLoop, dict[str, Any]], None]:
    """Return an exception handler of a loop that logs failures of accept(2) in limited lines.

    asyncio reports each of them and tries again after a second, as long as descriptors are lacking.
    """

    def report(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and "socket" in context:
            lines.warning("accept failed", reason=error.strerror)
        else:
            loop.default_exception_handler(context)

    return report
