from __future__ import annotations

import asyncio
import errno
import inspect
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, ClassVar

import pytest
import structlog
from aiohttp.web_protocol import RequestHandler
from structlog.testing import capture_logs

from agent.server import connection, listener
from agent.server.listener import report_to
from agent.server.log import LimitedLog
from agent.server.sockets import Address, open_tcp, tls_context
from tests.agent.server.served import (
    ASK,
    AT_ONCE,
    LARGE_ASK,
    ROOT,
    STUCK,
    answered,
    ended,
    leave,
    limits,
    opened,
)
from tests.agent.server.support import in_loop

if TYPE_CHECKING:
    from pathlib import Path

    from agent.server.http import Request

log = structlog.get_logger(__name__)


@in_loop
async def test_one_more_than_may_connect_takes_the_place_of_the_longest_idle() -> None:
    async with opened(limits(2)) as site:
        first, second = await site.enter(), await site.enter()
        for ends in (first, second, first):  # so the second is idle for longer
            assert await answered(ends)
        third = await site.enter()
        assert await answered(third)
        assert await ended(second) == b""
        assert await answered(first)
        leave(first, second, third)


@in_loop
async def test_a_caller_whose_connections_all_wait_for_answers_gets_no_more() -> None:
    async with opened(limits(2)) as site:
        patient = [await site.begin(STUCK) for _ in range(2)]
        with capture_logs() as said:
            too_many = await site.enter()
            answer = await ended(too_many)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"user 1000: 2 wait for responses already" in answer
        found = [(line["event"], line["connections"]) for line in said]
        assert found == [("too many connections", 2)]
        site.free.set()
        for ends in patient:
            assert (await ends[0].readline()).startswith(b"HTTP/1.1 200")
        leave(*patient, too_many)


@in_loop
async def test_as_many_as_may_connect_are_let_in_of_those_that_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with opened(limits(2), unix=path):
        # No other task runs before all of them are connected.
        clients = [socket.socket(socket.AF_UNIX) for _ in range(6)]
        for client in clients:
            client.connect(str(path))
            client.send(ASK)
            client.settimeout(0)
        receive = asyncio.get_running_loop().sock_recv
        statuses = [(await receive(client, 1000))[9:12] for client in clients]
        assert statuses == [b"503"] * 4 + [b"200"] * 2
        for client in clients:
            client.close()


@in_loop
async def test_requests_in_a_row_of_many_leave_turns_to_all_others() -> None:
    async with opened(limits(12)) as site:
        loop = asyncio.get_running_loop()
        begun = [0]

        def next_turn() -> None:
            begun.append(0)
            loop.call_soon(next_turn)

        site.handled = lambda _: begun.__setitem__(-1, begun[-1] + 1)
        pipelining = [await site.enter() for _ in range(12)]
        loop.call_soon(next_turn)
        for _, writer in pipelining:
            writer.write(ASK * 20)
        for reader, _ in pipelining:
            for _ in range(20):
                await reader.readuntil(b"hello")
        assert sum(begun) == 240
        assert max(begun) == 1
        leave(*pipelining)


@in_loop
async def test_a_request_of_root_waits_for_one_of_those_of_users_that_came_earlier() -> None:
    async with opened(limits(12)) as site:
        asked: list[int] = []

        def note(request: Request) -> None:
            assert request.connection is not None
            asked.append(request.connection.getpeername()[1])

        site.handled = note
        users = [await site.enter() for _ in range(12)]
        site.caller = ROOT
        root = await site.enter()
        assert await answered(root)
        asked.clear()
        for _, writer in (*users, root):
            writer.write(ASK)
        for reader, _ in (*users, root):
            await reader.readuntil(b"hello")
        assert len(asked) == 13
        assert asked.index(root[1].get_extra_info("sockname")[1]) <= 1
        leave(*users, root)


@pytest.mark.parametrize("before", [False, True], ids=["first", "next"])
@in_loop
async def test_who_begins_a_head_has_only_the_time_of_a_head(*, before: bool) -> None:
    async with opened(limits(1, head=AT_ONCE)) as site:
        slow = await site.enter()
        assert not before or await answered(slow)
        slow[1].write(ASK[:-2])
        assert await ended(slow) == b""
        next_one = await site.enter()
        assert await answered(next_one)
        leave(slow, next_one)


@in_loop
async def test_who_does_not_take_the_answer_is_closed() -> None:
    async with opened(limits(1, idle=AT_ONCE)) as site:
        with socket.create_connection(("127.0.0.1", site.port)) as deaf:
            deaf.sendall(LARGE_ASK)
            await site.asked.wait()
            next_one = await site.enter()
            assert await answered(next_one)
            leave(next_one)


@in_loop
async def test_who_waits_for_an_answer_is_not_idle() -> None:
    async with opened(limits(2, head=AT_ONCE)) as site:
        patient = await site.begin(STUCK)
        idle = await site.enter()
        assert await ended(idle) == b""  # which came later and was closed in its time
        site.free.set()
        assert (await patient[0].readline()).startswith(b"HTTP/1.1 200")
        leave(patient, idle)


@in_loop
async def test_what_a_client_asked_for_is_cancelled_once_it_has_closed(tmp_path: Path) -> None:
    async with opened(limits(1), unix=tmp_path / "socket") as site:
        _, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        writer.write(STUCK)
        await site.asked.wait()
        writer.close()
        await site.cancelled.wait()


@in_loop
async def test_a_tls_handshake_that_never_comes_makes_room_in_time_and_for_others(
    certificate: Path,
) -> None:
    tls = tls_context(Address("127.0.0.1", 0, certificate, certificate))
    async with opened(limits(1, head=AT_ONCE), tls) as site:
        for said in (b"", b"", b"no handshake at all"):
            silent = await site.enter(said)
            await ended(silent)
            leave(silent)
    async with opened(limits(1), tls) as site:
        silent, other = await site.enter(), await site.enter()
        assert await ended(silent) == b""
        leave(silent, other)


@in_loop
async def test_a_connection_with_tls_keeps_its_place_after_the_handshake(certificate: Path) -> None:
    tls = tls_context(Address("127.0.0.1", 0, certificate, certificate))
    trusting = ssl.create_default_context(cafile=certificate)
    async with opened(limits(2), tls) as site:
        secure = await asyncio.open_connection("127.0.0.1", site.port, ssl=trusting)
        assert await answered(secure)
        assert len(site.connections) == 1
        plain = await site.enter(ASK)
        await ended(plain)
        assert await answered(secure)
        leave(secure, plain)
        await site.gone()


def test_nothing_of_aiohttp_that_is_private_is_used_or_hidden() -> None:
    hidden = {
        name
        for base in RequestHandler.__mro__
        for name in getattr(base, "__slots__", ())
        if name.startswith("_")
    }
    source = "".join(map(inspect.getsource, (connection, listener)))
    assert "_messages" in hidden
    assert hidden.isdisjoint(re.findall(r"\.(_\w+)", source))


class Crowded(socket.socket):
    """A listening socket of a process without descriptors, for a while."""

    rejections: ClassVar[list[int]] = []

    def accept(self) -> tuple[socket.socket, object]:
        if self.rejections:
            number = self.rejections.pop(0)
            raise OSError(number, os.strerror(number))
        return super().accept()


@in_loop
async def test_a_host_without_descriptors_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0)
    monkeypatch.setattr(Crowded, "rejections", [errno.EMFILE, errno.ECONNABORTED])
    with capture_logs() as said:
        asyncio.get_running_loop().set_exception_handler(report_to(LimitedLog(log)))
        async with opened(limits(1)) as site:
            listening = open_tcp(Address("127.0.0.1", 0))
            site.port = listening.getsockname()[1]
            await site.listener.listen(Crowded(fileno=listening.detach()))
            visitor = await site.enter()
            assert await answered(visitor)
            leave(visitor)
    assert not Crowded.rejections
    assert [line["reason"] for line in said] == ["Too many open files"]


@in_loop
async def test_another_socket_takes_over_and_what_is_connected_stays() -> None:
    async with opened() as site:
        before, former = await site.enter(), site.port
        assert await answered(before)
        listening = open_tcp(Address("127.0.0.1", 0))
        site.port = listening.getsockname()[1]
        await site.listener.listen(listening)
        after = await site.enter()
        assert await answered(before)
        assert await answered(after)
        leave(before, after)
    for port in (former, site.port):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


@in_loop
async def test_accepting_that_ends_or_takes_no_connection_stands_still() -> None:
    loop = asyncio.get_running_loop()
    async with opened() as site:
        assert site.listener.standing() == ""
        loop.remove_reader(site.listener._listening)
        leave(await site.enter())
        assert site.listener.standing() == "connections wait and none is accepted"
        await site.listener.listen(open_tcp(Address("127.0.0.1", 0)))
        assert site.listener.standing() == ""
    assert site.listener.standing() == "accepting has ended"
