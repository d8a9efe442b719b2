"""How many bytes a listener keeps for its peers, whatever they send and do not take."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.server import connection as connection_module
from agent.server import listening
from agent.server.connection import (
    AHEAD_BYTES,
    MAX_HEAD_BYTES,
    PIECE_BYTES,
    READ_BYTES,
    HttpConnection,
)
from agent.server.handlers import MAX_BODY_BYTES
from agent.server.limits import Limit
from tests.agent.server.served import (
    ASK,
    AT_ONCE,
    BODY,
    EXPECT,
    LARGE,
    LARGE_ASK,
    LAST,
    ROOT,
    STUCK,
    USER,
    answered,
    asking,
    leave,
    limits,
    opened,
    posting,
    status,
)
from tests.agent.server.support import in_loop, running

if TYPE_CHECKING:
    from agent.server.limits import Caller, Limits
    from tests.agent.server.served import Ends, Site
    from tests.agent.server.support import World

BIG_ASK = ASK[:-2] + b"X: %s\r\n" % (b"a" * 4000) * 2 + b"\r\n"
HEAD = posting("/body", "Content-Length: 5")
CHUNKED = posting("/stuck", "Transfer-Encoding: chunked")
LONGEST = posting("/v1/pods", EXPECT, f"Content-Length: {MAX_BODY_BYTES}")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the rest of a body that does not come."""
    monkeypatch.setattr(connection_module, "LINGER_SECONDS", 0.01)


def take(*all_ends: Ends) -> None:
    for _, writer in all_ends:
        writer.transport.resume_reading()  # type: ignore[attr-defined]


async def deaf(site: Site, caller: Caller) -> Ends:
    """Ask for what is large, and take the beginning."""
    site.caller = caller
    site.asked.clear()
    ends = await site.enter(LARGE_ASK)
    ends[1].transport.pause_reading()  # type: ignore[attr-defined]
    await site.asked.wait()
    return ends


@in_loop
async def test_a_body_is_counted_as_it_is_announced_or_comes_until_it_is_answered() -> None:
    size = BODY // 4
    chunk = b"%x\r\n" % size + bytes(size) + b"\r\n"
    announced = posting("/body", EXPECT, f"Content-Length: {size}")
    async with opened(limits(bodies=Limit(everyone=2 * size, caller=2 * size))) as site:
        first = await site.enter(announced)
        assert await status(first) == 100
        second = await site.enter(posting("/body", "Transfer-Encoding: chunked") + chunk)
        while sum(each.body_size for each in site.connections) != 2 * size:  # noqa: ASYNC110
            await asyncio.sleep(0)
        second[1].write(b"5\r\nhello\r\n")
        assert await status(second) == 503
        leave(second)
        first[1].write(bytes(size))
        assert await status(first) == 200
        third = await site.enter(posting("/body", EXPECT, f"Content-Length: {2 * size}"))
        assert await status(third) == 100
        leave(first, third)
        await site.gone()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(posting("/stuck", f"Content-Length: {LARGE}") + bytes(LARGE), id="body"),
        pytest.param(STUCK + BIG_ASK * 2000, id="requests"),
        pytest.param(CHUNKED + b"0\r\n\r\n" + BIG_ASK * 2000, id="behind chunks"),
    ],
)
@in_loop
async def test_little_is_received_of_what_is_not_read_yet(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    received = 0
    update = HttpConnection.buffer_updated

    def counting(connection: HttpConnection, size: int) -> None:
        nonlocal received
        received += size
        update(connection, size)

    monkeypatch.setattr(HttpConnection, "buffer_updated", counting)
    async with opened() as site:
        ends = await site.begin(said)
        before = -1
        while received > before:  # the kernel's own buffers are filled in the meantime
            before = received
            for _ in range(100):
                await asyncio.sleep(0)
        assert received <= 2 * (AHEAD_BYTES + READ_BYTES)
        leave(ends)


@in_loop
async def test_a_peer_that_is_answered_gets_no_more_ahead_of_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received, ahead = 0, list[int]()
    update = HttpConnection.buffer_updated

    def counting(connection: HttpConnection, size: int) -> None:
        nonlocal received
        received += size
        update(connection, size)

    monkeypatch.setattr(HttpConnection, "buffer_updated", counting)
    async with opened() as site:
        site.handled = lambda _: ahead.append(received - len(BIG_ASK) * len(ahead))
        ends = await site.enter(BIG_ASK * 200)
        for _ in range(200):
            await ends[0].readuntil(b"hello")
        assert max(ahead) <= AHEAD_BYTES + 2 * READ_BYTES
        leave(ends)


@in_loop
async def test_a_head_that_does_not_end_is_not_kept() -> None:
    head = ASK[:-2] + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 4000) for n in range(60))
    assert len(head) > 4 * MAX_HEAD_BYTES
    with capture_logs() as said:
        async with opened() as site:
            reader, writer = await site.enter(head)
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                assert reader.at_eof() or not site.connections
            writer.close()
    assert [line["why"] for line in said] == ["its head is too long"]


@in_loop
async def test_answers_that_are_not_taken_make_room_and_those_that_are_read_do_not() -> None:
    async with opened(limits(answers=Limit(everyone=2 * LARGE, caller=2 * LARGE))) as site:
        slow, idle = await deaf(site, USER), await deaf(site, USER)
        for each in site.connections:  # the transport has no second copy
            assert each.transport is not None
            assert 0 < each.transport.get_write_buffer_size() <= PIECE_BYTES
        take(slow)
        assert await status(slow) == 200
        await slow[0].readexactly(LARGE // 2)
        with capture_logs() as said:
            last = await deaf(site, USER)
        warned = [
            (line["event"], line["caller"]) for line in said if line["log_level"] == "warning"
        ]
        assert warned == [("slow reader disconnected", "user 1000")]
        assert len(await slow[0].readexactly(LARGE // 2)) == LARGE // 2
        take(idle)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await idle[0].readexactly(LARGE)
        more = await deaf(site, USER)
        assert await answered(slow)
        take(more)
        assert await status(more) == 200
        assert len(await more[0].readexactly(LARGE)) == LARGE
        leave(slow, idle, last, more)


@in_loop
async def test_who_leaves_after_the_answer_leaves_its_place_at_once() -> None:
    async with opened() as site:
        ends = await site.begin(HEAD)
        ends[1].write(b"12345")  # apart from the head, as http.client sends it
        assert await status(ends) == 200
        ends[1].write_eof()
        assert await ends[0].read() == b"<12345>"
        await site.gone()
        leave(ends)


@pytest.mark.parametrize(("said", "size"), [(STUCK, 5), (LARGE_ASK, LARGE)])
@in_loop
async def test_who_sends_no_more_is_answered_and_then_over(said: bytes, size: int) -> None:
    async with opened() as site:
        ends = await site.begin(said)
        ends[1].write_eof()
        (connection,) = site.connections
        await connection.ended.wait()
        site.free.set()
        assert await status(ends) == 200
        assert len(await ends[0].read()) == size
        await site.gone()
        leave(ends)


@in_loop
async def test_a_body_that_comes_after_its_head_begins_no_next_head() -> None:
    async with opened(limits(head=AT_ONCE)) as site:
        ends = await site.begin(HEAD)
        ends[1].write(b"12345")
        assert await status(ends) == 200
        assert await ends[0].readexactly(7) == b"<12345>"
        silent = await site.enter()  # which has the time for a head, and no more
        assert await silent[0].read() == b""
        assert await answered(ends, asking("/", LAST))
        leave(ends, silent)


@in_loop
async def test_a_body_behind_an_upgrade_that_is_declined_is_not_a_head() -> None:
    async with opened() as site:
        upgrade = asking("/", "Upgrade: websocket", "Connection: Upgrade")
        ends = await site.enter(upgrade + posting("/body", f"Content-Length: {BODY}"))
        assert await answered(ends, bytes(BODY))
        assert await status(ends) == 200
        assert len(await ends[0].readexactly(BODY + 2)) == BODY + 2
        leave(ends)


async def said_by(world: World, request: bytes) -> tuple[bytes, dict[str, dict[str, str]]]:
    """Return head and document of what the agent answers on its socket."""
    reader, writer = await asyncio.open_unix_connection(str(world.socket))
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split()[0])
    document: dict[str, dict[str, str]] = json.loads(await reader.readexactly(size))
    writer.close()
    return head, document


#: What is said on the socket, and the error that is answered.
ERRORS = (
    (b"hello\r\n\r\n", 400, "InvalidRequest", "malformed HTTP request: "),
    (asking("/" + "x" * 9000), 431, "HeadTooLarge", ""),
    (posting("/v1/pods", EXPECT, f"Content-Length: {MAX_BODY_BYTES + 1}"), 413, "TooLarge", ""),
    (posting("/v1/nothing", "Content-Length: 0"), 404, "NotFound", "no resource /v1/nothing here"),
    (asking("/metrics"), 404, "NotFound", "the metrics listener has it (agent.metrics)"),
    (posting("/", "Content-Length: 4", "Transfer-Encoding: chunked"), 400, "InvalidRequest", ""),
    (posting("/v1/pods", "Content-Length: 10") + b"a: b: c: d", 422, "InvalidManifest", "curl -d"),
)


@in_loop
async def test_every_error_of_the_socket_is_a_document(world: World) -> None:
    async with running(world):
        for said, code, name, message in ERRORS:
            head, document = await said_by(world, said)
            assert (head.split()[1], document["error"]["code"]) == (str(code).encode(), name)
            assert b"application/json" in head.lower()
            assert message in document["error"]["message"] != ""
            assert "^" not in document["error"]["message"]


@pytest.mark.parametrize(
    ("small", "said"),
    [(limits(1), b""), (limits(bodies=Limit(1, 1)), LONGEST)],
    ids=["places", "bytes"],
)
@pytest.mark.usefixtures("impatient")
@in_loop
async def test_where_there_is_no_room_for_a_user_a_document_says_when_to_ask_again(
    world: World, monkeypatch: pytest.MonkeyPatch, small: Limits, said: bytes
) -> None:
    caller = USER
    monkeypatch.setattr(listening, "ADMISSION_LIMITS", small)
    monkeypatch.setattr(listening, "user_caller", lambda _: caller)
    async with running(world) as agent:
        patient = await asyncio.open_unix_connection(str(world.socket))
        patient[1].write(LONGEST)
        assert await status(patient) == 100
        head, document = await said_by(world, said)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 1\r\n" in head
        assert document["error"]["code"] == "Busy"
        caller = ROOT
        assert (await asyncio.to_thread(agent.client.status)).ready
        leave(patient)
