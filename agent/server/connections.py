"""The connections of a listener: accepting, turns between requests, and shutdown.

Every connection costs a file descriptor, and an agent without descriptors cannot write cgroups. So
a listener has a limit of connections (`agent.server.limits`); a connection that does not
send a complete request head, or does not read its response, is closed after a timeout.
"""

from __future__ import annotations

import asyncio
import errno
import re
import select
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp.web_protocol import RequestPayloadError
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
from agent.server.limits import RETRY_SECONDS, FullError, Places, Room
from agent.server.protocol import READ_BYTES, HttpConnection, limited_log

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from aiohttp.web_request import BaseRequest

    from agent.server.http import Answer, Failure, Handler, Response
    from agent.server.limits import Caller, Limits


log = structlog.get_logger(__name__)

#: How long to wait after accept(2) failed, in seconds.
PAUSE_SECONDS: Final = 1.0
#: How many connections are accepted, and how many requests are started, before the event loop
#: runs other tasks.
AT_A_TIME: Final = 64
TURNS: Final = 4
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
        self.lines = limited_log()
        self.bodies: Room[HttpConnection] = Room(limits.bodies)
        self.answers: Room[HttpConnection] = Room(limits.answers)
        self.failed = failed
        #: Shared receive buffer; a connection copies its bytes out at once.
        self.received = memoryview(bytearray(READ_BYTES))
        self._handler = handler
        self._listening = listening
        self._caller = caller
        self._tls = tls
        self._asking: Places[HttpConnection] = Places(
            limits.requests, cut_answers=limits.cut_answers
        )
        self._watching: Places[HttpConnection] = Places(limits.watchers, cut_answers=True)
        self._turns = asyncio.Semaphore(TURNS)
        self._openings: dict[HttpConnection, asyncio.Task[None]] = {}
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
        for opening in tuple(self._openings.values()):
            opening.cancel()
        self._server.pre_shutdown()
        await self._until_answered(seconds)
        await self._server.shutdown(_END_SECONDS)
        for connection in self._all():
            connection.cut()
        self.lines.flush()

    async def _until_answered(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while any(connection.answering for connection in self._all()):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return

    def _all(self) -> list[HttpConnection]:
        return [*self._asking, *self._watching]

    # --- accepting ------------------------------------------------------------------------------

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
            leaving = self._asking.enter(connection)
        except OSError as error:  # already closed by the peer
            log.debug("connection setup failed", reason=str(error))
            client.close()
        except FullError as error:
            name, count = error.caller.name, error.count
            self.lines.warning("too many connections", caller=name, connections=count)
            _turn_away(client, self._too_many(str(error)))
        except Exception as error:  # noqa: BLE001 - must not end the listener
            self.lines.error("connection failed", exc_info=error)
            client.close()
        else:
            self._cut(leaving)
            opening = asyncio.create_task(self._open(client, connection))
            self._openings[connection] = opening
            opening.add_done_callback(lambda _: self._openings.pop(connection))

    async def _open(self, client: socket.socket, connection: HttpConnection) -> None:
        """Create the transport of a connection; a failed TLS handshake ends it."""
        loop = asyncio.get_running_loop()
        seconds = None if self._tls is None else self.limits.head_seconds
        try:
            await loop.connect_accepted_socket(
                lambda: connection, client, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:
            log.debug("connection setup failed", reason=str(error))
        except asyncio.CancelledError:
            if self._tls is None:
                _turn_away(client, self._too_many(_GIVES_WAY))
            raise
        finally:
            if connection.transport is None:
                self.lost(connection)

    def _too_many(self, why: str) -> Response:
        return self.failed(HTTPStatus.SERVICE_UNAVAILABLE, why)

    def _cut(self, leaving: HttpConnection | None) -> None:
        if leaving is None:
            return
        opening = self._openings.get(leaving)
        if opening is not None:
            opening.cancel()
        # So the peer knows that a request which it has sent, and which was not read, did nothing.
        leaving.cut(_raw(self._too_many(_GIVES_WAY)))

    # --- what connections report ----------------------------------------------------------------

    def lost(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""
        self._asking.leave(connection)
        self._watching.leave(connection)
        self._idle.set()

    def active(self, connection: HttpConnection) -> None:
        """Record activity of a connection."""
        self._asking.touch(connection)
        self._watching.touch(connection)
        if not connection.answering:
            self._idle.set()

    def watching(self, connection: HttpConnection) -> None:
        """Count a connection as a watcher from now on."""
        self._asking.leave(connection)
        self._cut(self._watching.enter(connection))

    def sending(self, connection: HttpConnection, size: int) -> None:
        """Count the bytes of a response; connections that read nothing are closed for them."""
        for leaving in self.answers.claim(connection, size):
            self.lines.warning("slow reader disconnected", caller=leaving.caller.name)
            leaving.cut()

    # --- answering ------------------------------------------------------------------------------

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        """Answer one request in its turn.

        Otherwise all pipelined requests of a connection would be served before any other
        connection, since nothing between them waits for the network.
        """
        connection = request.protocol
        if not isinstance(connection, HttpConnection):
            raise TypeError(f"aiohttp made a connection of its own: {connection!r}")
        connection.begin_answer(request.content)
        try:
            if connection.caller.privileged:
                await asyncio.sleep(0)
            else:
                async with self._turns:
                    await asyncio.sleep(0)
            return await Exchange(request, connection, self._handler, self.failed).run()
        finally:
            connection.end_answer()


def _turn_away(client: socket.socket, answer: Response) -> None:
    """Send a response without reading a request, as far as the socket buffer allows."""
    try:
        client.settimeout(0)
        client.send(_raw(answer))
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
        with self._connection.bodies.space(self._connection):
            answer = await self._answer()
        if isinstance(answer, Stream):
            return await self._follow(answer)
        response = StreamResponse(status=answer.status, headers=_headers(answer))
        response.content_length = len(answer.body)
        if self._connection.half_closed or self._has_odd_frame():
            response.force_close()
        with self._connection.answers.space(self._connection):
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
                self._connection.answers.progressed(self._connection)
        await response.write_eof()

    def _has_odd_frame(self) -> bool:
        """Return whether an HTTP/1.0 request has a transfer encoding.

        A proxy may see its end elsewhere; RFC 9112 section 6.1 has a server close the connection.
        """
        old = (self._request.version.major, self._request.version.minor) < (1, 1)
        return old and "Transfer-Encoding" in self._request.headers

    # --- the body -------------------------------------------------------------------------------

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
        self._connection.bodies.take(self._connection, more)

    async def _send_continue(self) -> None:
        """Send `100 Continue` to a peer that expects it (RFC 9110 section 10.1.1)."""
        if self._request.headers.get("Expect", "").lower() == "100-continue":
            writer = self._request.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0

    # --- streams --------------------------------------------------------------------------------

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
            connection.watching()
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
