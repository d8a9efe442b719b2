from __future__ import annotations

import asyncio
import http.client
import io
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.server import connections as connections_module
from agent.server.connections import Connections
from agent.server.http import Request, Response, Stream
from agent.server.limits import Caller, Limit, Limits
from agent.server.sockets import Address, open_tcp
from tests.agent.server.support import in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from agent.server.http import Answer

MAX_BYTES = 1000
FOREVER = 3600.0
#: More than any of these tests sends.
BYTES = Limit(1 << 30, 1 << 30)


class Site:
    """Answers with what it was asked; each path in its own way."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[str] = []
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.followers = 0
        self.left = asyncio.Event()

    async def answer(self, request: Request) -> Answer:
        self.asked.append(f"{request.method} {request.target.path}")
        match request.target.segments:
            case ("body",):
                return Response(b"<" + await request.read() + b">")
            case ("broken",):
                raise ValueError("unexpected")
            case ("stream",):
                return Stream(self._open, "text/lines")
            case _:
                return Response(repr(request.target.query).encode())

    @contextmanager
    def _open(self) -> Iterator[AsyncIterator[bytes]]:
        self.followers += 1
        try:
            yield self._pieces()
        finally:
            self.followers -= 1
            self.left.set()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            yield piece

    async def talk(self, *parts: bytes, end: bool = False) -> bytes:
        """Send bytes as they are; return all that comes back until the other side ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part)
            await writer.drain()
        if end:
            writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer


@asynccontextmanager
async def opened() -> AsyncIterator[Site]:
    site = Site()
    listening = open_tcp(Address("127.0.0.1", 0))
    site.port = listening.getsockname()[1]
    bound = Limit(everyone=8, caller=8)
    limits = Limits(bound, bound, bound.times(MAX_BYTES), BYTES, FOREVER, FOREVER, MAX_BYTES)
    listeners = Connections(site.answer, listening, limits, lambda _: Caller("a user"))
    listeners.start()
    try:
        yield site
    finally:
        await listeners.stop(FOREVER)


def asking(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: a", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode() + body


def parsed(answer: bytes, method: str = "GET") -> list[tuple[int, bytes]]:
    """Return status and body of each answer, as the standard library's client reads them."""

    class Heard:
        def __init__(self, data: bytes) -> None:
            self.file = io.BytesIO(data)

        def makefile(self, _mode: str) -> io.BytesIO:
            return self.file

    found = []
    while answer:
        heard = Heard(answer)
        response = http.client.HTTPResponse(heard, method=method)  # type: ignore[arg-type]
        response.begin()
        found.append((response.status, response.read()))
        answer = heard.file.read() if not heard.file.closed else b""
    return found


LAST = "Connection: close"


@in_loop
async def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    async with opened() as site:
        first = asking("POST", "/body", body=b"one")
        chunked = asking("POST", "/body", "Transfer-Encoding: chunked")
        chunks = b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        last = asking("GET", "/x?q=1", LAST)
        answer = await site.talk(first + chunked + chunks + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert [answer.index(text) for text in (b"<one>", b"<abc>", b"('q', '1')")] == sorted(
        answer.index(text) for text in (b"<one>", b"<abc>", b"('q', '1')")
    )


#: What is said, what is asked by that, and the answers.
KEPT = b"POST /x HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
SAID: dict[str, tuple[list[bytes], list[str], list[tuple[int, bytes]]]] = {
    "byte by byte": (
        [bytes([byte]) for byte in asking("POST", "/body", LAST, body=b"slowly")],
        ["POST /body"],
        [(200, b"<slowly>")],
    ),
    "a body that is not read need not be sent": (
        [asking("POST", "/x", "Expect: 100-continue", "Content-Length: 2")],
        ["POST /x"],
        [(200, b"()")],
    ),
    "HTTP 1.0": ([b"GET /x HTTP/1.0\r\n\r\n"], ["GET /x"], [(200, b"()")]),
    "behind chunks of HTTP 1.0": ([KEPT + asking("GET", "/evil")], ["POST /x"], [(200, b"()")]),
}


@pytest.mark.parametrize(("parts", "asked", "answers"), SAID.values(), ids=SAID)
@in_loop
async def test_what_is_said_is_asked_once_and_answered(
    parts: list[bytes], asked: list[str], answers: list[tuple[int, bytes]]
) -> None:
    async with opened() as site:
        assert parsed(await site.talk(*parts)) == answers
        assert site.asked == asked


@in_loop
async def test_what_was_not_read_of_a_small_body_is_not_the_next_request() -> None:
    async with opened() as site:
        evil = asking("GET", "/evil")
        answer = await site.talk(asking("POST", "/x", body=evil) + asking("GET", "/y", LAST))
        assert site.asked == ["POST /x", "GET /y"]
    assert answer.count(b"HTTP/1.1 200 OK") == 2


@in_loop
async def test_a_peer_that_still_sends_its_body_sees_the_answer_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "LINGER_SECONDS", FOREVER)
    async with opened() as site:
        head = asking("POST", "/x", "Content-Length: 5000000")
        answer = await site.talk(head, *[bytes(100_000)] * 50, end=True)
        assert parsed(answer) == [(200, b"()")]
        assert site.asked == ["POST /x"]


@pytest.mark.parametrize(
    "body", [b"x" * (MAX_BYTES + 1), b"x" * 3_000_000], ids=["by one", "by far"]
)
@in_loop
async def test_a_body_above_the_limit_is_rejected(body: bytes) -> None:
    async with opened() as site:
        assert parsed(await site.talk(asking("POST", "/body", body=body), end=True)) == [
            (413, f"the body is larger than {MAX_BYTES} bytes\n".encode())
        ]
        ok = await site.talk(asking("POST", "/body", LAST, body=b"x" * MAX_BYTES))
        assert ok.endswith(b"<" + b"x" * MAX_BYTES + b">")


@in_loop
async def test_who_asks_before_sending_a_body_is_asked_to_go_on() -> None:
    async with opened() as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(asking("POST", "/body", LAST, "Expect: 100-continue", "Content-Length: 2"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"hi")
        assert (await reader.read()).endswith(b"<hi>")
        writer.close()


@in_loop
async def test_the_answer_to_head_has_no_body() -> None:
    async with opened() as site:
        answer = await site.talk(asking("HEAD", "/x") + asking("HEAD", "/x", LAST))
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.lower().count(b"content-length: 2\r\n") == 2
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET /" + b"\x01" * 2000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"hello there\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"b" * 100_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"X: b\r\n" * 100 + b"Host: a\r\n\r\n", 431),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ],
)
@in_loop
async def test_bytes_that_are_not_http_are_answered_and_logged_in_a_short_line(
    said: bytes, status: int
) -> None:
    with capture_logs() as log:
        async with opened() as site:
            answer = await site.talk(said, end=True)
            assert site.asked == []
    assert [code for code, _ in parsed(answer)] == [status]
    (line,) = log
    assert (line["log_level"], line["event"]) == ("warning", "malformed HTTP request")
    assert len(line["why"]) < 200
    assert line["why"].isprintable()


@pytest.mark.parametrize("said", [b"", b"GET /x HT", asking("GET", "/x")[:-2]])
@in_loop
async def test_who_goes_away_before_asking_is_not_logged(said: bytes) -> None:
    with capture_logs() as log:
        async with opened() as site:
            assert await site.talk(said, end=True) == b""
    assert log == []


@in_loop
async def test_who_goes_away_amid_a_body_is_answered_as_far_as_that_goes() -> None:
    with capture_logs() as log:
        async with opened() as site:
            head = asking("POST", "/body", "Content-Length: 10")
            ((status, text),) = parsed(await site.talk(head, b"12345", end=True))
    assert (status, text.startswith(b"the body cannot be read: ")) == (400, True)
    assert log == []


@in_loop
async def test_an_unexpected_error_is_logged_in_full_and_answered_in_short() -> None:
    with capture_logs() as log:
        async with opened() as site:
            answer = await site.talk(asking("GET", "/broken") + asking("GET", "/x", LAST))
    assert b"HTTP/1.1 500 " in answer
    assert b"unexpected" not in answer
    assert b"HTTP/1.1 200 " in answer
    (line,) = log
    assert (line["log_level"], line["exc_info"]) == ("error", True)


@in_loop
async def test_a_stream_is_heard_piece_by_piece_until_its_end() -> None:
    async with opened() as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(asking("GET", "/stream"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"text/lines" in head
        assert site.followers == 1
        for piece in (b"one", b"two"):
            site.pieces.put_nowait(piece)
            assert await reader.readuntil(piece + b"\r\n")
        site.pieces.put_nowait(None)
        assert await reader.read() == b"0\r\n\r\n"
        writer.close()


@in_loop
async def test_a_stream_ends_when_its_reader_leaves() -> None:
    async with opened() as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(asking("GET", "/stream"))
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await site.left.wait()
        assert site.followers == 0
