"""HTTP connections: their caps, their stages, and the answers to their requests.

In go the bytes of peers; the handler gets requests; out come its answers. aiohttp parses and writes
HTTP. This module does what aiohttp leaves to a server:

1. `HttpServer` counts a connection for its caller before a byte is read or a TLS handshake begins:
   every connection costs a file descriptor, and an agent without descriptors cannot write cgroups.
2. `HttpConnection` gives the peer a deadline for each stage, and aiohttp one request at a time.
3. `Exchange` counts the bytes of a body and of an answer, and writes the answer in pieces.

Always true: requests of root and of the agent's own user begin at once, those of all others one
after the other across all callers; once begun, requests run side by side. A connection in a stage
with a deadline ends at the deadline, whatever the peer sends; while a handler runs there is none
here. Of the requests that a peer sends ahead of its answers, `AHEAD_BYTES` and one receive are kept
here, and behind a chunked body as much again in aiohttp.
"""

from __future__ import annotations

import asyncio
import re
import select
import sys
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from aiohttp.web_response import Response as HttpResponse
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server
from msgspec.structs import replace

from agent.server.http import (
    BodyTooLargeError,
    BrokenBodyError,
    HttpError,
    Request,
    RequestTarget,
    Stream,
    one_line,
    plain_failure,
)
from agent.server.limits import RETRY_SECONDS, Caps, FullError
from agent.server.log import LimitedLog

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Callable
    from ssl import SSLContext

    from aiohttp.web_request import BaseRequest

    from agent.server.http import Answer, Failure, Handler, Response
    from agent.server.limits import Caller, Limits


log = structlog.get_logger(__name__)

#: A request's target (RFC 9112 section 3.2): visible ASCII.
_TARGET: Final = re.compile(r"[\x21-\x7e]+")
#: Size of a piece of an answer, of which the transport has a copy.
PIECE_BYTES: Final = 64 << 10
#: Replaces aiohttp's header, which has its version.
_OWN_HEADERS: Final = (("Server", "numawarden"),)
#: Why a connection is closed whose request was not begun.
_GIVES_WAY: Final = "too many connections; this one was idle for longest, and nothing was begun"
#: How long the rest of a request is received and discarded after its answer, in seconds.
LINGER_SECONDS: Final = 1.0
#: Size of one receive. aiohttp buffers at most four receives of a body that no handler reads.
READ_BYTES: Final = 16 << 10
#: Bytes behind the current request at which receiving pauses.
AHEAD_BYTES: Final = 32 << 10
#: The longest request line, the longest header, the most headers, and the longest head.
MAX_LINE_BYTES: Final = 8190
MAX_HEADER_BYTES: Final = 4096
MAX_HEADERS: Final = 64
MAX_HEAD_BYTES: Final = 32 << 10
#: aiohttp's message for more headers than that, which has no exception type.
_TOO_MANY: Final = "Too many headers"
#: What ends a head (RFC 9112 section 2.1).
_BLANK_LINE: Final = b"\r\n\r\n"


class HttpServer(Server):
    """The connections of a listener, and the answers to their requests.

    `caller` returns the caller that a connection is counted for, and raises `OSError` if the
    connection is closed already. `failed` makes the answers to what no handler answers.
    """

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        caller: Callable[[TransportSocket], Caller],
        tls: SSLContext | None = None,
        failed: Failure = plain_failure,
    ) -> None:
        # The handler of a client that has gone is cancelled; an action that has begun goes on.
        super().__init__(self.answer, handler_cancellation=True)
        self.limits = limits
        self.tls = tls
        self.failed = failed
        self.lines = LimitedLog(log)
        #: The answer to a connection that is closed to make room: its request was not processed.
        self.caps = Caps(
            limits, self.lines, _raw(failed(HTTPStatus.SERVICE_UNAVAILABLE, _GIVES_WAY))
        )
        #: Receive buffer of all connections; each copies its bytes out at once.
        self.received = memoryview(bytearray(READ_BYTES))
        #: Number of connections so far.
        self.accepted = 0
        self.handler = handler
        self._caller = caller

    def __call__(self) -> HttpConnection:
        """Return a new connection."""
        return HttpConnection(self)

    def enter(self, connection: HttpConnection, wire: asyncio.Transport) -> bool:
        """Count a new connection for its caller; close it and return False if it has no place."""
        self.accepted += 1
        try:
            connection.caller = self._caller(wire.get_extra_info("socket"))
            self.caps.enter(connection)
        except OSError as error:  # already closed by the peer
            log.debug("connection setup failed", reason=str(error))
            wire.abort()
        except FullError as error:
            name, count = error.caller.name, error.count
            self.lines.warning("too many connections", caller=name, connections=count)
            if self.tls is None:
                wire.write(_raw(self.failed(HTTPStatus.SERVICE_UNAVAILABLE, str(error))))
            wire.close()
        except Exception as error:  # noqa: BLE001  # asyncio would keep the connection
            self.lines.error("connection failed", exc_info=error)
            wire.abort()
        else:
            return True
        return False

    def close(self) -> None:
        """Close all connections, also those whose peers read nothing."""
        for connection in tuple(self.caps.connections):
            connection.cut()
        self.lines.flush()

    async def answer(self, request: BaseRequest) -> StreamResponse:
        """Answer one request in its turn."""
        connection = cast("HttpConnection", request.protocol)  # `__call__` made it
        connection.begin(request)
        try:
            async with self.caps.turn(connection.caller):
                # Nothing between the requests in a row of one connection waits for the network:
                # without this pause they would all be served before any other connection.
                await asyncio.sleep(0)
            return await Exchange(self, connection, request).run()
        finally:
            connection.end()


class Exchange:
    """One request of a connection, and its answer."""

    def __init__(
        self, server: HttpServer, connection: HttpConnection, request: BaseRequest
    ) -> None:
        self._server = server
        self._connection = connection
        self._request = request

    async def run(self) -> StreamResponse:
        """Answer the request; a stream is sent until it ends or the peer disconnects.

        The whole answer is written when this returns, unless the peer stops reading.
        """
        answer = await self._answer()
        if isinstance(answer, Stream):
            return await self._follow(answer)
        return await self._send(answer)

    async def read(self) -> bytes:
        """Return the whole body.

        Raises `BodyTooLargeError`, `NoRoomError` if it does not fit beside other bodies, and
        `BrokenBodyError` if the peer disconnects or violates the protocol. A declared length that
        is too large is rejected before any byte is read.
        """
        declared = self._request.content_length
        if declared is not None:
            self._demand_room(declared, declared)
        await self._send_continue()
        body = bytearray()
        try:
            while chunk := await self._request.content.readany():
                if declared is None:
                    self._demand_room(len(body) + len(chunk), len(chunk))
                body += chunk
        except (RequestPayloadError, ConnectionError) as error:
            raise BrokenBodyError(one_line(str(error))) from error
        return bytes(body)

    def _demand_room(self, size: int, more: int) -> None:
        """Count `more` bytes for a body that has `size` bytes including them."""
        if size > self._server.limits.body_bytes:
            raise BodyTooLargeError(self._server.limits.body_bytes)
        self._server.caps.receive(self._connection, more)

    async def _send_continue(self) -> None:
        """Send `100 Continue` to a peer that expects it (RFC 9110 section 10.1.1)."""
        if self._request.headers.get("Expect", "").lower() == "100-continue":
            writer = self._request.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0

    async def _answer(self) -> Answer:
        """Return the handler's answer, or one that says why there is none."""
        method, text, failed = self._request.method, self._request.raw_path, self._server.failed
        try:
            target = _target(text)
        except ValueError as error:
            return failed(HTTPStatus.BAD_REQUEST, f"invalid request target: {error}")
        transport = self._request.transport
        peer = None if transport is None else transport.get_extra_info("socket")
        try:
            return await self._server.handler(Request(method, target, self.read, peer))
        except HttpError as error:
            return replace(failed(error.status, str(error)), headers=error.headers)
        except Exception:
            log.exception("request failed", method=method, target=text)
            message = "internal error; see the agent log"
            return failed(HTTPStatus.INTERNAL_SERVER_ERROR, message)

    async def _send(self, answer: Response) -> StreamResponse:
        body = answer.body
        response = StreamResponse(status=answer.status, headers=_headers(answer))
        response.content_length = len(body)
        # Only aiohttp's parser knows where chunks end: the start of a next head is not known.
        if self._connection.ended.is_set() or "Transfer-Encoding" in self._request.headers:
            response.force_close()
        self._connection.send(len(body))
        try:
            await response.prepare(self._request)
            if self._request.method != "HEAD":
                for start in range(0, len(body), PIECE_BYTES):
                    await response.write(memoryview(body)[start : start + PIECE_BYTES])
                    await self._request.writer.drain()
                    self._server.caps.active(self._connection)
            await response.write_eof()
        except ConnectionError as error:
            log.debug("peer disconnected during the answer", reason=str(error))
        return response

    async def _follow(self, stream: Stream) -> StreamResponse:
        """Send a stream's pieces until it ends or the peer half-closes or disconnects."""
        response = StreamResponse(headers=_headers(stream))
        response.force_close()
        sending = asyncio.create_task(self._send_pieces(stream, response))
        ended = asyncio.create_task(self._connection.ended.wait())
        try:
            await asyncio.wait((sending, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            sending.cancel()
            (outcome,) = await asyncio.gather(sending, return_exceptions=True)
        if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError):
            log.error("request failed", method="GET", exc_info=outcome)
        return response

    async def _send_pieces(self, stream: Stream, response: StreamResponse) -> None:
        with stream.open() as pieces:
            await response.prepare(self._request)
            self._connection.watch()
            async for piece in pieces:
                self._connection.begin_piece()
                await response.write(piece)
                await self._request.writer.drain()
                self._connection.end_piece()


class Stage(Enum):
    """What a connection does, and how long it may take."""

    #: It receives a head; `Limits.head_seconds`, the first time from the connection on.
    HEAD = auto()
    #: aiohttp has a whole head and begins the request; the head's deadline stays in force.
    REQUEST = auto()
    #: The handler runs; handlers have deadlines of their own.
    HANDLER = auto()
    #: The answer is written; `Limits.idle_seconds` to read the whole of it.
    ANSWER = auto()
    #: The answer is a stream; `Limits.idle_seconds` to read a piece.
    STREAM = auto()
    #: The request is answered, and no byte of the next one is there; `Limits.idle_seconds`.
    IDLE = auto()
    #: The bytes were not HTTP; `Limits.head_seconds` to read the answer that says so.
    ERROR = auto()


class HttpConnection(RequestHandler, asyncio.BufferedProtocol):
    """A connection of a listener.

    asyncio calls the methods from `connection_made` to `connection_lost`, the agent those from
    `begin` to `cut`, aiohttp those from `handle_error` on.
    """

    #: Whom the connection is counted for; there from `connection_made` on.
    caller: Caller

    def __init__(self, server: HttpServer) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast("Any", None),
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=LINGER_SECONDS,
            read_bufsize=READ_BYTES,
            auto_decompress=False,
        )
        self.stage = Stage.HEAD
        #: Set once the peer has said that it sends no more, and at the end of the connection.
        self.ended = asyncio.Event()
        #: What `agent.server.limits.Connection` explains.
        self.body_size = self.unread = 0
        self._server = server
        self._limits = server.limits
        #: None before and after the connection. aiohttp forgets its `transport` when it begins to
        #: close, which a peer that reads nothing can delay.
        self._wire: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        #: Bytes that aiohttp has of a head whose request has not begun.
        self._head_size = 0
        #: Whether any request has begun; the body of the latest, and its bytes that are to come.
        self._begun = False
        self._body = EMPTY_PAYLOAD
        self._body_rest = 0
        #: Received bytes that aiohttp does not have yet, and whether receiving waits for them.
        self._ahead = bytearray()
        self._held_back = False

    @property
    def answering(self) -> bool:
        """Whether a request waits for its answer, which has not begun."""
        return self.stage is Stage.HANDLER

    @property
    def watching(self) -> bool:
        """Whether the peer follows a stream."""
        return self.stage is Stage.STREAM

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enter the listener, and wait for the first head, with TLS after the handshake."""
        self._wire = wire = cast("asyncio.Transport", transport)
        if not self._server.enter(self, wire):
            return
        if self._server.tls is None:
            self._begin_http(wire)
        else:
            wire.pause_reading()  # the first bytes are the handshake's
            self._handshake = asyncio.create_task(self._shake_hands(wire, self._server.tls))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's own
        """Return the listener's receive buffer."""
        return self._server.received

    def buffer_updated(self, nbytes: int) -> None:
        """Receive bytes."""
        self.data_received(bytes(self._server.received[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Receive bytes; without any, aiohttp goes on with what it has."""
        if not data:
            super().data_received(data)
        elif self.stage is not Stage.ERROR:
            self._ahead += data
            self._hand_over()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep the connection for a request that is whole; a TLS connection cannot be half-open.

        A peer that has closed its socket waits for no answer.
        """
        self.ended.set()
        self._end_body()
        waits = self.stage not in (Stage.HEAD, Stage.IDLE, Stage.ERROR)
        if self._wire is None or self._server.tls is not None or not waits:
            return None
        return not _is_closed(self._wire.get_extra_info("socket"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Leave the listener's caps."""
        self._expect(None)  # its callback would keep this object alive
        self._wire = None
        self._ahead.clear()
        self.ended.set()
        self._server.caps.leave(self)
        super().connection_lost(exc)

    def begin(self, request: BaseRequest) -> None:
        """Note that a request is begun."""
        self._begun = True
        self._head_size = 0
        self._body = request.content
        declared = request.content_length
        # How long chunks are is not declared: `Exchange` closes behind them.
        self._body_rest = sys.maxsize if declared is None else declared
        self.stage = Stage.HANDLER
        self._expect(None)
        self._server.caps.active(self)
        self._hand_over()
        if self.ended.is_set():
            self._end_body()

    def watch(self) -> None:
        """Note that the answer is a stream; other watchers may have to make place."""
        self.stage = Stage.STREAM
        self._server.caps.make_place(self)

    def begin_piece(self) -> None:
        """Start the time to read a piece of a stream."""
        self._expect(self._limits.idle_seconds)

    def end_piece(self) -> None:
        """Note that a piece of a stream was read."""
        self._expect(None)
        self._server.caps.active(self)

    def send(self, size: int) -> None:
        """Start the time to read an answer of so many bytes; others may have to make room."""
        self.stage = Stage.ANSWER
        self.body_size = 0
        self._expect(self._limits.idle_seconds)
        self._server.caps.active(self)
        self._server.caps.send(self, size)

    def end(self) -> None:
        """Note that a request is over; start the time of the next one, if there can be one."""
        self.stage = Stage.IDLE
        self.unread = 0
        if self.ended.is_set():
            self.close()  # aiohttp closes after it has finished this request
        self._expect(self._limits.idle_seconds)
        self._server.caps.active(self)
        self._hand_over()

    def cut(self, last: bytes = b"") -> None:
        """End the connection at once; `last` is for a peer of which no request was begun."""
        if self._handshake is not None:
            self._handshake.cancel()
        if self._wire is None:
            return
        unanswered = not self._begun and self.stage is not Stage.ERROR
        if last and unanswered and self._server.tls is None:
            self._wire.write(last)
        self._wire.abort()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer malformed HTTP; since it is the peer's mistake, one log line is enough."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        why = one_line(exc.message.rstrip("\n ^"))  # aiohttp's caret has no line to point at
        self._server.lines.warning("malformed HTTP request", why=why)
        if isinstance(exc, LineTooLong) or exc.message.startswith(_TOO_MANY):
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self.stage = Stage.ERROR
        self._expect(self._limits.head_seconds)
        answer = self._server.failed(HTTPStatus(status), f"malformed HTTP request: {why}")
        headers = {"Content-Type": answer.content_type, "Server": "numawarden"}
        response = HttpResponse(body=answer.body, status=answer.status, headers=headers)
        response.force_close()
        return response

    async def finish_response(
        self, request: BaseRequest, resp: StreamResponse, start_time: float | None
    ) -> tuple[StreamResponse, bool]:
        """Send an answer; a peer that sent malformed HTTP has time to read it and to close."""
        outcome = await super().finish_response(request, resp, start_time)
        wire = self._wire
        if self.stage is Stage.ERROR and wire is not None and not wire.is_closing():
            with suppress(OSError):  # closed by the peer already, or not in time (TimeoutError)
                if wire.can_write_eof():
                    wire.write_eof()
                async with asyncio.timeout(LINGER_SECONDS):
                    await self.ended.wait()
        return outcome

    def log_exception(self, *args: Any, **kw: Any) -> None:  # noqa: ANN401, ARG002  # aiohttp's own
        """Log an error inside of aiohttp."""
        self._server.lines.error("connection failed", exc_info=kw.get("exc_info"))

    async def _shake_hands(self, wire: asyncio.Transport, tls: SSLContext) -> None:
        """Begin HTTP after the TLS handshake; leave the caps if the handshake fails."""
        seconds, secure = self._limits.head_seconds, None
        try:
            secure = await asyncio.get_running_loop().start_tls(
                wire, self, tls, server_side=True, ssl_handshake_timeout=seconds
            )
        except OSError as error:
            log.debug("connection setup failed", reason=str(error))
        finally:
            self._handshake = None
            if secure is None:  # `connection_lost` is not called then
                self._server.caps.leave(self)
        if secure is not None:
            self._begin_http(secure)

    def _begin_http(self, wire: asyncio.Transport) -> None:
        self._wire = wire
        super().connection_made(wire)
        # drain() waits until the whole answer was sent.
        wire.set_write_buffer_limits(high=0)
        self._expect(self._limits.head_seconds)

    def _hand_over(self) -> None:
        """Give aiohttp the rest of the current request, or the next head when that is over.

        aiohttp itself would keep 32 heads for each connection, and has no parameter for the number.
        """
        while piece := self._next_piece():
            super().data_received(piece)
        full = len(self._ahead) >= AHEAD_BYTES
        if full and self._wire is not None:
            self._held_back = True
            self._wire.pause_reading()
        elif self._held_back and not full:
            self._held_back = False
            self.resume_reading()

    def _next_piece(self) -> bytes:
        """Remove from the received bytes what aiohttp gets now, and return it."""
        size = len(self._ahead)
        if not self._body.is_eof():  # its handler reads it, or aiohttp discards it after the answer
            size = min(size, self._body_rest)
            self._body_rest -= size
        elif size and self.stage in (Stage.IDLE, Stage.HEAD):
            if self.stage is Stage.IDLE:
                self.stage = Stage.HEAD
                self._expect(self._limits.head_seconds)
            end = self._ahead.find(_BLANK_LINE)
            if end >= 0:
                self.stage = Stage.REQUEST
                size = end + len(_BLANK_LINE)
            else:  # what may be the beginning of a blank line waits for its rest
                size = max(0, size - len(_BLANK_LINE) + 1)
            self._head_size += size
            if self._head_size > MAX_HEAD_BYTES:  # aiohttp bounds its parts, not the whole
                self._server.lines.warning("malformed HTTP request", why="its head is too long")
                self.cut()
                return b""
        else:
            return b""
        piece = bytes(self._ahead[:size])
        del self._ahead[:size]
        return piece

    def _end_body(self) -> None:
        """End a body of which no more can come; its reader gets an error."""
        if not self._body.is_eof():
            self._body.set_exception(RequestPayloadError("the connection ended within it"))
            self._body.feed_eof()

    def _expect(self, seconds: float | None) -> None:
        """Close the connection in so many seconds, None: never; a former deadline is gone."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if seconds is not None and self._wire is not None:
            self._alarm = asyncio.get_running_loop().call_later(seconds, self.cut)


def _target(text: str) -> RequestTarget:
    """Return the parsed target; raises `ValueError`."""
    if _TARGET.fullmatch(text) is None:
        raise ValueError("it contains characters that must be percent-encoded")
    return RequestTarget.parse(text)


def _headers(answer: Answer) -> list[tuple[str, str]]:
    return [("Content-Type", answer.content_type), *_OWN_HEADERS, *answer.headers]


def _raw(answer: Response) -> bytes:
    """Return the bytes of an answer after which the connection ends."""
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        f"Connection: close\r\nRetry-After: {RETRY_SECONDS}\r\n\r\n"
    )
    return head.encode() + answer.body


def _is_closed(connection: TransportSocket) -> bool:
    """Return whether a connection has ended in both directions.

    True if the peer of a Unix socket is closed. TCP shows a closed peer as half-closed.
    """
    poll = select.poll()
    poll.register(connection, 0)  # what is not asked for: POLLHUP and POLLERR
    return bool(poll.poll(0))
