"""Users who keep what they can get, in small numbers: who is let in, and who gives way."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import weakref
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import pytest

from agent.pods.manifest import load_pod
from agent.server import listening
from agent.server.connection import HttpConnection
from agent.server.handlers import Api
from agent.server.http import Request, RequestTarget, Response
from agent.server.limits import Limit
from agent.server.peers import Peer, callers_of
from tests.agent.server.served import (
    ASK,
    AT_ONCE,
    FOREVER,
    OTHER_USER,
    ROOT,
    STUCK,
    USER,
    answered,
    ended,
    leave,
    limits,
    opened,
)
from tests.agent.server.support import OTHER_UID, UID, acting_as, in_loop, manifest, running

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

    from tests.agent.server.served import Ends
    from tests.agent.server.support import World

#: The group of the socket.
MEMBERS = 500


@in_loop
async def test_one_watcher_more_ends_the_one_of_the_same_user_that_heard_nothing_for_longest() -> (
    None
):
    async with opened(limits(1, Limit(everyone=8, caller=2))) as site:
        site.caller = OTHER_USER
        other = await site.watch()
        site.caller = USER
        first, second, third = [await site.watch() for _ in range(3)]
        await ended(first)
        await site.left.wait()
        assert site.watchers == 3
        asking = await site.enter()
        assert await answered(asking), "watchers take no place of those who ask"
        assert not any(ends[0].at_eof() for ends in (other, second, third))
        leave(other, first, second, third, asking)


@in_loop
async def test_a_watcher_that_takes_nothing_is_closed() -> None:
    async with opened(limits(idle=AT_ONCE)) as site:
        deaf = await site.watch()
        deaf[1].transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(2):
            site.pieces.put_nowait(bytes(8 << 20))
        await site.left.wait()
        assert site.watchers == 0
        leave(deaf)


@in_loop
async def test_a_watcher_that_waits_for_something_to_happen_is_not_idle() -> None:
    async with opened(limits(idle=AT_ONCE)) as site:
        watching, idle = await site.watch(), await site.enter(ASK)
        assert await ended(idle)  # which came later and was closed in its time
        site.pieces.put_nowait(b".")
        assert await watching[0].readuntil(b".\r\n")
        leave(watching, idle)


@in_loop
async def test_nothing_is_kept_of_a_connection_that_is_over() -> None:
    async with opened(limits(2)) as site:
        first, second = [await site.watch() for _ in range(2)]
        gc.collect()  # those of other tests
        kept = weakref.WeakSet(
            found for found in gc.get_objects() if isinstance(found, HttpConnection)
        )
        assert len(kept) == 2
        third = await site.watch()
        await ended(first)  # one that had to give way, and one that leaves
        await site.left.wait()
        site.left.clear()
        second[1].close()
        await site.left.wait()
        asking = await site.enter()
        assert await answered(asking)
        gc.collect()
        assert not kept
        leave(first, third, asking)


@in_loop
async def test_at_the_end_answers_under_way_are_given_and_idle_connections_are_not_waited_for() -> (
    None
):
    async with opened(stop=FOREVER) as site:
        idle, busy = await site.enter(), await site.begin(STUCK)
        stopping = asyncio.create_task(site.listener.stop())
        asyncio.get_running_loop().call_later(AT_ONCE, site.free.set)
        assert b"hello" in await busy[0].read()
        await stopping
        assert await ended(idle) == b""
        leave(idle, busy)


@in_loop
async def test_an_answer_that_does_not_come_holds_up_the_end_only_for_its_time() -> None:
    async with opened() as site:
        stuck = await site.begin(STUCK)
        await site.listener.stop()
        assert await ended(stuck) == b""
        leave(stuck)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@in_loop
async def test_a_user_of_the_host_takes_no_place_of_roots_probes_at_a_tcp_listener() -> None:
    async with opened(limits(2), caller_of=callers_of) as site:
        probe = await site.enter()  # which has not asked yet: it gives way first
        with ExitStack() as flood:
            for _ in range(8):
                with acting_as(4242):
                    client = socket.create_connection(("127.0.0.1", site.port), timeout=10)
                flood.enter_context(client)
                asking = await site.enter()
                assert await answered(asking)
                leave(asking)
            assert await answered(probe)
            leave(probe)


@in_loop
async def test_members_of_the_group_do_not_lock_root_out_of_the_agent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = USER
    monkeypatch.setattr(listening, "ADMISSION_LIMITS", limits(2, bodies=Limit(8, 2)))
    monkeypatch.setattr(listening, "user_caller", lambda _: caller)
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
        leave(*kept)


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
        answers.append(uid)

    def peer_of(uid: int) -> Peer:
        return Peer(os.getpid(), uid, frozenset({MEMBERS}))

    monkeypatch.setattr("agent.server.peers.peer_of", peer_of)
    member, answers = os.geteuid() + 1, list[int]()
    async with running(world) as agent:
        await agent.controller.admit(load_pod(manifest(), "test"))
        api = Api(agent.controller, lambda _: b"{}", MEMBERS)
        await asyncio.gather(*(ask(uid) for uid in (*[member] * 8, 0)))
        api.close()
    assert answers.index(0) <= 1
