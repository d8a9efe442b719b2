"""Calls over a real Unix socket: answers, statuses, deadlines, streams and limits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.device_plugins import V1BETA1
from agent.rpc.server import server
from tests.agent.server.support import in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.rpc.messages import Message

SERVICE = "test.Service"
REQUEST, RESPONSE = V1BETA1["PreStartContainerRequest"], V1BETA1["ListAndWatchResponse"]


async def answer(request: Message) -> Message:
    if "unknown" in request.devices_ids:
        raise CallError("NOT_FOUND", "no such device")
    return RESPONSE(devices=[{"ID": name} for name in request.devices_ids])


async def never(_request: Message) -> Message:
    await asyncio.Event().wait()
    return RESPONSE()


async def listing(request: Message) -> AsyncIterator[Message]:
    """Send a message for each device, then hold the stream open, or end it with an error."""
    for name in request.devices_ids:
        yield await answer(REQUEST(devices_ids=[name]))
    await asyncio.Event().wait()


@asynccontextmanager
async def served(path: Path, concurrent: int = 8) -> AsyncIterator[Client]:
    """Serve `Answer`, `Never` and the stream `Watch` on a socket below `path`; yield a client."""
    methods = {"Answer": (REQUEST, answer), "Never": (REQUEST, never)}
    streams = {"Watch": (REQUEST, listing)}
    service = server(path / "s.sock", SERVICE, methods, streams=streams, concurrent=concurrent)
    await service.start()
    client = Client(path / "s.sock", SERVICE)
    try:
        yield client
    finally:
        await client.close()
        await service.stop(None)


async def asked(client: Client, method: str, *ids: str, seconds: float = 20.0) -> list[str]:
    """Return the ids of a method's response."""
    found = await client.call(method, REQUEST(devices_ids=ids), RESPONSE, seconds)
    return [device.ID for device in found.devices]


@in_loop
async def test_a_call_is_answered_or_says_why_not_or_ends_at_its_deadline(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        assert await asked(client, "Answer", "a", "b") == ["a", "b"]
        with pytest.raises(CallError, match="NOT_FOUND: no such device"):
            await asked(client, "Answer", "unknown")
        with pytest.raises(CallError, match="DEADLINE_EXCEEDED"):
            await asked(client, "Never", seconds=0.1)


@in_loop
async def test_a_new_client_dials_at_once_after_another_failed(tmp_path: Path) -> None:
    early = Client(tmp_path / "s.sock", SERVICE)
    with pytest.raises(CallError, match="UNAVAILABLE"):
        await asked(early, "Answer")
    async with served(tmp_path) as client:
        assert await asked(client, "Answer", "a") == ["a"]
    await early.close()


@in_loop
async def test_bytes_that_are_no_message_are_an_error_of_call_and_stream(tmp_path: Path) -> None:
    async def garbage(_request: Message) -> bytes:
        return b"\xff\xff\xff"

    async def garbage_stream(_request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield b"\xff\xff\xff"

    service = server(tmp_path / "s.sock", SERVICE, {"Answer": (REQUEST, garbage)}, concurrent=1)
    streams = {"Watch": grpc.unary_stream_rpc_method_handler(garbage_stream)}
    handlers = grpc.method_handlers_generic_handler(f"{SERVICE}s", streams)
    service.add_generic_rpc_handlers((handlers,))
    await service.start()
    one, many = (Client(tmp_path / "s.sock", name) for name in (SERVICE, f"{SERVICE}s"))
    for answered in (asked(one, "Answer"), anext(many.stream("Watch", REQUEST(), RESPONSE))):
        with pytest.raises(CallError, match="INTERNAL: the response cannot be read"):
            await answered
    await asyncio.gather(one.close(), many.close())
    await service.stop(None)


@in_loop
async def test_more_calls_at_a_time_than_allowed_are_rejected(tmp_path: Path) -> None:
    async with served(tmp_path, concurrent=1) as client:
        first = asyncio.create_task(asked(client, "Never"))
        codes: list[str] = []
        while not codes:  # until the first has arrived, the others are answered
            try:
                await asked(client, "Answer")
            except CallError as error:
                codes.append(error.code)
        assert codes == ["RESOURCE_EXHAUSTED"]
        first.cancel()


@in_loop
async def test_a_served_stream_is_open_until_the_client_ends_it(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        stream = client.stream("Watch", REQUEST(devices_ids=["a", "b"]), RESPONSE)
        names = [(await anext(stream)).devices[0].ID for _ in range(2)]
        assert names == ["a", "b"]
        assert await asked(client, "Answer", "c") == ["c"]
        await stream.aclose()


@in_loop
async def test_a_served_stream_that_fails_says_why(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        stream = client.stream("Watch", REQUEST(devices_ids=["a", "unknown"]), RESPONSE)
        await anext(stream)
        with pytest.raises(CallError, match="NOT_FOUND: no such device"):
            await anext(stream)


@in_loop
async def test_more_streams_at_a_time_than_allowed_wait_until_one_ends(tmp_path: Path) -> None:
    async with served(tmp_path, concurrent=1) as client:
        first = client.stream("Watch", REQUEST(devices_ids=["a"]), RESPONSE)
        await anext(first)
        with pytest.raises(CallError, match="RESOURCE_EXHAUSTED"):
            await anext(client.stream("Watch", REQUEST(devices_ids=["a"]), RESPONSE))
        await asked(client, "Answer")
        await first.aclose()
        while True:  # until the server has noticed
            try:
                await anext(client.stream("Watch", REQUEST(devices_ids=["a"]), RESPONSE))
            except CallError:
                continue
            return


@pytest.mark.parametrize("kind", ["call", "stream"])
@in_loop
async def test_a_call_whose_channel_closes_cancels_no_caller(tmp_path: Path, kind: str) -> None:
    """A plugin that goes away or registers again during a call has its channel closed."""
    arrived = asyncio.Event()

    async def ask(request: Message) -> Message:
        arrived.set()
        return await never(request)

    async def stream(request: Message) -> AsyncIterator[Message]:
        yield await ask(request)

    methods, streams = {"Call": (REQUEST, ask)}, {"Stream": (REQUEST, stream)}
    service = server(tmp_path / "s.sock", SERVICE, methods, concurrent=8, streams=streams)
    await service.start()
    client = Client(tmp_path / "s.sock", SERVICE)

    async def call() -> None:
        if kind == "call":
            await client.call("Call", REQUEST(), RESPONSE, 60.0)
        else:
            await anext(client.stream("Stream", REQUEST(), RESPONSE))

    calling = asyncio.create_task(call())
    await arrived.wait()
    await client.close()
    for ended in (calling, asyncio.create_task(call())):  # amid the call, and before it
        with pytest.raises(CallError, match="UNAVAILABLE: the connection was closed"):
            await ended
    await service.stop(None)
