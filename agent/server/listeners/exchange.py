"""Converts between aiohttp's requests and responses and those of the agent's handlers."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog
from aiohttp import web
from msgspec.structs import replace

from agent.server.listeners.errors import BodyTooLargeError, BrokenBodyError, HttpError
from agent.server.listeners.messages import Request, RequestTarget, Stream, one_line

if TYPE_CHECKING:
    from agent.server.listeners.messages import Answer, Failure, Handler, Response
    from agent.server.listeners.protocol import HttpConnection

log = structlog.get_logger(__name__)

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
        request: web.BaseRequest,
        connection: HttpConnection,
        handler: Handler,
        failed: Failure,
    ) -> None:
        self._request = request
        self._connection = connection
        self._handler = handler
        self._failed = failed
        self._max_bytes = connection.limits.body_bytes

    async def run(self) -> web.StreamResponse:
        """Answer the request; a stream is sent until it ends or the peer disconnects.

        The whole response is written when this returns, unless the peer stops reading.
        """
        with self._connection.bodies.space(self._connection):
            answer = await self._answer()
        if isinstance(answer, Stream):
            return await self._follow(answer)
        response = web.StreamResponse(status=answer.status, headers=_headers(answer))
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

    async def _send(self, response: web.StreamResponse, body: bytes) -> None:
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
        except (web.RequestPayloadError, ConnectionError) as error:
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

    async def _follow(self, stream: Stream) -> web.StreamResponse:
        """Send a stream's pieces until it ends or the peer disconnects."""
        response = web.StreamResponse(headers=dict(_OWN_HEADERS))
        response.headers["Content-Type"] = stream.content_type
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

    async def _send_pieces(self, stream: Stream, response: web.StreamResponse) -> None:
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


def _headers(answer: Response) -> list[tuple[str, str]]:
    return [("Content-Type", answer.content_type), *_OWN_HEADERS, *answer.headers]
