"""What the dashboard asks of the agent, over the API socket and within deadlines."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import aiohttp
from msgspec import Struct

from agent.api.client import DEFAULT_TIMEOUT, Unreachable, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

#: How long connecting to the socket may take, in seconds.
CONNECT_SECONDS: Final = 10.0
#: The largest answer that is passed on, in bytes; the map of 4,096 CPUs has less than one MiB.
MOST_BYTES: Final = 64 << 20
#: The longest piece of a stream that is passed on at once, in bytes.
PIECE_BYTES: Final = 64 << 10
#: The agent answers on a Unix socket, but HTTP needs the name of a host.
_BASE: Final = "http://numawarden"


class AgentAnswer(Struct, frozen=True):
    """The HTTP status, content type and body of an answer of the agent."""

    status: int
    content_type: str
    body: bytes


class Upstream:
    """The agent that listens on the Unix socket at `path`; to be used in one event loop.

    All methods raise `agent.api.client.Unreachable` where the agent does not answer, or not within
    `seconds`.
    """

    def __init__(self, path: Path | str, seconds: float = DEFAULT_TIMEOUT) -> None:
        self._path = str(path)
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        self._seconds = limits
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._path, limit=0),
            timeout=limits,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections to the agent."""
        await self._session.close()

    async def ask(self, method: str, target: str, body: bytes | None = None) -> AgentAnswer:
        """Return the answer to a request for a target (path and query), whatever its status."""
        async with self._answer(method, target, body, self._seconds) as answer:
            read = bytearray()
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                read += piece
                if len(read) > MOST_BYTES:
                    raise Unreachable(self._path, f"it answered with more than {MOST_BYTES} bytes")
            return AgentAnswer(answer.status, answer.content_type, bytes(read))

    @asynccontextmanager
    async def stream(self, target: str) -> AsyncIterator[tuple[int, str, AsyncIterator[bytes]]]:
        """Give status, content type and pieces of a stream, which may be silent for any time."""
        silent = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS)
        async with self._answer("GET", target, None, silent) as answer:
            yield answer.status, answer.content_type, answer.content.iter_chunked(PIECE_BYTES)

    @asynccontextmanager
    async def _answer(
        self, method: str, target: str, body: bytes | None, seconds: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(
                method, _BASE + target, data=body, timeout=seconds, allow_redirects=False
            ) as answer:
                yield answer
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(self._path, reason_of(error.os_error, CONNECT_SECONDS)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            ended = TimeoutError if isinstance(error, TimeoutError) else ConnectionError
            raise Unreachable(
                self._path, reason_of(ended(), seconds.total or CONNECT_SECONDS)
            ) from error
