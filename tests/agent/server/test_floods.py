"""Users who keep what they can get, in small numbers: who is let in, and who gives way."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import weakref
from contextlib import ExitStack, asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from agent.config.model import Config
from agent.pods.manifest import load_pod
from agent.server import handlers
from agent.server import lifecycle as service_module
from agent.server.connections import Connections, HttpConnection
from agent.server.handlers import Api
from agent.server.http import Request, RequestTarget, Response, Stream
from agent.server.limits import Caller, Limit, Limits
from agent.server.peers import Peer, callers_of
from agent.server.sockets import Address, open_tcp
from tests.agent.server.support import OTHER_UID, UID, acting_as, in_loop, manifest, running

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import AsyncIterator, Iterator

    from agent.server.http import Answer
    from tests.agent.server.support import World

    Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

USER, OTHER_USER = Caller("user 1000"), Caller("user 2000")
ROOT = Caller("user 0", privileged=True)
FOREVER = 3600.0
#: The group of the socket.
MEMBERS = 500
#: More than any of these tests sends.
BYTES = Limit(1 << 30, 1 << 30)
AT_ONCE = 0.05
ASK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
WATCH = b"GET /watch HTTP/1.1\r\nHost: a\r\n\r\n"


class Site:
    """Streams `piece` once for each `release` of `steps`, answers "hello", or hangs at /stuck."""

    listeners: Connections

    def __init__(self, port: int) -> None:
        self.port = port
        self.caller = USER
        self.piece = b"."
        self.watched = 0
        self.steps = asyncio.Semaphore(0)
        self.asked = asyncio.Event()
        self.free = asyncio.Event()
        self.gone = asyncio.Event()

    async def answer(self, request: Request) -> Answer:
        match request.target.path:
            case "/watch":
                return Stream(self._open, "text/lines")
            case "/stuck":
                self.asked.set()
                await self.free.wait()
        return Response(b"hello")

    @contextmanager
    def _open(self) -> Iterator[AsyncIterator[bytes]]:
        self.watched += 1
        try:
            yield self._pieces()
        finally:
            self.watched -= 1
            self.gone.set()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while True:
            await self.steps.acquire()
            yield self.piece

    async def enter(self, said: bytes = b"") -> Ends:
        ends = await asyncio.open_connection("127.0.0.1", self.port)
        ends[1].write(said)
        return ends

    async def watch(self) -> Ends:
        """Watch, and return when the head of the answer is there."""
        ends = await self.enter(WATCH)
        await ends[0].readuntil(b"\r\n\r\n")
        return ends

    async def asks(self) -> bool:
        reader, writer = await self.enter(ASK)
        answer = await reader.readuntil(b"hello")
        writer.close()
        return b" 200 " in answer


@asynccontextmanager
async def opened(
    watchers: Limit, idle: float = FOREVER, *, as_the_kernel_says: bool = False
) -> AsyncIterator[Site]:
    """Serve a site to callers as the site names them, or the users that the kernel names."""
    listening = open_tcp(Address("127.0.0.1", 0))
    port = listening.getsockname()[1]
    limits = Limits(Limit(everyone=4, caller=2), watchers, BYTES, BYTES, FOREVER, idle)
    site = Site(port)
    caller_of = callers_of(listening) if as_the_kernel_says else lambda _: site.caller
    listeners = site.listeners = Connections(site.answer, listening, limits, caller_of)
    listeners.start()
    try:
        yield site
    finally:
        site.free.set()
        await listeners.stop(AT_ONCE)


async def ended(ends: Ends) -> bool:
    """Wait until the other side ends a connection."""
    try:
        await ends[0].read()
    except ConnectionResetError:
        return True
    return ends[0].at_eof()


@in_loop
async def test_watchers_take_no_place_of_those_who_ask() -> None:
    async with opened(Limit(everyone=8, caller=8)) as site:
        watching = [await site.watch() for _ in range(8)]
        assert await site.asks()
        assert site.watched == 8
        for ends in watching:
            ends[1].close()


@in_loop
async def test_one_watcher_more_ends_the_one_of_the_same_user_that_heard_nothing_for_longest() -> (
    None
):
    async with opened(Limit(everyone=8, caller=2)) as site:
        site.caller = OTHER_USER
        other = await site.watch()
        site.caller = USER
        first = await site.watch()
        second = await site.watch()
        third = await site.watch()
        assert await ended(first)
        await site.gone.wait()
        assert site.watched == 3
        site.caller = ROOT
        roots = [await site.watch() for _ in range(8)]
        assert site.watched == 11
        assert not any(ends[0].at_eof() for ends in (other, second, third, *roots))
        for ends in (other, first, second, third, *roots):
            ends[1].close()


@in_loop
async def test_a_watcher_that_takes_nothing_is_closed() -> None:
    async with opened(Limit(everyone=2, caller=2), idle=AT_ONCE) as site:
        site.piece = bytes(8 << 20)
        _, deaf = await site.watch()
        deaf.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(2):
            site.steps.release()
        await site.gone.wait()
        assert site.watched == 0
        deaf.close()


@in_loop
async def test_a_watcher_that_waits_for_something_to_happen_is_not_idle() -> None:
    async with opened(Limit(everyone=2, caller=2), idle=AT_ONCE) as site:
        reader, writer = await site.watch()
        idle = await site.enter(ASK)
        assert await ended(idle)  # which came later and was closed in its time
        site.steps.release()
        assert await reader.readuntil(b".\r\n")
        writer.close()
        idle[1].close()


@in_loop
async def test_nothing_is_kept_of_a_connection_that_is_over() -> None:
    async with opened(Limit(everyone=2, caller=2)) as site:
        first, second = [await site.watch() for _ in range(2)]
        gc.collect()  # those of other tests
        kept = weakref.WeakSet(
            found for found in gc.get_objects() if isinstance(found, HttpConnection)
        )
        assert len(kept) == 2
        third = await site.watch()
        assert await ended(first)  # one that had to give way, and one that leaves
        await site.gone.wait()
        site.gone.clear()
        second[1].close()
        await site.gone.wait()
        assert await site.asks()
        gc.collect()
        assert not kept
        for ends in (first, third):
            ends[1].close()


@in_loop
async def test_at_the_end_answers_under_way_are_given_and_idle_connections_are_not_waited_for() -> (
    None
):
    async with opened(Limit(everyone=2, caller=2)) as site:
        idle = await site.enter()
        busy = await site.enter(ASK.replace(b"/ ", b"/stuck "))
        await site.asked.wait()
        stopping = asyncio.create_task(site.listeners.stop(FOREVER))
        asyncio.get_running_loop().call_later(AT_ONCE, site.free.set)
        assert b"hello" in await busy[0].read()
        await stopping
        assert await ended(idle)
        for ends in (idle, busy):
            ends[1].close()


@in_loop
async def test_an_answer_that_does_not_come_holds_up_the_end_only_for_its_time() -> None:
    async with opened(Limit(everyone=2, caller=2)) as site:
        stuck = await site.enter(ASK.replace(b"/ ", b"/stuck "))
        await site.asked.wait()
        await site.listeners.stop(AT_ONCE)
        assert await ended(stuck)
        stuck[1].close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@in_loop
async def test_a_user_of_the_host_takes_no_place_of_roots_probes_at_a_tcp_listener() -> None:
    async with opened(Limit(everyone=0, caller=0), as_the_kernel_says=True) as site:
        reader, writer = await site.enter()  # a probe that has not asked yet: it gives way first
        with ExitStack() as flood:
            for _ in range(8):
                with acting_as(4242):
                    client = socket.create_connection(("127.0.0.1", site.port), timeout=10)
                flood.enter_context(client)
                assert await site.asks()
            writer.write(ASK)
            assert b" 200 " in await reader.readuntil(b"hello")
            writer.close()


@in_loop
async def test_many_who_speak_no_http_are_one_line_of_the_log_and_a_count() -> None:
    with capture_logs() as said:
        async with opened(Limit(everyone=2, caller=2)) as site:
            for _ in range(20):
                reader, writer = await site.enter(b"hello\r\n\r\n")
                writer.write_eof()
                assert b" 400 " in await reader.read()
                writer.close()
    assert [(line["event"], line.get("more")) for line in said] == [
        ("malformed HTTP request", None),
        ("malformed HTTP request", 19),
    ]


@in_loop
async def test_members_of_the_group_do_not_lock_root_out_of_the_agent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Limits(Limit(3, 2), Limit(3, 2), Limit(8, 2), BYTES, FOREVER, FOREVER)
    caller = USER
    monkeypatch.setattr(service_module, "ADMISSION_LIMITS", small)
    monkeypatch.setattr(service_module, "user_caller", lambda _: caller)
    kept: list[Ends] = []
    async with running(world) as agent:
        for number in range(12):
            caller = (USER, OTHER_USER)[number % 2]
            silent = await asyncio.open_unix_connection(str(world.socket))
            watching = await asyncio.open_unix_connection(str(world.socket))
            watching[1].write(b"GET /v1/watch HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await watching[0].readline()).startswith(b"HTTP/1.1 200")
            kept += [silent, watching]
        caller = ROOT
        status = await asyncio.to_thread(agent.client.status)
        assert status.ready
        for _, writer in kept:
            writer.close()


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/pods"),
        ("GET", f"/v1/pods/{UID}"),
        ("GET", "/v1/status"),
        ("GET", "/v1/verify"),
        ("GET", "/v1/topology"),
        ("GET", "/v1/map"),
        ("GET", "/v1/history"),
        ("POST", "/v1/pods?dryRun=true"),
        ("POST", "/v1/reconcile"),
    ],
)
@in_loop
async def test_whatever_a_member_asks_for_root_waits_for_one_of_the_answers(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, target: str
) -> None:
    async def read() -> bytes:
        return manifest(uid=OTHER_UID)

    async def ask(uid: int) -> None:
        asked = Request(method, RequestTarget.parse(target), read, cast("TransportSocket", uid))
        answer = await api.answer(asked)
        assert isinstance(answer, Response)
        assert answer.status == HTTPStatus.OK
        answered.append(uid)

    def peer_of(uid: int) -> Peer:
        return Peer(os.getpid(), uid, frozenset({MEMBERS}))

    monkeypatch.setattr(handlers, "peer_of", peer_of)
    member, answered = os.geteuid() + 1, list[int]()
    async with running(world) as agent:
        await agent.controller.admit(load_pod(manifest(), "test"))
        api = Api(agent.controller, lambda _: b"{}", Config(), MEMBERS)
        await asyncio.gather(*(ask(uid) for uid in (*[member] * 8, 0)))
        api.close()
    assert answered.index(0) <= 1
