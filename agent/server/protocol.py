"""One connection: what aiohttp leaves to the server.

These are the timeouts of a peer, the response to malformed HTTP, and the response to a peer that
has half-closed its connection.
"""

from __future__ import annotations

import asyncio
import select
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import structlog
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_response import Response

from agent.server.http import one_line

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Callable

    from aiohttp.streams import StreamReader
    from aiohttp.web_request import BaseRequest
    from aiohttp.web_response import StreamResponse
    from aiohttp.web_server import Server
    from structlog.typing import FilteringBoundLogger

    from agent.server.http import Failure
    from agent.server.limits import Caller, Limits, Room


#: How long further lines of a kind are only counted, in seconds.
COUNTING_SECONDS: Final = 60.0


class _Kind:
    """The suppressed lines of one kind: their number, and the fields of the last one."""

    def __init__(self, write: Callable[..., Any]) -> None:
        self.write = write
        self.count = 0
        self.fields: dict[str, object] = {}


class LimitedLog:
    """Writes the first line of each kind (level and event) at once, and counts further ones.

    A counted line has the fields of the last one and their number in `more`.
    `later(seconds, callback, *arguments)` is the running loop's `call_later` where it is None.
    """

    def __init__(
        self, log: FilteringBoundLogger, later: Callable[..., object] | None = None
    ) -> None:
        self._log = log
        self._later = later
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def warning(self, event: str, **fields: object) -> None:
        """Log a warning, at once or as part of a count."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log an error, at once or as part of a count."""
        self._say("error", event, fields)

    def flush(self) -> None:
        """Write all counts."""
        for key in tuple(self._kinds):
            self._report(key)

    def _say(self, level: str, event: str, fields: dict[str, object]) -> None:
        kind = self._kinds.get((level, event))
        if kind is not None:
            kind.count += 1
            kind.fields = fields
            return
        kind = self._kinds[level, event] = _Kind(getattr(self._log, level))
        kind.write(event, **fields)
        self._await_more((level, event))

    def _report(self, key: tuple[str, str]) -> None:
        """Write the count of a kind and start the next count; stop if there were no lines."""
        kind = self._kinds.get(key)
        if kind is None:
            return
        if not kind.count:
            del self._kinds[key]
            return
        kind.write(key[1], more=kind.count, **kind.fields)
        kind.count, kind.fields = 0, {}
        self._await_more(key)

    def _await_more(self, key: tuple[str, str]) -> None:
        later = self._later or asyncio.get_running_loop().call_later
        later(COUNTING_SECONDS, self._report, key)


log = structlog.get_logger(__name__)

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


class Listener(Protocol):
    """What a connection needs of its listener."""

    limits: Limits
    #: Memory of the bodies, and of the responses, of all connections.
    bodies: Room[HttpConnection]
    answers: Room[HttpConnection]
    #: Shared receive buffer; a connection copies its bytes out at once.
    received: memoryview
    #: Log lines that a peer can cause.
    lines: LimitedLog
    #: Makes the response to malformed HTTP from a status and a message.
    failed: Failure

    def active(self, connection: HttpConnection) -> None:
        """Record activity of a connection."""

    def sending(self, connection: HttpConnection, size: int) -> None:
        """Count the bytes of a response that is about to be sent."""

    def watching(self, connection: HttpConnection) -> None:
        """Count a connection as a watcher from now on."""

    def lost(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""


class HttpConnection(RequestHandler, asyncio.BufferedProtocol):
    """A connection of a listener, with its deadline.

    `answering` is true from a request's whole head until its answer is there, `half_closed` from
    the moment when the peer has said that it sends no more, `body_cut_off` if that was amid a body.
    """

    def __init__(self, manager: Server, owner: Listener, caller: Caller) -> None:
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
        # The library's own bound is 32 heads of any size for each connection.
        self._max_msg_queue_size = MAX_WAITING
        self._msg_queue_resume_size = MAX_WAITING - 1
        self.caller = caller
        self.limits: Limits = limits
        self.answering = False
        self.half_closed = False
        self.body_cut_off = False
        self._sending = False
        self._begun = 0  # requests, of those that the library counts
        self._owner = owner
        self._ended: asyncio.Future[None] = self._loop.create_future()
        #: The library forgets the transport when it begins to close, which a deaf peer can delay.
        self._wire: asyncio.Transport | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._malformed = False
        self._head_begun = True  # the first head is due from the connection on
        self._head_bytes = 0
        #: The body of the latest request; bytes before its end do not begin a head.
        self._body = EMPTY_PAYLOAD

    @property
    def bodies(self) -> Room[HttpConnection]:
        """The room for the bodies of all connections of the listener."""
        return self._owner.bodies

    @property
    def answers(self) -> Room[HttpConnection]:
        """The room for the answers of all connections of the listener."""
        return self._owner.answers

    # --- what the peer does ---------------------------------------------------------------------

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
        self._owner.lost(self)
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's own
        """Return the shared receive buffer."""
        return self._owner.received

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes."""
        self.data_received(bytes(self._owner.received[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Process bytes; the first ones of a head set its deadline."""
        if self._malformed:
            return
        requests, within_body = self._request_count, not self._body.is_eof()
        super().data_received(data)
        if self._request_count > requests:
            self._body = self._messages[-1][1]
            self._head_bytes = 0
        elif data and not within_body:
            self._take_of_head(len(data))

    def _take_of_head(self, size: int) -> None:
        """Count the bytes of an incomplete head."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._owner.lines.warning("malformed HTTP request", why="its head does not end")
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
        asked = under_way or self._request_count > self._begun
        if self.transport is None or self.ssl_context is not None or not asked:
            return None
        if _is_closed(self.transport.get_extra_info("socket")):
            return None
        if not under_way:
            self._expect(HALF_CLOSED_SECONDS)
        return True

    # --- what the agent does --------------------------------------------------------------------

    def begin_answer(self, body: StreamReader) -> None:
        """Record a complete head and the reader of its body."""
        self.answering = True
        if not self._messages:  # what stands behind an upgrade did not come by `data_received`
            self._body = body
        self._begun += 1
        self._head_begun = False
        self._expect(None)
        self._owner.active(self)

    def begin_sending(self, size: int) -> None:
        """Start the timeout to read a response of so many bytes."""
        self.answering = False
        self._sending = True
        self._expect(self.limits.idle_seconds)
        self._owner.active(self)
        self._owner.sending(self, size)

    def end_answer(self) -> None:
        """Start the timeout of the next request, if there can be one."""
        self.answering = self._sending = False
        if self.half_closed:
            self.close()  # aiohttp closes after it has finished this request
        seconds = self.limits.head_seconds if self._head_begun else self.limits.idle_seconds
        self._expect(min(seconds, self.limits.idle_seconds))
        self._owner.active(self)

    def watching(self) -> None:
        """Follow a stream from now on."""
        self._owner.watching(self)

    def sending(self) -> None:
        """Start the timeout to read a piece of a stream."""
        self._expect(self.limits.idle_seconds)

    def taken(self) -> None:
        """Record that a piece of a stream was read."""
        self._expect(None)
        self._owner.active(self)

    def cut(self, last: bytes | None = None) -> None:
        """End the connection at once.

        If none of its requests was begun, the peer gets the last bytes, as far as it takes them.
        """
        if self._wire is None:
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

    # --- the deadline ---------------------------------------------------------------------------

    def _expect(self, seconds: float | None) -> None:
        """Close the connection in so many seconds unless the deadline is changed (None: never).

        The timer is moved only if it would fire too late: most deadlines are never reached.
        """
        self._deadline = None if seconds is None else self._loop.time() + seconds
        if self._deadline is None or self._wire is None:
            return
        if self._alarm is None or self._alarm.when() > self._deadline:
            self._set_alarm(self._deadline)

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(when, self._expired)

    def _expired(self) -> None:
        self._alarm = None
        if self._deadline is None:
            return
        if self._deadline > self._loop.time():
            self._set_alarm(self._deadline)
        else:
            self.cut()

    # --- what went wrong ------------------------------------------------------------------------

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
        why = one_line(exc.message)
        self._owner.lines.warning("malformed HTTP request", why=why)
        if isinstance(exc, LineTooLong) or exc.message.startswith(_TOO_MANY):
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self._malformed = True
        self._expect(self.limits.head_seconds)
        said = self._owner.failed(HTTPStatus(status), f"malformed HTTP request: {why}")
        headers = {"Content-Type": said.content_type, "Server": "numawarden"}
        response = Response(body=said.body, status=said.status, headers=headers)
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
        self._owner.lines.error("connection failed", exc_info=kw.get("exc_info"))


def _is_closed(connection: TransportSocket) -> bool:
    """Return whether a connection has ended in both directions.

    So it has if the peer of a Unix socket is closed; what TCP shows then is a half-closed one.
    """
    poll = select.poll()
    poll.register(connection, 0)  # what is not asked for: POLLHUP and POLLERR
    return bool(poll.poll(0))


def limited_log() -> LimitedLog:
    """Return the rate-limited log of a listener."""
    return LimitedLog(log)
