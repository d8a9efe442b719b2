"""The connections of a listener: accepting, turns between requests, and shutdown.

Every connection costs a file descriptor, and an agent without descriptors cannot write cgroups. So
users other than root have caps (`agent.server.limits`), and of their requests one begins at a time,
root's at once. A connection that does not send a complete request head, or does not read its
response, is closed after a timeout. In go connections and the handler of requests; out come
answers: `HttpConnection` is one connection, `Exchange` one request and its answer.
"""

from __future__ import annotations

import asyncio
import errno
import re
import select
from contextlib import nullcontext
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
from agent.server.limits import RETRY_SECONDS, FullError, demand_room, displaced, place
from agent.server.log import LimitedLog

if TYPE_CHECKING:
    import socket
    import ssl
    from asyncio.trsock import TransportSocket
    from collections.abc import Callable

    from aiohttp.streams import StreamReader
    from aiohttp.web_request import BaseRequest

    from agent.server.http import Answer, Failure, Handler, Response
    from agent.server.limits import Caller, Limits


log = structlog.get_logger(__name__)

#: How long to wait after accept(2) failed, in seconds.
PAUSE_SECONDS: Final = 1.0
#: How many connections are accepted before the event loop runs other tasks.
AT_A_TIME: Final = 64
_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO})
#: Why a connection is closed whose request was not begun.
_GIVES_WAY: Final = "too many connections; this one was idle for longest, and nothing was begun"
#: How long aiohttp may take to close the remaining connections at the shutdown, in seconds.
_END_SECONDS: Final = 0.1


class Connections:
    """The connections of one listening socket; `handler` answers their requests.

    `caller` returns the caller that a connection is counted for, and raises `OSError` if the
    connection is closed already. `failed` makes the responses to requests without a handler.
    """

    def __init__(
        self,
        handler: Handler,
        listening: socket.socket,
        limits: Limits,
        caller: Callable[[socket.socket], Caller],
        tls: ssl.SSLContext | None = None,
        failed: Failure = plain_failure,
    ) -> None:
        self.limits = limits
        self.lines = LimitedLog(log)
        self.failed = failed
        #: So the peer knows that a request which it has sent, and which was not read, did nothing.
        self._gives_way = _raw(failed(HTTPStatus.SERVICE_UNAVAILABLE, _GIVES_WAY))
        #: Shared receive buffer; a connection copies its bytes out at once.
        self.received = memoryview(bytearray(READ_BYTES))
        self._handler = handler
        self._listening = listening
        self._caller = caller
        self._tls = tls
        #: In the order of their last activity.
        self._connections: dict[HttpConnection, None] = {}
        #: Locked while a request begins whose caller is not privileged.
        self._beginning = asyncio.Lock()
        # The action that a gone client waits for is dropped if it has not begun.
        self._server = Server(self._answer, handler_cancellation=True)
        self._accepting: asyncio.Task[None] | None = None
        self._accepted = self._accepted_before = 0
        self._idle = asyncio.Event()

    def start(self) -> None:
        """Start accepting."""
        self._listening.settimeout(0)
        self._accepting = asyncio.create_task(self._accept_all())

    async def listen(self, listening: socket.socket) -> None:
        """Accept at another socket from now on; what is connected stays connected."""
        await self._stop_accepting()
        self._listening = listening
        self.start()

    def standing(self) -> str:
        """Return how accepting stands still, "" if it does not.

        It does if it has ended, or if connections wait and none was accepted since the last call.
        """
        if self._accepting is None or self._accepting.done():
            return "accepting has ended"
        waiting = select.poll()
        waiting.register(self._listening, select.POLLIN)
        none, self._accepted_before = self._accepted == self._accepted_before, self._accepted
        return "connections wait and none is accepted" if none and waiting.poll(0) else ""

    async def _stop_accepting(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        self._listening.close()

    async def stop(self, seconds: float) -> None:
        """Stop accepting; responses in progress may take so many seconds."""
        await self._stop_accepting()
        # A connection accepted at this moment gets its transport first, which closes it.
        await asyncio.sleep(0)
        self._server.pre_shutdown()
        await self._until_answered(seconds)
        await self._server.shutdown(_END_SECONDS)
        for connection in self._connections:
            connection.cut()
        self.lines.flush()

    async def _until_answered(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while any(connection.answering for connection in self._connections):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno not in _GONE:
                    self.lines.warning("accept failed", reason=error.strerror)
                    await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._admit_connection(client)
            self._accepted += 1
            if self._accepted % AT_A_TIME == 0:
                await asyncio.sleep(0)

    def _admit_connection(self, client: socket.socket) -> None:
        """Add a new connection; the connection displaced by it is closed."""
        try:
            connection = HttpConnection(self._server, self, self._caller(client))
            self._make_place(connection)
        except OSError as error:  # already closed by the peer
            log.debug("connection setup failed", reason=str(error))
            client.close()
        except FullError as error:
            name, count = error.caller.name, error.count
            self.lines.warning("too many connections", caller=name, connections=count)
            _turn_away(client, _raw(self.failed(HTTPStatus.SERVICE_UNAVAILABLE, str(error))))
        except Exception as error:  # noqa: BLE001 - must not end the listener
            self.lines.error("connection failed", exc_info=error)
            client.close()
        else:
            self._connections[connection] = None
            self._open(client, connection)

    def _open(self, client: socket.socket, connection: HttpConnection) -> None:
        """Begin to make the transport of a connection; a failed TLS handshake ends it."""
        seconds = None if self._tls is None else self.limits.head_seconds
        opening = asyncio.create_task(
            asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        )

        def opened(_: asyncio.Task[Any]) -> None:
            if opening.cancelled():
                _turn_away(client, self._gives_way if self._tls is None else b"")
            elif isinstance(error := opening.exception(), OSError):
                log.debug("connection setup failed", reason=str(error))
            elif error is not None:
                self.lines.error("connection failed", exc_info=error)
            if connection.transport is None:
                self.lost(connection)

        connection.opening = opening
        opening.add_done_callback(opened)

    def _make_place(self, newcomer: HttpConnection) -> None:
        """Close another connection for a newcomer if there are too many; raises `FullError`."""
        leaving = place(newcomer, self._connections, self.limits)
        if leaving is not None:
            self._close(leaving)

    def _close(self, connection: HttpConnection) -> None:
        del self._connections[connection]
        connection.cut(self._gives_way)

    def lost(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""
        self._connections.pop(connection, None)
        self._idle.set()

    def active(self, connection: HttpConnection) -> None:
        """Record activity of a connection; one that was closed is ignored."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None
        if not connection.answering:
            self._idle.set()

    def watching(self, connection: HttpConnection) -> None:
        """Count a connection as a watcher from now on."""
        connection.watching = True
        self._make_place(connection)

    def receiving(self, connection: HttpConnection, size: int) -> None:
        """Count so many bytes more of a body; raises `NoRoomError`."""
        demand_room(connection, size, self._connections, self.limits)
        connection.body_size += size

    def sending(self, connection: HttpConnection, size: int) -> None:
        """Count the bytes of a response; connections that read nothing are closed for them."""
        for leaving in displaced(connection, size, self._connections, self.limits):
            self.lines.warning("slow reader disconnected", caller=leaving.caller.name)
            self._close(leaving)
        connection.unread = size

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        """Answer one request; let the event loop run other tasks before each.

        Otherwise all pipelined requests of a connection would be served before any other
        connection, since nothing between them waits for the network.
        """
        connection = request.protocol
        if not isinstance(connection, HttpConnection):
            raise TypeError(f"aiohttp made a connection of its own: {connection!r}")
        connection.begin_answer(request.content)
        try:
            async with nullcontext() if connection.caller.privileged else self._beginning:
                await asyncio.sleep(0)
            return await Exchange(request, connection, self._handler, self.failed).run()
        finally:
            connection.end_answer()


def _turn_away(client: socket.socket, answer: bytes) -> None:
    """Send a response without reading a request, as far as the socket buffer allows."""
    try:
        client.settimeout(0)
        client.send(answer)
    except OSError as error:
        log.debug("connection setup failed", reason=str(error))
    finally:
        client.close()


def _raw(answer: Response) -> bytes:
    """Return the bytes of a response after which the connection ends."""
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        f"Connection: close\r\nRetry-After: {RETRY_SECONDS}\r\n\r\n"
    )
    return head.encode() + answer.body


#: How long to wait for the rest of a request after the peer has half-closed, in seconds.
HALF_CLOSED_SECONDS: Final = 1.0
#: How long the rest of a request is received and discarded after its response, in seconds.
LINGER_SECONDS: Final = 1.0
#: Size of one receive; at most twice that of a body is buffered without a reader.
READ_BYTES: Final = 16 << 10
#: How many complete heads may be queued before receiving pauses.
MAX_WAITING: Final = 2
#: The longest request line, the longest header, the most headers, and about the longest head.
MAX_LINE_BYTES: Final = 8190
MAX_HEADER_BYTES: Final = 4096
MAX_HEADERS: Final = 64
MAX_HEAD_BYTES: Final = 32 << 10
#: aiohttp's message for more headers than that, which has no exception type.
_TOO_MANY: Final = "Too many headers"


class HttpConnection(RequestHandler, asyncio.BufferedProtocol):
    """A connection of a listener, with its deadline.

    It does what aiohttp leaves to the server: the timeouts of a peer, the response to malformed
    HTTP, and the response to a peer that has half-closed its connection.
    """

    def __init__(self, manager: Server, owner: Connections, caller: Caller) -> None:
        limits = owner.limits
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_seconds,
            access_log=cast("Any", None),
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=LINGER_SECONDS,
            read_bufsize=READ_BYTES,
            auto_decompress=False,
        )
        # The library's own bound is 32 heads for each connection, 256 KiB each (ADR 1).
        self._max_msg_queue_size = MAX_WAITING
        self._msg_queue_resume_size = MAX_WAITING - 1
        self.caller = caller
        self.limits: Limits = limits
        # What `agent.server.limits.Connection` explains.
        self.answering = self.watching = False
        self.body_size = self.unread = 0
        #: From the moment when the peer has said that it sends no more.
        self.half_closed = False
        #: Whether that was amid a body.
        self.body_cut_off = False
        #: Makes the transport, after a TLS handshake.
        self.opening: asyncio.Task[Any] | None = None
        self._sending = False
        self._begun = False  # any request
        self._waiting = False  # a request with a whole head is not begun
        self.owner = owner
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: The library forgets the transport when it begins to close, which a deaf peer can delay.
        self._wire: asyncio.Transport | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._malformed = False
        self._head_begun = True  # the first head is due from the connection on
        self._head_bytes = 0
        #: The latest request and its body; bytes before its end do not begin a head.
        self._latest: object = None
        self._body = EMPTY_PAYLOAD

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._wire = cast("asyncio.Transport", transport)
        # drain() waits until the whole response was sent.
        self._wire.set_write_buffer_limits(high=0)
        self._expect(self.limits.head_seconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release the place."""
        self._wire = None
        if self._alarm is not None:  # its callback would keep this object alive
            self._alarm.cancel()
            self._alarm = None
        self._end()
        self.owner.lost(self)
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's own
        """Return the shared receive buffer."""
        return self.owner.received

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes."""
        self.data_received(bytes(self.owner.received[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Process bytes; the first ones of a head set its deadline."""
        if self._malformed:
            return
        within_body = not self._body.is_eof()
        super().data_received(data)
        if self._messages and self._messages[-1] is not self._latest:
            self._latest, self._waiting = self._messages[-1], True
            self._body = self._messages[-1][1]
            self._head_bytes = 0
        elif data and not within_body:
            self._take_of_head(len(data))

    def _take_of_head(self, size: int) -> None:
        """Count the bytes of an incomplete head."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self.owner.lines.warning("malformed HTTP request", why="its head does not end")
            self.cut()
        elif not self._head_begun:
            self._head_begun = True
            if not self.answering:
                self._expect(self.limits.head_seconds)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep the connection for a response in progress, except with TLS, which cannot.

        A peer that has closed its socket waits for no response.
        """
        super().eof_received()
        self._end()
        self.half_closed = True
        if not self._body.is_eof():  # all received bytes are processed before this call
            self.body_cut_off = True
            self._body.feed_eof()
        under_way = self.answering or self._sending
        if (
            self.transport is None
            or self.ssl_context is not None
            or not (under_way or self._waiting)
        ):
            return None
        if _is_closed(self.transport.get_extra_info("socket")):
            return None
        if not under_way:
            self._expect(HALF_CLOSED_SECONDS)
        return True

    def begin_answer(self, body: StreamReader) -> None:
        """Record a complete head and the reader of its body."""
        self.answering = True
        if not self._messages:  # what stands behind an upgrade did not come by `data_received`
            self._body = body
        self._begun = True
        self._waiting = bool(self._messages)
        self._head_begun = False
        self._expect(None)
        self.owner.active(self)

    def begin_sending(self, size: int) -> None:
        """Start the timeout to read a response of so many bytes."""
        self.answering = False
        self._sending = True
        self.body_size = 0
        self._expect(self.limits.idle_seconds)
        self.owner.active(self)
        self.owner.sending(self, size)

    def end_answer(self) -> None:
        """Start the timeout of the next request, if there can be one."""
        self.answering = self._sending = False
        self.unread = 0
        if self.half_closed:
            self.close()  # aiohttp closes after it has finished this request
        seconds = self.limits.head_seconds if self._head_begun else self.limits.idle_seconds
        self._expect(min(seconds, self.limits.idle_seconds))
        self.owner.active(self)

    def sending(self) -> None:
        """Start the timeout to read a piece of a stream."""
        self._expect(self.limits.idle_seconds)

    def taken(self) -> None:
        """Record that a piece of a stream was read."""
        self._expect(None)
        self.owner.active(self)

    def cut(self, last: bytes | None = None) -> None:
        """End the connection at once.

        If none of its requests was begun, the peer gets the last bytes, as far as it takes them.
        """
        if self._wire is None:
            if self.opening is not None:
                self.opening.cancel()
            return
        if last is not None and not self._begun and self.ssl_context is None:
            self._wire.write(last)
        self._wire.abort()

    async def until_half_closed(self, task: asyncio.Task[Any]) -> None:
        """Wait for a task, at most until the peer has half-closed or disconnected."""
        await asyncio.wait((task, self._ended), return_when=asyncio.FIRST_COMPLETED)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _expect(self, seconds: float | None) -> None:
        """Close the connection in so many seconds unless the deadline is changed (None: never).

        The timer is moved only if it would fire too late: most deadlines are never reached.
        """
        self._deadline = None if seconds is None else self._ended.get_loop().time() + seconds
        if self._deadline is None or self._wire is None:
            return
        if self._alarm is None or self._alarm.when() > self._deadline:
            self._set_alarm(self._deadline)

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._ended.get_loop().call_at(when, self._expired)

    def _expired(self) -> None:
        self._alarm = None
        if self._deadline is None:
            return
        if self._deadline > self._ended.get_loop().time():
            self._set_alarm(self._deadline)
        else:
            self.cut()

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
        why = one_line(exc.message.rstrip("\n ^"))  # what points at the place points at nothing now
        self.owner.lines.warning("malformed HTTP request", why=why)
        if isinstance(exc, LineTooLong) or exc.message.startswith(_TOO_MANY):
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self._malformed = True
        self._expect(self.limits.head_seconds)
        said = self.owner.failed(HTTPStatus(status), f"malformed HTTP request: {why}")
        headers = {"Content-Type": said.content_type, "Server": "numawarden"}
        response = HttpResponse(body=said.body, status=said.status, headers=headers)
        response.force_close()
        return response

    async def finish_response(
        self, request: BaseRequest, resp: StreamResponse, start_time: float | None
    ) -> tuple[StreamResponse, bool]:
        """Send a response; for malformed HTTP, let the peer read it before closing."""
        outcome = await super().finish_response(request, resp, start_time)
        transport = self.transport
        if self._malformed and transport is not None and not transport.is_closing():
            try:
                if transport.can_write_eof():
                    transport.write_eof()
            except OSError as error:  # already closed by the peer
                log.debug("peer disconnected during the response", reason=error.strerror)
                return outcome
            await asyncio.wait((self._ended,), timeout=LINGER_SECONDS)
        return outcome

    def log_exception(self, *args: Any, **kw: Any) -> None:  # noqa: ANN401, ARG002 - aiohttp's own
        """Log an error inside of aiohttp."""
        self.owner.lines.error("connection failed", exc_info=kw.get("exc_info"))


def _is_closed(connection: TransportSocket) -> bool:
    """Return whether a connection has ended in both directions.

    So it has if the peer of a Unix socket is closed; what TCP shows then is a half-closed one.
    """
    poll = select.poll()
    poll.register(connection, 0)  # what is not asked for: POLLHUP and POLLERR
    return bool(poll.poll(0))


#: A request's target (RFC 9112 section 3.2): visible ASCII.
_TARGET: Final = re.compile(r"[\x21-\x7e]+")
#: Responses are written in pieces of so many bytes, of which the transport copies one at a time.
PIECE_BYTES: Final = 64 << 10
#: Replaces aiohttp's header, which has its version.
_OWN_HEADERS: Final = (("Server", "numawarden"),)


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        request: BaseRequest,
        connection: HttpConnection,
        handler: Handler,
        failed: Failure,
    ) -> None:
        self._request = request
        self._connection = connection
        self._handler = handler
        self._failed = failed
        self._max_bytes = connection.limits.body_bytes

    async def run(self) -> StreamResponse:
        """Answer the request; a stream is sent until it ends or the peer disconnects.

        The whole response is written when this returns, unless the peer stops reading.
        """
        answer = await self._answer()
        if isinstance(answer, Stream):
            return await self._follow(answer)
        response = StreamResponse(status=answer.status, headers=_headers(answer))
        response.content_length = len(answer.body)
        if self._connection.half_closed or self._has_odd_frame():
            response.force_close()
        self._connection.begin_sending(len(answer.body))
        try:
            await self._send(response, answer.body)
        except ConnectionError as error:
            log.debug("peer disconnected during the response", reason=str(error))
        return response

    async def _answer(self) -> Answer:
        method, text = self._request.method, self._request.raw_path
        try:
            target = _target(text)
        except ValueError as error:
            return self._failed(HTTPStatus.BAD_REQUEST, f"invalid request target: {error}")
        transport = self._request.transport
        peer = None if transport is None else transport.get_extra_info("socket")
        try:
            return await self._handler(Request(method, target, self.read, peer))
        except HttpError as error:
            return replace(self._failed(error.status, str(error)), headers=error.headers)
        except Exception:
            log.exception("request failed", method=method, target=text)
            message = "internal error; see the agent log"
            return self._failed(HTTPStatus.INTERNAL_SERVER_ERROR, message)

    async def _send(self, response: StreamResponse, body: bytes) -> None:
        await response.prepare(self._request)
        if self._request.method != "HEAD":
            for start in range(0, len(body), PIECE_BYTES):
                await response.write(memoryview(body)[start : start + PIECE_BYTES])
                await self._request.writer.drain()
                self._connection.owner.active(self._connection)
        await response.write_eof()

    def _has_odd_frame(self) -> bool:
        """Return whether an HTTP/1.0 request has a transfer encoding.

        A proxy may see its end elsewhere; RFC 9112 section 6.1 has a server close the connection.
        """
        old = (self._request.version.major, self._request.version.minor) < (1, 1)
        return old and "Transfer-Encoding" in self._request.headers

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
        try:
            body = await self._read_all()
        except (RequestPayloadError, ConnectionError) as error:
            raise BrokenBodyError(one_line(str(error))) from error
        if self._connection.body_cut_off:
            raise BrokenBodyError("the connection ended within it")
        return body

    async def _read_all(self) -> bytes:
        body = bytearray()
        content = self._request.content
        declared = self._request.content_length is not None
        while chunk := await content.readany():
            if not declared:
                self._demand_room(len(body) + len(chunk), len(chunk))
            body += chunk
        return bytes(body)

    def _demand_room(self, size: int, more: int) -> None:
        """Reserve `more` bytes for a body that has `size` bytes including them."""
        if size > self._max_bytes:
            raise BodyTooLargeError(self._max_bytes)
        self._connection.owner.receiving(self._connection, more)

    async def _send_continue(self) -> None:
        """Send `100 Continue` to a peer that expects it (RFC 9110 section 10.1.1)."""
        if self._request.headers.get("Expect", "").lower() == "100-continue":
            writer = self._request.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0

    async def _follow(self, stream: Stream) -> StreamResponse:
        """Send a stream's pieces until it ends or the peer disconnects."""
        response = StreamResponse(headers=_headers(stream))
        response.force_close()
        sending = asyncio.create_task(self._send_pieces(stream, response))
        try:
            await self._connection.until_half_closed(sending)
        finally:
            sending.cancel()
            (outcome,) = await asyncio.gather(sending, return_exceptions=True)
        if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError):
            log.error("request failed", method="GET", exc_info=outcome)
        return response

    async def _send_pieces(self, stream: Stream, response: StreamResponse) -> None:
        connection = self._connection
        with stream.open() as pieces:
            await response.prepare(self._request)
            writer = self._request.writer
            connection.owner.watching(connection)
            async for piece in pieces:
                connection.sending()
                await response.write(piece)
                await writer.drain()
                connection.taken()


def _target(text: str) -> RequestTarget:
    """Return the parsed target; raises `ValueError`."""
    if _TARGET.fullmatch(text) is None:
        raise ValueError("it contains characters that must be percent-encoded")
    return RequestTarget.parse(text)


def _headers(answer: Answer) -> list[tuple[str, str]]:
    return [("Content-Type", answer.content_type), *_OWN_HEADERS, *answer.headers]
