"""How many may be connected to a listener, and for how long without asking anything.

Every connection costs a descriptor, and whoever runs out of these can write no cgroup either. So
the listeners take so many at a time; the next ones wait in the kernel's queue. One that sends no
whole request head, or does not take its answer, is closed in the end, and makes room.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final, cast

import structlog
from aiohttp import web
from msgspec import Struct

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger(__name__)

#: How long to wait before accepting again when the kernel refuses, in seconds.
PAUSE_SECONDS: Final = 1.0
_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO})


class Limits(Struct, frozen=True):
    """At most so many connections, each at most so many seconds between two requests.

    The seconds count from the connection or the end of a request's handling to the whole head of
    the next request. They bound the TLS handshake too.
    """

    connections: int
    idle_seconds: float


class Connections:
    """The connections of one listening socket; `application` serves them."""

    def __init__(
        self,
        application: web.Application,
        listening: socket.socket,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listening = listening
        self._limits = limits
        self._tls = tls
        self._free = asyncio.Semaphore(limits.connections)
        self._guards: dict[asyncio.BaseTransport, _Guard] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        application.middlewares.insert(0, self._busy)

    def start(self, server: Callable[[], asyncio.Protocol]) -> None:
        """Begin to accept; `server` makes the protocol of a connection."""
        self._listening.settimeout(0)
        self._begin(self._accept_all(server))

    async def stop(self) -> None:
        """Accept nothing more; connections that are open stay for their owner to end."""
        # Whoever was accepted in this very moment is given to a transport first, which closes it.
        await asyncio.sleep(0)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listening.close()

    @web.middleware
    async def _busy(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Hold the idle time while a request is handled, however long that takes."""
        guard = self._guards.get(cast("asyncio.BaseTransport", request.transport))
        if guard is None:
            return await handler(request)
        guard.hold()
        try:
            return await handler(request)
        finally:
            guard.wait()

    async def _accept_all(self, server: Callable[[], asyncio.Protocol]) -> None:
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
                self._begin(self._open(accepted, _Guard(server(), self._limits.idle_seconds, self)))

    async def _open(self, accepted: socket.socket, guard: _Guard) -> None:
        seconds = None if self._tls is None else self._limits.idle_seconds
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: guard, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:
            log.debug("a connection was not opened", reason=str(error))
        finally:
            if not guard.connected:
                self._free.release()

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def opened(self, transport: asyncio.BaseTransport, guard: _Guard) -> None:
        """Remember a connection."""
        self._guards[transport] = guard

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Make room for another connection."""
        del self._guards[transport]
        self._free.release()


class _Guard(asyncio.Protocol):
    """Passes everything on to the protocol inside, and aborts what is idle for too long."""

    def __init__(self, inside: asyncio.Protocol, seconds: float, owner: Connections) -> None:
        self.connected = False
        self._inside = inside
        self._seconds = seconds
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None

    def hold(self) -> None:
        """Stop counting."""
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def wait(self) -> None:
        """Count anew."""
        self.hold()
        if self._transport is not None:
            loop = asyncio.get_running_loop()
            self._end = loop.call_later(self._seconds, self._transport.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connected = True
        self._transport = cast("asyncio.Transport", transport)
        self._owner.opened(transport, self)
        self._inside.connection_made(transport)
        self.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self.hold()
        if self._transport is not None:
            self._owner.closed(self._transport)
            self._transport = None
            self._inside.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inside.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inside.eof_received()

    def pause_writing(self) -> None:
        self._inside.pause_writing()

    def resume_writing(self) -> None:
        self._inside.resume_writing()
