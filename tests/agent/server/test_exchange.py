from __future__ import annotations

import http.client
import io
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.server import connection as connection_module
from tests.agent.server.served import ASK, BODY, EXPECT, FOREVER, LAST, asking, opened, posting
from tests.agent.server.support import in_loop

if TYPE_CHECKING:
    from tests.agent.server.served import Site


async def talk(site: Site, *parts: bytes, end: bool = False) -> bytes:
    """Send bytes as they are; return all that comes back until the other side ends."""
    reader, writer = await site.enter()
    for part in parts:
        writer.write(part)
        await writer.drain()
    if end:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


class Heard(io.BytesIO):
    """What is heard of a connection, of which an answer is read and the rest kept."""

    def makefile(self, _mode: str) -> Heard:
        return self

    def close(self) -> None:
        """Leave the rest for the next answer."""


def parsed(answers: bytes) -> list[tuple[int, bytes]]:
    """Return status and body of each answer, as the standard library's client reads them."""
    found, heard = [], Heard(answers)
    while heard.tell() < len(answers):
        response = http.client.HTTPResponse(heard)  # type: ignore[arg-type]
        response.begin()
        found.append((response.status, response.read()))
    return found


@in_loop
async def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    async with opened() as site:
        chunks = b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        chunked = posting("/body", "Transfer-Encoding: chunked") + chunks
        said = posting("/body", body=b"one") + asking("/x") + chunked
        assert parsed(await talk(site, said)) == [(200, b"<one>"), HELLO, (200, b"<abc>")]


HELLO = (200, b"hello")
EVIL = asking("/evil")
KEPT = b"POST /x HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
#: What is said, what is asked by that, and the answers.
SAID: dict[str, tuple[list[bytes], list[str], list[tuple[int, bytes]]]] = {
    "byte by byte": (
        [bytes([byte]) for byte in posting("/body", LAST, body=b"slowly")],
        ["POST /body"],
        [(200, b"<slowly>")],
    ),
    "a body that is not read need not be sent": (
        [posting("/x", EXPECT, "Content-Length: 2")],
        ["POST /x"],
        [HELLO],
    ),
    "what was not read of a body is not the next request": (
        [posting("/x", body=EVIL) + asking("/y", LAST)],
        ["POST /x", "GET /y"],
        [HELLO, HELLO],
    ),
    "HTTP 1.0": ([b"GET /x HTTP/1.0\r\n\r\n"], ["GET /x"], [HELLO]),
    "behind chunks of HTTP 1.0": ([KEPT + EVIL], ["POST /x"], [HELLO]),
}


@pytest.mark.parametrize(("parts", "asked", "answers"), SAID.values(), ids=SAID)
@in_loop
async def test_what_is_said_is_asked_once_and_answered(
    parts: list[bytes], asked: list[str], answers: list[tuple[int, bytes]]
) -> None:
    async with opened() as site:
        assert parsed(await talk(site, *parts)) == answers
        assert site.requests == asked


@in_loop
async def test_a_peer_that_still_sends_its_body_sees_the_answer_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "LINGER_SECONDS", FOREVER)
    async with opened() as site:
        head = posting("/x", "Content-Length: 5000000")
        assert parsed(await talk(site, head, *[bytes(100_000)] * 50, end=True)) == [HELLO]
        assert site.requests == ["POST /x"]


@pytest.mark.parametrize("size", [BODY + 1, 3_000_000])
@in_loop
async def test_a_body_above_the_limit_is_rejected(size: int) -> None:
    async with opened() as site:
        assert parsed(await talk(site, posting("/body", body=b"x" * size), end=True)) == [
            (413, f"the body is larger than {BODY} bytes\n".encode())
        ]
        ok = await talk(site, posting("/body", LAST, body=b"x" * BODY))
        assert ok.endswith(b"<" + b"x" * BODY + b">")


@in_loop
async def test_who_asks_before_sending_a_body_is_asked_to_go_on() -> None:
    async with opened() as site:
        reader, writer = await site.enter(posting("/body", LAST, EXPECT, "Content-Length: 2"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"hi")
        assert (await reader.read()).endswith(b"<hi>")
        writer.close()


@in_loop
async def test_the_answer_to_head_has_no_body() -> None:
    async with opened() as site:
        heads = asking("/x", method="HEAD") + asking("/x", LAST, method="HEAD")
        answer = await talk(site, heads)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.lower().count(b"content-length: 5\r\n") == 2
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"GET /" + b"\x01" * 2000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"hello there\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (asking("/", "X: " + "b" * 100_000), 431),
        (asking("/", "Content-Length: 1, 2"), 400),
        (asking("/", *["X: b"] * 100), 431),
        (asking("/" + "x" * 9000), 431),
        (posting("/", "Transfer-Encoding: gzip"), 400),
        (asking("/", "Content-Length: 4", "Transfer-Encoding: chunked"), 400),
        (asking("/", "Host: b"), 400),
        (asking("http://["), 400),
    ],
)
@in_loop
async def test_bytes_that_are_not_http_are_answered_and_logged_in_a_short_line(
    said: bytes, code: int
) -> None:
    with capture_logs() as log:
        async with opened() as site:
            answers = [parsed(await talk(site, said, end=True)) for _ in range(3)]
            assert site.requests == []
    assert [[found for found, _ in answer] for answer in answers] == [[code]] * 3
    line, more = log
    assert (line["log_level"], line["event"]) == ("warning", "malformed HTTP request")
    assert (more["event"], more["more"]) == ("malformed HTTP request", 2)
    assert len(line["why"]) < 200
    assert line["why"].isprintable()


@pytest.mark.parametrize("said", [b"", b"GET /x HT", ASK[:-2]])
@in_loop
async def test_who_goes_away_before_asking_is_not_logged(said: bytes) -> None:
    with capture_logs() as log:
        async with opened() as site:
            assert await talk(site, said, end=True) == b""
    assert log == []


@in_loop
async def test_who_goes_away_amid_a_body_is_answered_as_far_as_that_goes() -> None:
    with capture_logs() as log:
        async with opened() as site:
            head = posting("/body", "Content-Length: 10")
            ((status, text),) = parsed(await talk(site, head, b"12345", end=True))
    assert (status, text.startswith(b"the body cannot be read: ")) == (400, True)
    assert log == []


@in_loop
async def test_an_unexpected_error_is_logged_in_full_and_answered_in_short() -> None:
    with capture_logs() as log:
        async with opened() as site:
            answer = await talk(site, asking("/broken") + asking("/x", LAST))
    assert [code for code, _ in parsed(answer)] == [500, 200]
    assert b"unexpected" not in answer
    (line,) = log
    assert (line["log_level"], line["exc_info"]) == ("error", True)


@in_loop
async def test_a_stream_is_heard_piece_by_piece_until_its_end_or_its_reader_leaves() -> None:
    async with opened() as site:
        reader, writer = await site.enter(asking("/watch"))
        assert b"text/lines" in await reader.readuntil(b"\r\n\r\n")
        assert site.watchers == 1
        for piece in (b"one", b"two"):
            site.pieces.put_nowait(piece)
            assert await reader.readuntil(piece + b"\r\n")
        site.pieces.put_nowait(None)
        assert await reader.read() == b"0\r\n\r\n"
        writer.close()
        site.left.clear()
        _, writer = await site.watch()
        writer.close()
        await site.left.wait()
        assert site.watchers == 0
