from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.server import connections
from agent.server.connections import Connections
from agent.server.http import Request, Response
from agent.server.limits import Caller, Limit, Limits
from agent.server.sockets import Address, open_tcp, tls_context
from tests.agent.server.support import in_loop

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

#: One caller for all who come over TCP; the tests of limits need more than one.
USER = Caller("a user")
ROOT = Caller("user 0", privileged=True)
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
FOREVER = 3600.0
#: More than any of these tests sends.
BYTES = Limit(1 << 30, 1 << 30)
#: Shorter than a client would wait, so that a test need not.
AT_ONCE = 0.05


def limits(connections: int, *, idle: float = FOREVER, head: float = FOREVER) -> Limits:
    bound = Limit(everyone=connections, caller=connections)
    return Limits(bound, bound, BYTES, BYTES, head, idle)


class OpenListener:
    """A listener on 127.0.0.1 that answers with `answer` once `free` is set."""

    def __init__(self) -> None:
        self.answer = b"hello"
        self.free = asyncio.Event()
        self.free.set()
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.port = 0
        self.caller = USER
        self.handled: Callable[[Request], None] = lambda _: None

    async def handle(self, request: Request) -> Response:
        self.handled(request)
        self.asked.set()
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Response(self.answer)

    async def enter(self) -> Ends:
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def opened(
    limits: Limits,
    tls: ssl.SSLContext | None = None,
    unix: Path | None = None,
    caller: Callable[[socket.socket], Caller] | None = None,
) -> AsyncIterator[OpenListener]:
    listener = OpenListener()
    caller_of = caller or (lambda _: listener.caller)
    if unix is None:
        listening = open_tcp(Address("127.0.0.1", 0))
        listener.port = listening.getsockname()[1]
    else:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(unix))
        listening.listen()
    listeners = Connections(listener.handle, listening, limits, caller_of, tls)
    listeners.start()
    try:
        yield listener
    finally:
        listener.free.set()
        await listeners.stop(AT_ONCE)


async def answered(ends: Ends) -> bool:
    """Ask, and return whether the answer is there."""
    reader, writer = ends
    writer.write(REQUEST)
    return (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")


async def left(ends: Ends) -> None:
    ends[1].close()
    await ends[1].wait_closed()


async def ended(ends: Ends) -> bytes:
    """Return what comes until the other side ends the connection."""
    try:
        return await ends[0].read()
    except ConnectionResetError:
        return b""


@in_loop
async def test_one_more_than_may_connect_takes_the_place_of_the_longest_idle() -> None:
    async with opened(limits(2)) as listener:
        first, second = await listener.enter(), await listener.enter()
        assert await answered(first)
        assert await answered(second)
        assert await answered(first)  # so the second is idle for longer
        third = await listener.enter()
        assert await answered(third)
        assert await ended(second) == b""
        assert await answered(first)
        for ends in (first, second, third):
            await left(ends)


@in_loop
async def test_a_caller_whose_connections_all_wait_for_answers_gets_no_more() -> None:
    async with opened(limits(2)) as listener:
        listener.free.clear()
        patient = [await listener.enter() for _ in range(2)]
        for ends in patient:
            listener.asked.clear()
            ends[1].write(REQUEST)
            await listener.asked.wait()
        with capture_logs() as said:
            too_many = await listener.enter()
            answer = await ended(too_many)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"a user: 2 wait for responses already" in answer
        found = [(line["event"], line["connections"]) for line in said]
        assert found == [("too many connections", 2)]
        listener.free.set()
        for ends in patient:
            assert (await ends[0].readline()).startswith(b"HTTP/1.1 200")
        for ends in (*patient, too_many):
            await left(ends)


@in_loop
async def test_as_many_as_may_connect_are_let_in_of_those_that_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with opened(limits(2), unix=path):
        # No other task runs before all of them are connected.
        clients = [socket.socket(socket.AF_UNIX) for _ in range(6)]
        for client in clients:
            client.connect(str(path))
            client.send(REQUEST)
            client.settimeout(0)
        receive = asyncio.get_running_loop().sock_recv
        statuses = [(await receive(client, 1000))[9:12] for client in clients]
        assert statuses == [b"503"] * 4 + [b"200"] * 2
        for client in clients:
            client.close()


@in_loop
async def test_requests_in_a_row_of_many_leave_turns_to_all_others() -> None:
    async with opened(limits(12)) as listener:
        loop = asyncio.get_running_loop()
        begun = [0]

        def next_turn() -> None:
            begun.append(0)
            loop.call_soon(next_turn)

        listener.handled = lambda _: begun.__setitem__(-1, begun[-1] + 1)
        pipelining = [await listener.enter() for _ in range(12)]
        loop.call_soon(next_turn)
        for _, writer in pipelining:
            writer.write(REQUEST * 20)
        for reader, _ in pipelining:
            for _ in range(20):
                await reader.readuntil(b"hello")
        assert sum(begun) == 240
        assert max(begun) == 1
        for ends in pipelining:
            await left(ends)


@in_loop
async def test_a_request_of_root_waits_for_one_of_those_of_users_that_came_earlier() -> None:
    async with opened(limits(12)) as listener:
        asked: list[int] = []

        def note(request: Request) -> None:
            assert request.connection is not None
            asked.append(request.connection.getpeername()[1])

        listener.handled = note
        users = [await listener.enter() for _ in range(12)]
        listener.caller = ROOT
        root = await listener.enter()
        assert await answered(root)
        asked.clear()
        for _, writer in (*users, root):
            writer.write(REQUEST)
        for reader, _ in (*users, root):
            await reader.readuntil(b"hello")
        assert len(asked) == 13
        assert asked.index(root[1].get_extra_info("sockname")[1]) <= 1
        for ends in (*users, root):
            await left(ends)


@in_loop
async def test_who_sends_no_whole_request_is_closed_and_makes_room() -> None:
    async with opened(limits(1, head=AT_ONCE)) as listener:
        slow = await listener.enter()
        slow[1].write(REQUEST[:-2])
        assert await ended(slow) == b""
        next_one = await listener.enter()
        assert await answered(next_one)
        await left(slow)
        await left(next_one)


@in_loop
async def test_who_begins_a_head_after_an_answer_has_only_the_time_of_a_head() -> None:
    async with opened(limits(1, head=AT_ONCE)) as listener:
        slow = await listener.enter()
        assert await answered(slow)
        slow[1].write(REQUEST[:-2])
        assert await ended(slow) == b""
        await left(slow)


@in_loop
async def test_who_does_not_take_the_answer_is_closed() -> None:
    async with opened(limits(1, idle=AT_ONCE)) as listener:
        listener.answer = bytes(64 << 20)
        with socket.create_connection(("127.0.0.1", listener.port)) as deaf:
            deaf.sendall(REQUEST)
            await listener.asked.wait()
            listener.answer = b"hello"
            next_one = await listener.enter()
            assert await answered(next_one)
            await left(next_one)


@in_loop
async def test_who_waits_for_an_answer_is_not_idle() -> None:
    async with opened(limits(2, head=AT_ONCE)) as listener:
        listener.free.clear()
        patient = await listener.enter()
        patient[1].write(REQUEST)
        await listener.asked.wait()
        idle = await listener.enter()
        assert await ended(idle) == b""  # which came later and was closed in its time
        listener.free.set()
        assert (await patient[0].readline()).startswith(b"HTTP/1.1 200")
        await left(patient)
        await left(idle)


@in_loop
async def test_what_a_client_asked_for_is_cancelled_once_it_has_closed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with opened(limits(1), unix=path) as listener:
        listener.free.clear()
        _, writer = await asyncio.open_unix_connection(path)
        writer.write(REQUEST)
        await listener.asked.wait()
        writer.close()
        await listener.cancelled.wait()


@in_loop
async def test_a_tls_handshake_that_never_comes_makes_room(certificate: Path) -> None:
    tls = tls_context(Address("127.0.0.1", 0, certificate, certificate))
    async with opened(limits(1, head=AT_ONCE), tls) as listener:
        for _ in range(3):
            silent = await listener.enter()
            assert await ended(silent) == b""
            await left(silent)
        garbage = await listener.enter()
        garbage[1].write(b"no handshake at all")
        await ended(garbage)
        await left(garbage)


@in_loop
async def test_a_tls_handshake_that_never_comes_gives_way(certificate: Path) -> None:
    tls = tls_context(Address("127.0.0.1", 0, certificate, certificate))
    async with opened(limits(1), tls) as listener:
        silent, other = await listener.enter(), await listener.enter()
        assert await ended(silent) == b""
        for ends in (silent, other):
            await left(ends)


@in_loop
async def test_a_host_without_descriptors_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.0)
    loop = asyncio.get_running_loop()
    accept = loop.sock_accept
    rejections = [errno.EMFILE, errno.ECONNABORTED]

    async def rejecting(listening: socket.socket) -> tuple[socket.socket, object]:
        if rejections:
            number = rejections.pop(0)
            raise OSError(number, os.strerror(number))
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", rejecting)
    with capture_logs() as said:
        async with opened(limits(1)) as listener:
            visitor = await listener.enter()
            assert await answered(visitor)
            await left(visitor)
    assert not rejections
    assert [line["reason"] for line in said] == ["Too many open files"]


@in_loop
async def test_after_the_end_no_connection_is_taken() -> None:
    async with opened(limits(1)) as listener:
        pass
    with pytest.raises(ConnectionRefusedError):
        await listener.enter()


@in_loop
async def test_another_socket_takes_over_and_what_is_connected_stays() -> None:
    listener, sockets = OpenListener(), [open_tcp(Address("127.0.0.1", 0)) for _ in range(2)]
    ports = [each.getsockname()[1] for each in sockets]
    listeners = Connections(listener.handle, sockets[0], limits(9), lambda _: listener.caller)
    listeners.start()
    listener.port = ports[0]
    before = await listener.enter()
    assert await answered(before)
    await listeners.listen(sockets[1])
    assert await answered(before)
    listener.port = ports[1]
    after = await listener.enter()
    assert await answered(after)
    for ends in (before, after):
        await left(ends)
    await listeners.stop(AT_ONCE)


@in_loop
async def test_accepting_that_ends_or_takes_no_connection_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener, listening = OpenListener(), open_tcp(Address("127.0.0.1", 0))
    listener.port = listening.getsockname()[1]
    listeners = Connections(listener.handle, listening, limits(9), lambda _: listener.caller)
    assert listeners.standing() == "accepting has ended"
    accept = asyncio.get_running_loop().sock_accept
    never = asyncio.Event()
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", lambda _: never.wait())
    listeners.start()
    assert listeners.standing() == ""
    waits = await listener.enter()
    assert listeners.standing() == "connections wait and none is accepted"
    await left(waits)
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", accept)
    await listeners.listen(open_tcp(Address("127.0.0.1", 0)))
    assert listeners.standing() == ""
    await listeners.stop(AT_ONCE)
