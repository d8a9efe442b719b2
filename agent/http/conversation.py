"""One connection: a request, its answer, the next request, until either side has had enough."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import h11
import structlog

from agent.http.errors import BodyTooLargeError, BrokenBodyError, HttpError
from agent.http.messages import Request, Response, Stream, Target

if TYPE_CHECKING:
    from agent.http.messages import Answer, Handler

log = structlog.get_logger(__name__)

#: A request's line and headers together (one chunk more where they come at once).
MAX_HEAD_BYTES: Final = 32 << 10
#: How long the rest of a request is still taken, and thrown away, after its answer, in seconds.
LINGER_SECONDS: Final = 1.0
_CHUNK: Final = 16 << 10
_LONGEST_REASON: Final = 120


class Conversation:
    """Answers the requests of one connection, one at a time.

    `idle_seconds` bound the time from the connection or the end of a request's handling to the
    whole head of the next request, the taking of the answer included. A stream that is being
    followed is not idle. No body is larger than `max_bytes`.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handler: Handler,
        idle_seconds: float,
        max_bytes: int,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._idle_seconds = idle_seconds
        self._max_bytes = max_bytes
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._deadline = 0.0
        self._ending = False
        self.answering = False
        # Whoever has taken an answer has taken all of it: nothing is left to be sent at the end.
        writer.transport.set_write_buffer_limits(high=0)

    async def run(self) -> None:
        """Answer until one of both ends it; raises `OSError`, and `TimeoutError` where it idles."""
        self._be_idle()
        while await self._exchange() and not self._ending:
            self._http.start_next_cycle()

    def end(self) -> None:
        """Let the present answer be the last."""
        self._ending = True

    async def _exchange(self) -> bool:
        """Answer one request; False where there will be no other on this connection."""
        try:
            async with asyncio.timeout_at(self._deadline):
                head = await self._event()
        except h11.RemoteProtocolError as error:
            await self._refuse(error)
            return False
        if not isinstance(head, h11.Request):
            return False
        self.answering = True
        answer = await self._answer(head)
        if isinstance(answer, Stream):
            await self._follow(answer)
        self.answering = False
        self._be_idle()
        if isinstance(answer, Response):
            await self._send(answer, whole=head.method != b"HEAD")
        return self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    def _be_idle(self) -> None:
        self._deadline = asyncio.get_running_loop().time() + self._idle_seconds

    # --- what is asked --------------------------------------------------------------------------

    async def _event(self) -> h11.Event | None:
        """Return what comes next of the present request, None where it is over."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_CHUNK))
        return None if isinstance(event, type) else event

    async def read(self) -> bytes:
        """Return the whole body of the present request.

        Raises `BodyTooLargeError`, and `BrokenBodyError` where the peer breaks off or breaks rules.
        """
        if self._http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        try:
            while isinstance(event := await self._event(), h11.Data):
                body += event.data
                if len(body) > self._max_bytes:
                    raise BodyTooLargeError(self._max_bytes)
        except (h11.RemoteProtocolError, ConnectionError) as error:
            raise BrokenBodyError(_shortened(str(error))) from error
        return bytes(body)

    async def _answer(self, head: h11.Request) -> Answer:
        method, text = head.method.decode("ascii"), head.target.decode("ascii")
        try:
            target = Target.parse(text)
        except ValueError as error:
            return Response(f"no target of a request: {error}\n".encode(), HTTPStatus.BAD_REQUEST)
        connection = self._writer.get_extra_info("socket")
        try:
            return await self._handler(Request(method, target, self.read, connection))
        except HttpError as error:
            return Response(f"{error}\n".encode(), error.status, headers=error.headers)
        except Exception:
            log.exception("request failed", method=method, target=text)
            said = b"the agent failed at this; its log says more\n"
            return Response(said, HTTPStatus.INTERNAL_SERVER_ERROR)

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Answer what is no HTTP; that is the peer's mistake, and a line of the log is enough."""
        if self._reader.at_eof():  # it went away amid its own words
            return
        log.warning("a peer speaks no HTTP", why=_shortened(str(error)))
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = f"this is no HTTP: {_shortened(str(error))}\n".encode()
            closing = (("Connection", "close"),)
            await self._send(Response(text, HTTPStatus(error.error_status_hint), headers=closing))
            await self._linger()

    # --- what is answered -----------------------------------------------------------------------

    async def _send(self, answer: Response, *, whole: bool = True) -> None:
        """Send an answer (not `whole`: its head), and what a peer says beyond it is not heard."""
        unread = self._skip_body()
        headers = [*answer.headers, ("Content-Length", str(len(answer.body)))]
        if unread:
            headers.append(("Connection", "close"))
        self._write(_head(answer.status, answer.content_type, headers))
        if whole:
            self._write(h11.Data(data=answer.body))
        self._write(h11.EndOfMessage())
        async with asyncio.timeout_at(self._deadline):
            await self._writer.drain()
        if unread:
            await self._linger()

    async def _follow(self, stream: Stream) -> None:
        """Send a stream's pieces until it ends or nobody reads any more."""
        self._skip_body()
        sending = asyncio.create_task(self._send_pieces(stream))
        leaving = asyncio.create_task(self._discard())
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled():
            sending.result()

    async def _send_pieces(self, stream: Stream) -> None:
        with stream.open() as pieces:
            self._write(_head(HTTPStatus.OK, stream.content_type, [("Connection", "close")]))
            async for piece in pieces:
                self._write(h11.Data(data=piece))
                await self._writer.drain()
        self._write(h11.EndOfMessage())
        await self._writer.drain()

    def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._writer.write(data)

    def _skip_body(self) -> bool:
        """Pass over what has come of the body; tell whether some of it is still to come."""
        try:
            while isinstance(self._http.next_event(), h11.Data):
                pass
        except h11.RemoteProtocolError:
            return False
        return self._http.their_state is h11.SEND_BODY

    async def _linger(self) -> None:
        """Take what is under way: a peer that is cut off while it sends does not see the answer."""
        if not self._http.they_are_waiting_for_100_continue:
            try:
                async with asyncio.timeout(LINGER_SECONDS):
                    await self._discard()
            except TimeoutError:
                return

    async def _discard(self) -> None:
        while await self._reader.read(_CHUNK):
            pass


def _head(status: HTTPStatus, content_type: str, headers: list[tuple[str, str]]) -> h11.Response:
    own = [("Content-Type", content_type), ("Date", formatdate(usegmt=True))]
    return h11.Response(status_code=status, headers=[*own, *headers], reason=status.phrase)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return ascii(line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}...")
