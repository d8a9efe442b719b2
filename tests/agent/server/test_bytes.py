"""How many bytes a listener keeps for its peers, whatever they send and do not take."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.server import connections as connections_module
from agent.server import lifecycle as service_module
from agent.server.connections import (
    MAX_HEAD_BYTES,
    PIECE_BYTES,
    READ_BYTES,
    Connections,
    HttpConnection,
)
from agent.server.handlers import MAX_BODY_BYTES
from agent.server.http import Response
from agent.server.limits import Caller, Limit, Limits
from agent.server.sockets import Address, open_tcp
from tests.agent.server.support import in_loop, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent.server.http import Answer, Request
    from tests.agent.server.support import World

    Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

USER, OTHER_USER = Caller("user 1000"), Caller("user 2000")
ROOT = Caller("user 0", privileged=True)
FOREVER = 3600.0
#: Shorter than a client would wait, so that a test need not.
AT_ONCE = 0.05
BODY = 100_000
#: Far more than the kernel keeps between two ends.
LARGE = 16 << 20
ASK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BIG_ASK = ASK[:-2] + b"X: %s\r\n" % (b"a" * 4000) * 2 + b"\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def posting(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: a", *headers, "", "")).encode()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the rest of a body that does not come."""
    monkeypatch.setattr(connections_module, "LINGER_SECONDS", 0.01)


class Site:
    """Answers with the length of what it read, with `LARGE` bytes at /large, never at /stuck."""

    listeners: Connections

    def __init__(self, port: int) -> None:
        self.port = port
        self.caller = USER
        self.asked = asyncio.Event()
        self.free = asyncio.Event()

    async def answer(self, request: Request) -> Answer:
        self.asked.set()
        match request.target.path:
            case "/body":
                return Response(b"%d bytes" % len(await request.read()))
            case "/large":
                return Response(bytes(LARGE))
            case "/stuck":
                await self.free.wait()
        return Response(b"hello")

    @property
    def connections(self) -> list[HttpConnection]:
        return list(self.listeners._connections)

    def bodies(self) -> int:
        """Return the bytes of bodies that are counted for users."""
        return sum(each.body_size for each in self.connections if not each.caller.privileged)

    def unread(self, caller: Caller) -> int:
        """Return the bytes of answers to a caller that are not read."""
        return sum(each.unread for each in self.connections if each.caller == caller)

    async def enter(self, said: bytes = b"") -> Ends:
        ends = await asyncio.open_connection("127.0.0.1", self.port)
        ends[1].write(said)
        return ends

    async def begins(self, caller: Caller, size: int = BODY) -> Ends:
        """Announce a body of so many bytes, and return when it is asked for or rejected."""
        self.caller = caller
        head = posting("/body", "Expect: 100-continue", f"Content-Length: {size}")
        return await self.enter(head)

    async def deaf(self, caller: Caller) -> Ends:
        """Ask for what is large, and take the beginning."""
        self.caller = caller
        ends = await self.enter(ASK.replace(b"/ ", b"/large "))
        ends[1].transport.pause_reading()  # type: ignore[attr-defined]
        self.asked.clear()
        await self.asked.wait()
        return ends


@asynccontextmanager
async def opened(
    bodies: Limit | None = None,
    answers: Limit | None = None,
    head: float = FOREVER,
) -> AsyncIterator[Site]:
    listening = open_tcp(Address("127.0.0.1", 0))
    places, much = Limit(everyone=16, caller=16), Limit(1 << 30, 1 << 30)
    limits = Limits(places, places, bodies or much, answers or much, head, FOREVER, 4 * BODY)
    site = Site(listening.getsockname()[1])
    listeners = site.listeners = Connections(site.answer, listening, limits, lambda _: site.caller)
    listeners.start()
    try:
        yield site
    finally:
        site.free.set()
        await listeners.stop(0.0)


async def status(ends: Ends) -> int:
    """Return the status of the next answer, whose head is taken."""
    head = await ends[0].readuntil(b"\r\n\r\n")
    return int(head.split()[1])


async def gone(site: Site) -> None:
    """Wait until no connection has a place."""
    while site.connections:  # noqa: ASYNC110  # a socket's end sets no event
        await asyncio.sleep(0)


@pytest.mark.usefixtures("impatient")
@in_loop
async def test_unfinished_bodies_share_one_room_of_which_each_user_and_root_has_its_own() -> None:
    async with opened(bodies=Limit(everyone=3 * BODY, caller=2 * BODY)) as site:
        mine = [await site.begins(USER) for _ in range(2)]
        assert [await status(ends) for ends in mine] == [100, 100]
        one_more = await site.begins(USER)
        assert await status(one_more) == 503
        other = await site.begins(OTHER_USER)
        assert await status(other) == 100
        too_late = await site.begins(OTHER_USER)
        assert await status(too_late) == 503
        roots = [await site.begins(ROOT) for _ in range(3)]
        assert [await status(ends) for ends in roots] == [100, 100, 100]
        assert site.bodies() == 3 * BODY
        mine[0][1].write(bytes(BODY))
        assert await status(mine[0]) == 200
        again = await site.begins(USER)
        assert await status(again) == 100
        for _, writer in (*mine, one_more, other, too_late, *roots, again):
            writer.close()
        await gone(site)


@in_loop
async def test_a_body_of_unknown_length_is_counted_as_it_comes() -> None:
    async with opened(bodies=Limit(everyone=BODY, caller=BODY)) as site:
        half = b"%x\r\n" % (BODY // 2) + bytes(BODY // 2) + b"\r\n"
        first = await site.enter(posting("/body", "Transfer-Encoding: chunked") + half)
        while site.bodies() < BODY // 2:  # noqa: ASYNC110  # bytes set no event
            await asyncio.sleep(0)
        assert site.bodies() == BODY // 2
        first[1].write(half + b"5\r\nhello\r\n")
        assert await status(first) == 503
        first[1].close()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(posting("/stuck", f"Content-Length: {LARGE}") + bytes(LARGE), id="body"),
        pytest.param(ASK.replace(b"/ ", b"/stuck ") + BIG_ASK * 2000, id="requests"),
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
        _, writer = await site.enter(said)
        await site.asked.wait()
        before = -1
        while received > before:  # the kernel's own buffers are filled in the meantime
            before = received
            for _ in range(100):
                await asyncio.sleep(0)
        assert received <= 4 * READ_BYTES
        writer.transport.abort()


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
    assert [line["why"] for line in said] == ["its head does not end"]


@in_loop
async def test_answers_that_are_not_taken_make_room_for_the_next_ones() -> None:
    async with opened(answers=Limit(everyone=3 * LARGE, caller=2 * LARGE)) as site:
        with capture_logs() as said:
            first, second = await site.deaf(USER), await site.deaf(USER)
            others = [await site.deaf(OTHER_USER)]
            third = await site.deaf(USER)
            roots = [await site.deaf(ROOT) for _ in range(4)]
            assert len(site.connections) == 7
            unread = [site.unread(caller) for caller in (USER, OTHER_USER, ROOT)]
            assert unread == [2 * LARGE, LARGE, 4 * LARGE]
        warned = [line for line in said if line["log_level"] == "warning"]
        assert [(line["event"], line["caller"]) for line in warned] == [
            ("slow reader disconnected", "user 1000")
        ]
        first[1].transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await first[0].readexactly(LARGE)
        third[1].transport.resume_reading()  # type: ignore[attr-defined]
        assert await status(third) == 200
        assert len(await third[0].readexactly(LARGE)) == LARGE
        for _, writer in (first, second, third, *others, *roots):
            writer.transport.abort()
        await gone(site)


@in_loop
async def test_an_answer_that_is_being_read_is_not_cut_off_for_the_next_one() -> None:
    async with opened(answers=Limit(everyone=2 * LARGE, caller=2 * LARGE)) as site:
        slow, deaf = await site.deaf(USER), await site.deaf(USER)
        slow[1].transport.resume_reading()  # type: ignore[attr-defined]
        assert await status(slow) == 200
        await slow[0].readexactly(LARGE // 2)
        last = await site.deaf(USER)
        assert len(await slow[0].readexactly(LARGE // 2)) == LARGE // 2
        for _, writer in (slow, deaf, last):
            writer.transport.abort()


@in_loop
async def test_an_answer_that_was_read_is_no_longer_counted() -> None:
    async with opened(answers=Limit(everyone=2 * LARGE, caller=2 * LARGE)) as site:
        reader, writer = await site.deaf(USER)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await status((reader, writer)) == 200
        await reader.readexactly(LARGE)
        deaf = [await site.deaf(USER) for _ in range(2)]
        writer.write(ASK)
        assert await status((reader, writer)) == 200
        for ends in ((reader, writer), *deaf):
            ends[1].transport.abort()


@in_loop
async def test_the_transport_has_no_second_copy_of_an_answer() -> None:
    async with opened() as site:
        deaf = await site.deaf(USER)
        (connection,) = site.connections
        assert connection.transport is not None
        assert 0 < connection.transport.get_write_buffer_size() <= PIECE_BYTES
        deaf[1].transport.abort()


# --- who says that nothing more is sent -----------------------------------------------------------


@in_loop
async def test_who_leaves_after_the_answer_leaves_its_place_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "HALF_CLOSED_SECONDS", FOREVER)
    async with opened() as site:
        ends = await site.enter(posting("/body", "Content-Length: 5"))
        await site.asked.wait()
        ends[1].write(b"12345")  # apart from the head, as http.client sends it
        assert await status(ends) == 200
        ends[1].write_eof()
        assert await ends[0].read() == b"5 bytes"
        await gone(site)
        ends[1].close()


@pytest.mark.parametrize("path", [b"/stuck ", b"/large "])
@in_loop
async def test_who_sends_no_more_is_answered_and_then_over(
    monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    monkeypatch.setattr(connections_module, "HALF_CLOSED_SECONDS", FOREVER)
    async with opened() as site:
        ends = await site.enter(ASK.replace(b"/ ", path))
        await site.asked.wait()
        ends[1].write_eof()
        (connection,) = site.connections
        while not connection.half_closed:  # noqa: ASYNC110  # a socket's end sets no event
            await asyncio.sleep(0)
        site.free.set()
        assert await status(ends) == 200
        assert len(await ends[0].read()) == (LARGE if path == b"/large " else len(b"hello"))
        await gone(site)
        ends[1].close()


@in_loop
async def test_a_body_that_comes_after_its_head_begins_no_next_head() -> None:
    async with opened(head=AT_ONCE) as site:
        ends = await site.enter(posting("/body", "Content-Length: 5"))
        await site.asked.wait()
        ends[1].write(b"12345")
        assert await status(ends) == 200
        assert await ends[0].readexactly(7) == b"5 bytes"
        silent = await site.enter()  # which has the time for a head, and no more
        assert await silent[0].read() == b""
        ends[1].write(LAST)
        assert await status(ends) == 200
        for _, writer in (ends, silent):
            writer.close()


@in_loop
async def test_a_body_behind_an_upgrade_that_is_declined_is_not_a_head() -> None:
    async with opened() as site:
        upgrade = ASK[:-2] + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        ends = await site.enter(upgrade + posting("/body", f"Content-Length: {BODY}"))
        assert await status(ends) == 200
        assert await ends[0].readexactly(5) == b"hello"
        ends[1].write(bytes(BODY))
        assert await status(ends) == 200
        assert await ends[0].readexactly(12) == b"100000 bytes"
        ends[1].close()


# --- in the agent ---------------------------------------------------------------------------------


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
    (b"hello\r\n\r\n", 400, "InvalidRequest"),
    (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "HeadTooLarge"),
    (
        posting("/v1/pods", "Expect: 100-continue", f"Content-Length: {MAX_BODY_BYTES + 1}"),
        413,
        "TooLarge",
    ),
    (posting("/v1/nothing", "Content-Length: 0"), 404, "NotFound"),
    (
        posting("/v1/pods", "Content-Length: 4", "Transfer-Encoding: chunked"),
        400,
        "InvalidRequest",
    ),
)


@in_loop
async def test_every_error_of_the_socket_is_a_document(world: World) -> None:
    async with running(world):
        for said, code, name in ERRORS:
            head, document = await said_by(world, said)
            assert (head.split()[1], document["error"]["code"]) == (str(code).encode(), name)
            assert b"application/json" in head.lower()
            assert document["error"]["message"]


@pytest.mark.usefixtures("impatient")
@in_loop
async def test_bodies_of_one_user_leave_room_for_others_in_the_agent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = USER
    monkeypatch.setattr(service_module, "user_caller", lambda _: caller)
    head = posting("/v1/pods", "Expect: 100-continue", f"Content-Length: {MAX_BODY_BYTES}")
    kept: list[Ends] = []
    async with running(world) as agent:
        for _ in range(2):
            ends = await asyncio.open_unix_connection(str(world.socket))
            ends[1].write(head)
            assert await status(ends) == 100
            kept.append(ends)
        busy, document = await said_by(world, head)
        assert busy.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 1\r\n" in busy
        assert document["error"]["code"] == "Busy"
        caller = OTHER_USER
        other = await asyncio.open_unix_connection(str(world.socket))
        other[1].write(head)
        assert await status(other) == 100
        assert (await asyncio.to_thread(agent.client.status)).ready
        for _, writer in (*kept, other):
            writer.close()


@pytest.mark.usefixtures("impatient")
@in_loop
async def test_too_many_connections_are_answered_with_a_document(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = service_module.ADMISSION_LIMITS
    none = Limits(Limit(1, 1), limits.watchers, limits.bodies, limits.answers, FOREVER, FOREVER)
    monkeypatch.setattr(service_module, "ADMISSION_LIMITS", none)
    monkeypatch.setattr(service_module, "user_caller", lambda _: USER)
    async with running(world):
        patient = await asyncio.open_unix_connection(str(world.socket))
        patient[1].write(posting("/v1/pods", "Expect: 100-continue", "Content-Length: 5"))
        assert await status(patient) == 100
        head, document = await said_by(world, b"")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 1\r\n" in head
        assert document["error"]["code"] == "Busy"
        patient[1].close()
