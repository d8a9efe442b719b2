"""The HTTP server of the dashboard: the page for all, the agent's documents for its user alone.

Every local process can connect to a port of 127.0.0.1, and every web site that the user visits can
have the browser do so. The page itself is public. What comes from the agent needs the token, in a
header that no other site can send; see docs/dashboard.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp.web_exceptions import HTTPException
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server

from agent.api.client import DEFAULT_TIMEOUT, Unreachable
from agent.api.documents import ErrorBody, ErrorDocument, encode
from agent.tools.dashboard.access import HEADERS, has_token, is_own_host, is_own_origin
from agent.tools.dashboard.page_files import page_files
from agent.tools.dashboard.picture import PictureMaker
from agent.tools.dashboard.upstream import Upstream
from agent.tools.map.lines import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from aiohttp.web_protocol import RequestHandler
    from aiohttp.web_request import BaseRequest

ADDRESS: Final = "127.0.0.1"
#: What is passed on to the agent as it is: read alone, whatever the agent adds in future.
READ: Final = frozenset({"/v1/pods", "/v1/status"})
#: As well, but an agent may keep no history.
HISTORY: Final = "/v1/history"
WATCH: Final = "/v1/watch"
PICTURE: Final = "/picture"
#: The one request with a body: a decision that changes nothing, with exactly this query.
TRIAL: Final = "/v1/pods?dryRun=true&advice=true"

#: The largest manifest that is tried, in bytes.
MAX_BODY_BYTES: Final = 1 << 20
#: How long a body may take, and a browser to take a piece of a stream, in seconds.
BODY_SECONDS: Final = 30.0
PIECE_SECONDS: Final = 60.0
#: How long a connection may take for a request's head, or stay open without one, in seconds.
IDLE_SECONDS: Final = 15.0
#: Connections that have not sent the token yet: the oldest is closed for the next one.
MOST_UNPROVEN: Final = 32
#: Streams of events at a time.
MOST_STREAMS: Final = 16
#: So many lines of the log of aiohttp and asyncio in so many seconds; the others are counted.
MOST_LOG_LINES: Final = 10
LOG_SECONDS: Final = 60.0
_JSON: Final = "application/json"
_LINGER_SECONDS: Final = 1.0
_END_SECONDS: Final = 0.2


class RejectedRequest(Exception):  # noqa: N818  # an answer to the browser, no failure of the server
    """The request is answered with a status, a code for programs and a message for people."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class ServerLog(logging.Handler):
    """Writes what the libraries log as one line each, without a traceback, and few of them.

    Every local user can send requests that cannot be read, as fast as they like.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(logging.WARNING)
        self._write = write
        self._monotonic = monotonic
        self._since = monotonic()
        self._lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it where there were enough."""
        now = self._monotonic()
        if now - self._since >= LOG_SECONDS:
            left_out = self._lines - MOST_LOG_LINES
            if left_out > 0:
                self._write(f"numawarden: {left_out} further lines were left out")
            self._since, self._lines = now, 0
        self._lines += 1
        if self._lines <= MOST_LOG_LINES:
            error = record.exc_info[1] if record.exc_info else None
            said = record.getMessage() if error is None else f"{record.getMessage()}: {error}"
            self._write(f"numawarden: {printable(said.partition(chr(10))[0])[:200]}")


class _Connections(Server):
    """The connections; of those that did not prove to be the user's, only the latest are kept."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(
            dashboard.answer,
            handler_cancellation=True,
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=_LINGER_SECONDS,
            access_log=None,
        )
        self._unproven: dict[RequestHandler, asyncio.Transport] = {}

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._unproven[handler] = transport
        if len(self._unproven) > MOST_UNPROVEN:
            self._unproven.pop(next(iter(self._unproven))).abort()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._unproven.pop(handler, None)

    def proven(self, handler: RequestHandler) -> None:
        """Keep a connection from now on: a request on it had the token."""
        self._unproven.pop(handler, None)


class Dashboard:
    """Answers requests for the page, and those of the page for the agent at a socket.

    `seconds` is how long the agent may take for an answer.
    """

    def __init__(
        self, socket_path: Path | str, token: str, seconds: float = DEFAULT_TIMEOUT
    ) -> None:
        self._token = token
        self._files = page_files()
        self._pictures = PictureMaker()
        self._upstream = Upstream(socket_path, seconds)
        self._streams = 0
        self._connections = _Connections(self)

    @asynccontextmanager
    async def serving(self, listening: socket.socket) -> AsyncIterator[None]:
        """Serve on a listening socket until the block ends."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._connections, sock=listening)
        try:
            yield
        finally:
            server.close()
            await self._connections.shutdown(_END_SECONDS)
            await self._upstream.close()

    async def answer(self, request: BaseRequest) -> StreamResponse:
        """Answer a request; what is rejected, and an agent that does not answer, is a document."""
        try:
            return await self._answer(request)
        except RejectedRequest as rejected:
            return _failed(rejected.status, rejected.code, rejected.message)
        except Unreachable as error:
            return _failed(HTTPStatus.BAD_GATEWAY, "Unreachable", str(error))
        except HTTPException as error:
            return _failed(HTTPStatus(error.status), "InvalidRequest", error.reason)

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        if not is_own_host(request.headers):
            message = "the page is at 127.0.0.1; open the address that was printed"
            raise RejectedRequest(HTTPStatus.MISDIRECTED_REQUEST, "WrongHost", message)
        if not is_own_origin(request.headers):
            message = "pages of other sites may not ask"
            raise RejectedRequest(HTTPStatus.FORBIDDEN, "Forbidden", message)
        file = self._files.get(request.path)
        if file is not None:
            _only(request, "GET")
            return _response(file.body, file.content_type)
        if not has_token(request.headers, self._token):
            message = "open the address that `numawarden dashboard` printed: it has the token"
            raise RejectedRequest(HTTPStatus.UNAUTHORIZED, "Unauthorized", message)
        self._connections.proven(request.protocol)
        return await self._data(request)

    async def _data(self, request: BaseRequest) -> StreamResponse:
        if request.path == PICTURE:
            _only(request, "GET")
            return await self._picture()
        if request.path == WATCH:
            _only(request, "GET")
            return await self._watch(request)
        if request.path_qs == TRIAL and request.method == "POST":
            return await self._passed_on("POST", TRIAL, await _body(request))
        if request.path == HISTORY:
            _only(request, "GET")
            answer = await self._passed_on("GET", request.path_qs)
            found = answer.status != HTTPStatus.NOT_FOUND
            return answer if found else _response(b"", _JSON, HTTPStatus.NO_CONTENT)
        if request.path in READ:
            _only(request, "GET")
            return await self._passed_on("GET", request.path_qs)
        message = f"there is no {request.path[:64]!r}"
        raise RejectedRequest(HTTPStatus.NOT_FOUND, "NotFound", message)

    async def _passed_on(self, method: str, target: str, body: bytes | None = None) -> Response:
        answer = await self._upstream.ask(method, target, body)
        return _response(answer.body, answer.content_type, HTTPStatus(answer.status))

    async def _picture(self) -> Response:
        answer = await self._upstream.ask("GET", "/v1/map")
        if answer.status != HTTPStatus.OK:
            return _response(answer.body, answer.content_type, HTTPStatus(answer.status))
        try:
            body = self._pictures.encoded(answer.body)
        except msgspec.DecodeError:
            message = "the agent's map is not one of this version; install the same on both sides"
            raise RejectedRequest(HTTPStatus.BAD_GATEWAY, "Unreachable", message) from None
        return _response(body, _JSON)

    async def _watch(self, request: BaseRequest) -> StreamResponse:
        if self._streams >= MOST_STREAMS:
            message = f"{MOST_STREAMS} pages follow the agent already; close one of them"
            raise RejectedRequest(HTTPStatus.SERVICE_UNAVAILABLE, "Busy", message)
        self._streams += 1
        response = StreamResponse(headers=HEADERS)
        try:
            async with self._upstream.stream(request.path) as (status, kind, pieces):
                response.set_status(status)
                response.content_type = kind
                await response.prepare(request)
                async for piece in pieces:
                    if not await _taken(request, response, piece):
                        break
        except Unreachable:
            if not response.prepared:
                raise
        finally:
            self._streams -= 1
        return response


async def _taken(request: BaseRequest, response: StreamResponse, piece: bytes) -> bool:
    """Send a piece of a stream; cut a connection off that does not take it."""
    try:
        async with asyncio.timeout(PIECE_SECONDS):
            await response.write(piece)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        return False
    return True


def listen(port: int) -> socket.socket:
    """Listen on a port of 127.0.0.1, any free one for 0; raises `OSError`."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ADDRESS, port))
        listening.listen()
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)  # noqa: FBT003  # its own parameter
    return listening


def address_of(listening: socket.socket, token: str) -> str:
    """Return the address of the page; browsers send nothing of what is behind the `#`."""
    return f"http://{ADDRESS}:{listening.getsockname()[1]}/#{token}"


def _only(request: BaseRequest, method: str) -> None:
    if request.method != method:
        message = f"{request.path} is for {method}; nothing can be changed here"
        raise RejectedRequest(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", message)


async def _body(request: BaseRequest) -> bytes:
    read = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.content.iter_any():
                read += piece
                if len(read) > MAX_BODY_BYTES:
                    message = f"the manifest is larger than {MAX_BODY_BYTES} bytes"
                    raise RejectedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TooLarge", message)
    except TimeoutError:
        message = f"the manifest did not arrive within {BODY_SECONDS:.0f} seconds"
        raise RejectedRequest(HTTPStatus.REQUEST_TIMEOUT, "TooSlow", message) from None
    return bytes(read)


def _response(body: bytes, content_type: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    headers = {**HEADERS, "Content-Type": content_type}
    return Response(body=body, status=status, headers=headers)


def _failed(status: HTTPStatus, code: str, message: str) -> Response:
    document = ErrorDocument(error=ErrorBody(code=code, message=message))
    return _response(encode(document) + b"\n", _JSON, status)
