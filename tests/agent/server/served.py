"""A listener on 127.0.0.1 with a site behind it: for tests of connections."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, cast

from agent.server.connection import HttpServer
from agent.server.http import Request, Response, Stream
from agent.server.limits import Caller, Limit, Limits
from agent.server.listener import Listener
from agent.server.sockets import Address, open_tcp

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from agent.server.connection import HttpConnection
    from agent.server.http import Answer
    from agent.server.peers import Connected

    Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

USER, OTHER_USER = Caller("user 1000"), Caller("user 2000")
ROOT = Caller("user 0", privileged=True)
FOREVER: Final = 3600.0
#: Shorter than a client would wait, so that a test need not.
AT_ONCE: Final = 0.05
#: The longest body, in bytes.
BODY: Final = 100_000
#: Far more than the kernel keeps between two ends.
LARGE: Final = 16 << 20
LAST: Final = "Connection: close"
EXPECT: Final = "Expect: 100-continue"


def asking(target: str = "/", *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: a", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode() + body


def posting(target: str, *headers: str, body: bytes = b"") -> bytes:
    return asking(target, *headers, method="POST", body=body)


ASK: Final = asking()
STUCK: Final = asking("/stuck")
LARGE_ASK: Final = asking("/large")


def limits(
    requests: int = 16,
    watchers: Limit | None = None,
    bodies: Limit | None = None,
    answers: Limit | None = None,
    *,
    head: float = FOREVER,
    idle: float = FOREVER,
) -> Limits:
    """Return limits of which only those that are given are ever reached."""
    much, places = Limit(1 << 30, 1 << 30), Limit(requests, requests)
    return Limits(places, watchers or places, bodies or much, answers or much, head, idle, BODY)


class Site:
    """Answers "hello"; its body in <> at /body, `LARGE` bytes at /large; fails at /broken.

    At /stuck it answers once `free` is set, at /watch with the `pieces`, until one is None.
    """

    server: HttpServer
    listener: Listener

    def __init__(self) -> None:
        self.port = 0
        self.caller = USER
        self.requests: list[str] = []
        self.handled: Callable[[Request], None] = lambda _: None
        self.asked, self.free, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.watchers = 0
        self.left = asyncio.Event()

    async def answer(self, request: Request) -> Answer:
        self.handled(request)
        self.requests.append(f"{request.method} {request.target.path}")
        self.asked.set()
        match request.target.path:
            case "/body":
                return Response(b"<" + await request.read() + b">")
            case "/large":
                return Response(bytes(LARGE))
            case "/broken":
                raise ValueError("unexpected")
            case "/watch":
                return Stream(self._open, "text/lines")
            case "/stuck":
                try:
                    await self.free.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
        return Response(b"hello")

    @contextmanager
    def _open(self) -> Iterator[AsyncIterator[bytes]]:
        self.watchers += 1
        try:
            yield self._pieces()
        finally:
            self.watchers -= 1
            self.left.set()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            yield piece

    @property
    def connections(self) -> list[HttpConnection]:
        return cast("list[HttpConnection]", list(self.server.caps.connections))

    async def enter(self, said: bytes = b"") -> Ends:
        ends = await asyncio.open_connection("127.0.0.1", self.port)
        ends[1].write(said)
        return ends

    async def begin(self, said: bytes) -> Ends:
        """Ask, and return once the request is begun."""
        self.asked.clear()
        ends = await self.enter(said)
        await self.asked.wait()
        return ends

    async def watch(self) -> Ends:
        """Watch, and return when the head of the answer is there."""
        ends = await self.enter(asking("/watch"))
        await ends[0].readuntil(b"\r\n\r\n")
        return ends

    async def gone(self) -> None:
        """Wait until no connection has a place."""
        while self.connections:  # noqa: ASYNC110  # a socket's end sets no event
            await asyncio.sleep(0)


@asynccontextmanager
async def opened(
    bounds: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    unix: Path | None = None,
    caller_of: Callable[[socket.socket], Callable[[Connected], Caller]] | None = None,
    stop: float = AT_ONCE,
) -> AsyncIterator[Site]:
    """Serve a site to callers as it names them, or as `caller_of` names those of a socket."""
    site = Site()
    if unix is None:
        listening = open_tcp(Address("127.0.0.1", 0))
        site.port = listening.getsockname()[1]
    else:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(unix))
        listening.listen()
    found = (lambda _: site.caller) if caller_of is None else caller_of(listening)
    bounds = bounds or limits()
    site.server = HttpServer(site.answer, bounds, found, tls)
    site.listener = Listener(site.server, listening, stop)
    await site.listener.start()
    try:
        yield site
    finally:
        site.free.set()
        await site.listener.stop()


async def answered(ends: Ends, said: bytes = ASK) -> bool:
    """Ask, and return whether the answer is there."""
    ends[1].write(said)
    return (await ends[0].readuntil(b"hello")).startswith(b"HTTP/1.1 200")


async def status(ends: Ends) -> int:
    """Return the status of the next answer, whose head is taken."""
    head = await ends[0].readuntil(b"\r\n\r\n")
    return int(head.split()[1])


async def ended(ends: Ends) -> bytes:
    """Return what comes until the other side ends the connection."""
    try:
        return await ends[0].read()
    except ConnectionResetError:
        return b""


def leave(*all_ends: Ends) -> None:
    for _, writer in all_ends:
        writer.transport.abort()
