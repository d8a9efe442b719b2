"""How many may be connected to a listener, and for how long without asking anything.

Every connection costs a descriptor, and whoever runs out of these can write no cgroup either. So
the listeners take so many at a time; the next ones wait in the kernel's queue. One that sends no
whole request head, or does not take its answer, is closed in the end, and makes room.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from agent.http.conversation import LINGER_SECONDS, Conversation

if TYPE_CHECKING:
    import socket
    import ssl

    from agent.http.messages import Handler

log = structlog.get_logger(__name__)

#: How long to wait before accepting again when the kernel refuses, in seconds.
PAUSE_SECONDS: Final = 1.0
_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO})


class Limits(Struct, frozen=True):
    """At most so many connections, each at most so many seconds between two requests.

    The seconds are those of `Conversation`. They bound the TLS handshake too. No request's body is
    larger than `body_bytes`.
    """

    connections: int
    idle_seconds: float
    body_bytes: int = 0


class Connections:
    """The connections of one listening socket; `handler` answers whatever they ask."""

    def __init__(
        self,
        handler: Handler,
        listening: socket.socket,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._handler = handler
        self._listening = listening
        self._limits = limits
        self._tls = tls
        self._free = asyncio.Semaphore(limits.connections)
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        self._conversations: dict[socket.socket, Conversation] = {}
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept."""
        self._listening.settimeout(0)
        self._accepting = asyncio.create_task(self._accept_all())

    async def stop(self, seconds: float) -> None:
        """Accept nothing more; answers that are under way may take so many seconds."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        self._listening.close()
        # Whoever was accepted in this very moment is given to a transport first, which closes it.
        await asyncio.sleep(0)
        for task, accepted in self._tasks.items():
            conversation = self._conversations.get(accepted)
            if conversation is not None and conversation.answering:
                conversation.end()
            else:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._free.acquire()
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                self._free.release()
                if error.errno not in _GONE:
                    log.warning("cannot accept a connection", reason=error.strerror)
                    await asyncio.sleep(PAUSE_SECONDS)
            else:
                task = asyncio.create_task(self._serve(accepted))
                self._tasks[task] = accepted
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._free.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection failed", exc_info=error)

    async def _serve(self, accepted: socket.socket) -> None:
        """Have the conversation of one connection, and end it."""
        try:
            reader, writer = await self._open(accepted)
        except OSError as error:
            log.debug("a connection was not opened", reason=str(error))
            return
        limits = self._limits
        conversation = Conversation(
            reader, writer, self._handler, limits.idle_seconds, limits.body_bytes
        )
        self._conversations[accepted] = conversation
        try:
            await conversation.run()
            writer.close()
            async with asyncio.timeout(LINGER_SECONDS):
                await writer.wait_closed()
        except OSError as error:  # it went away, or was too slow
            log.debug("a connection ended", reason=str(error))
        finally:
            del self._conversations[accepted]
            writer.transport.abort()

    async def _open(
        self, accepted: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the ends of a connection; raises `OSError` where TLS does not come about."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        seconds = None if self._tls is None else self._limits.idle_seconds
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
