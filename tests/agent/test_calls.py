"""Calls over a real Unix socket: answers, statuses, deadlines, streams and limits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc import aio

from agent.rpc import V1BETA1, CallError, Client, server
from tests.agent.server.support import in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.rpc import Message

SERVICE = "test.Service"
REQUEST, RESPONSE = V1BETA1["PreStartContainerRequest"], V1BETA1["ListAndWatchResponse"]


async def answer(request: Message) -> Message:
    if "unknown" in request.devices_ids:
        raise CallError("NOT_FOUND", "no such device")
    return RESPONSE(devices=[{"ID": name} for name in request.devices_ids])


async def never(_request: Message) -> Message:
    await asyncio.Event().wait()
    return RESPONSE()


@asynccontextmanager
async def served(path: Path, concurrent: int = 8) -> AsyncIterator[Client]:
    """Serve `Answer` and `Never` on a socket below `path` and yield a client."""
    methods = {"Answer": (REQUEST, answer), "Never": (REQUEST, never)}
    service = server(path / "s.sock", SERVICE, methods, concurrent=concurrent)
    await service.start()
    client = Client(path / "s.sock", SERVICE)
    try:
        yield client
    finally:
        await client.close()
        await service.stop(None)


def outcome(path: Path, method: str, *ids: str, seconds: float = 10.0) -> list[str]:
    """Return the ids of a method's response."""

    async def call() -> list[str]:
        async with served(path) as client:
            found = await client.call(method, REQUEST(devices_ids=ids), RESPONSE, seconds)
            return [device.ID for device in found.devices]

    return asyncio.run(call())


def test_a_call_returns_the_response(tmp_path: Path) -> None:
    assert outcome(tmp_path, "Answer", "a", "b") == ["a", "b"]


def test_the_status_of_a_service_is_an_error_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="NOT_FOUND: no such device"):
        outcome(tmp_path, "Answer", "unknown")


def test_a_call_ends_at_its_deadline(tmp_path: Path) -> None:
    with pytest.raises(CallError) as caught:
        outcome(tmp_path, "Never", seconds=0.1)
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_without_a_server_a_call_is_an_error(tmp_path: Path) -> None:
    async def call() -> None:
        client = Client(tmp_path / "absent.sock", SERVICE)
        try:
            await client.call("Answer", REQUEST(), RESPONSE, 10.0)
        finally:
            await client.close()

    with pytest.raises(CallError) as caught:
        asyncio.run(call())
    assert caught.value.code == "UNAVAILABLE"


def test_bytes_that_are_no_message_are_an_error_of_a_call_and_of_a_stream(tmp_path: Path) -> None:
    async def garbage(_request: Message) -> bytes:
        return b"\xff\xff\xff"

    async def garbage_stream(_request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield b"\xff\xff\xff"

    async def errors() -> list[str]:
        service = server(tmp_path / "s.sock", SERVICE, {"Answer": (REQUEST, garbage)}, concurrent=1)
        streams = {"Watch": grpc.unary_stream_rpc_method_handler(garbage_stream)}
        handlers = grpc.method_handlers_generic_handler(f"{SERVICE}s", streams)
        service.add_generic_rpc_handlers((handlers,))
        await service.start()
        one, many = (Client(tmp_path / "s.sock", name) for name in (SERVICE, f"{SERVICE}s"))
        found = []
        try:
            await one.call("Answer", REQUEST(), RESPONSE, 10.0)
        except CallError as error:
            found.append(str(error))
        try:
            async for _ in many.stream("Watch", REQUEST(), RESPONSE):
                pass
        except CallError as error:
            found.append(str(error))
        finally:
            await asyncio.gather(one.close(), many.close())
            await service.stop(None)
        return found

    found = asyncio.run(errors())
    assert len(found) == 2
    assert all("INTERNAL: the response cannot be read" in each for each in found)


def test_a_new_client_dials_at_once_after_another_failed(tmp_path: Path) -> None:
    async def call() -> list[str]:
        early = Client(tmp_path / "s.sock", SERVICE)
        try:
            with pytest.raises(CallError):
                await early.call("Answer", REQUEST(), RESPONSE, 10.0)
            async with served(tmp_path) as client:
                found = await client.call("Answer", REQUEST(devices_ids=["a"]), RESPONSE, 10.0)
                return [device.ID for device in found.devices]
        finally:
            await early.close()

    assert asyncio.run(call()) == ["a"]


def test_more_calls_at_a_time_than_allowed_are_rejected(tmp_path: Path) -> None:
    async def code() -> str:
        async with served(tmp_path, concurrent=1) as client:
            first = asyncio.create_task(client.call("Never", REQUEST(), RESPONSE, 20.0))
            while True:  # until the first has arrived, the others are answered
                try:
                    await client.call("Answer", REQUEST(), RESPONSE, 20.0)
                except CallError as error:
                    first.cancel()
                    return error.code

    assert asyncio.run(code()) == "RESOURCE_EXHAUSTED"


def test_a_stream_yields_until_it_ends_and_says_why(tmp_path: Path) -> None:
    async def watch(_request: Message, context: aio.ServicerContext) -> AsyncIterator[Message]:
        yield RESPONSE(devices=[{"ID": "a"}])
        yield RESPONSE()
        await context.abort(grpc.StatusCode.INTERNAL, "broken")

    async def seen() -> tuple[list[int], str]:
        service = aio.server()
        handler = grpc.unary_stream_rpc_method_handler(
            watch, REQUEST.FromString, lambda message: message.SerializeToString()
        )
        handlers = grpc.method_handlers_generic_handler(SERVICE, {"Watch": handler})
        service.add_generic_rpc_handlers((handlers,))
        service.add_insecure_port(f"unix:{tmp_path / 's.sock'}")
        await service.start()
        client, lengths = Client(tmp_path / "s.sock", SERVICE), []
        try:
            async for message in client.stream("Watch", REQUEST(), RESPONSE):
                lengths.append(len(message.devices))  # noqa: PERF401  # kept when the stream fails
        except CallError as error:
            return lengths, str(error)
        finally:
            await client.close()
            await service.stop(None)
        return lengths, ""

    assert asyncio.run(seen()) == ([1, 0], "INTERNAL: broken")


async def listing(request: Message) -> AsyncIterator[Message]:
    """Send a message for each device, then hold the stream open, or end it with an error."""
    for name in request.devices_ids:
        if name == "unknown":
            raise CallError("NOT_FOUND", "no such device")
        yield RESPONSE(devices=[{"ID": name}])
    await asyncio.Event().wait()


@asynccontextmanager
async def streaming(path: Path, concurrent: int = 8) -> AsyncIterator[Client]:
    streams = {"Watch": (REQUEST, listing)}
    methods = {"Answer": (REQUEST, answer)}
    service = server(path / "s.sock", SERVICE, methods, streams=streams, concurrent=concurrent)
    await service.start()
    client = Client(path / "s.sock", SERVICE)
    try:
        yield client
    finally:
        await client.close()
        await service.stop(None)


def test_a_served_stream_is_open_until_the_client_ends_it(tmp_path: Path) -> None:
    async def check() -> None:
        async with streaming(tmp_path) as client:
            stream = client.stream("Watch", REQUEST(devices_ids=["a", "b"]), RESPONSE)
            names = [(await anext(stream)).devices[0].ID for _ in range(2)]
            assert names == ["a", "b"]
            answered = await client.call("Answer", REQUEST(devices_ids=["c"]), RESPONSE, 20.0)
            assert answered.devices[0].ID == "c"
            await stream.aclose()

    asyncio.run(check())


def test_a_served_stream_that_fails_says_why(tmp_path: Path) -> None:
    async def check() -> None:
        async with streaming(tmp_path) as client:
            stream = client.stream("Watch", REQUEST(devices_ids=["a", "unknown"]), RESPONSE)
            await anext(stream)
            with pytest.raises(CallError, match="NOT_FOUND: no such device"):
                await anext(stream)

    asyncio.run(check())


def test_more_streams_at_a_time_than_allowed_are_rejected_until_one_ends(tmp_path: Path) -> None:
    async def check() -> None:
        async with streaming(tmp_path, concurrent=1) as client:
            first = client.stream("Watch", REQUEST(devices_ids=["a"]), RESPONSE)
            await anext(first)
            with pytest.raises(CallError, match="RESOURCE_EXHAUSTED"):
                await anext(client.stream("Watch", REQUEST(devices_ids=["a"]), RESPONSE))
            await client.call("Answer", REQUEST(), RESPONSE, 20.0)
            await first.aclose()
            while True:  # until the server has noticed
                try:
                    await anext(client.stream("Watch", REQUEST(devices_ids=["a"]), RESPONSE))
                except CallError:
                    continue
                return

    asyncio.run(check())


@pytest.mark.parametrize("kind", ["call", "stream"])
@in_loop
async def test_a_call_whose_channel_closes_is_unavailable_and_its_caller_not_cancelled(
    tmp_path: Path, kind: str
) -> None:
    """A plugin that goes away or registers again during a call has its channel closed."""
    asked = asyncio.Event()

    async def ask(request: Message) -> Message:
        asked.set()
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
    await asked.wait()
    await client.close()
    for ended in (calling, asyncio.create_task(call())):  # amid the call, and before it
        with pytest.raises(CallError, match="UNAVAILABLE: the connection was closed"):
            await ended
    await service.stop(None)
