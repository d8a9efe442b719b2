"""A gRPC server on a Unix socket that rejects the requests beyond a number at a time.

Handlers get messages and return messages; a `CallError` that they raise is the status of the
answer. A stream has a handler that yields messages, and a number of its own.
"""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc
from grpc import aio

from agent.rpc.calls import LIMITS, CallError, serialized

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from agent.rpc.messages import Message, MessageClass


#: Answers one request with a message, or with the bytes of one; raises `CallError` to answer with a
#: status.
Handler: TypeAlias = "Callable[[Message], Awaitable[Message | bytes]]"
#: Answers one request with messages until one of the two sides ends the call.
StreamHandler: TypeAlias = "Callable[[Message], AsyncIterator[Message | bytes]]"
#: The class of the request and the handler of each method, by its name.
Methods: TypeAlias = "Mapping[str, tuple[MessageClass, Handler]]"
StreamMethods: TypeAlias = "Mapping[str, tuple[MessageClass, StreamHandler]]"
_NO_STREAMS: Final[StreamMethods] = MappingProxyType({})
_NO_SERVICES: Final[Mapping[str, Methods]] = MappingProxyType({})
_BUSY: Final = "too many requests at a time"


def server(
    socket: Path,
    service: str,
    methods: Methods,
    *,
    concurrent: int,
    streams: StreamMethods = _NO_STREAMS,
    options: Mapping[str, int] = LIMITS,
    also: Mapping[str, Methods] = _NO_SERVICES,
) -> aio.Server:
    """Return a server on a Unix socket, to be started and stopped.

    `methods` are the methods of the service with one answer, `streams` those with any number of
    answers, `also` the methods of further services by the name of the service. More than
    `concurrent` requests of either kind at a time are rejected with RESOURCE_EXHAUSTED. `options`
    are gRPC's channel arguments; they are added to the limits on messages, or replace them. Raises
    `RuntimeError` (of gRPC) if the socket cannot be bound.
    """
    made = aio.server(options=tuple({**LIMITS, **options}.items()))
    # gRPC's own limit did not reject a second request beside one in progress (grpcio 1.85, tried).
    requests, open_streams = asyncio.Semaphore(concurrent), asyncio.Semaphore(concurrent)
    services = {
        name: {
            method: grpc.unary_unary_rpc_method_handler(
                _answering(handler, requests),
                request_deserializer=request.FromString,
                response_serializer=serialized,
            )
            for method, (request, handler) in answered.items()
        }
        for name, answered in {service: methods, **also}.items()
    }
    services[service] |= {
        method: grpc.unary_stream_rpc_method_handler(
            _streaming(handler, open_streams),
            request_deserializer=request.FromString,
            response_serializer=serialized,
        )
        for method, (request, handler) in streams.items()
    }
    made.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, handlers)
            for name, handlers in services.items()
        )
    )
    made.add_insecure_port(f"unix:{socket}")
    return made


def _answering(
    handler: Handler, free: asyncio.Semaphore
) -> Callable[[Message, aio.ServicerContext], Awaitable[Message | bytes]]:
    async def answer(request: Message, context: aio.ServicerContext) -> Message | bytes:
        if free.locked():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY)
        try:
            async with free:
                return await handler(request)
        except CallError as error:
            return await context.abort(grpc.StatusCode[error.code], error.message)

    return answer


def _streaming(
    handler: StreamHandler, free: asyncio.Semaphore
) -> Callable[[Message, aio.ServicerContext], AsyncIterator[Message | bytes]]:
    async def answer(
        request: Message, context: aio.ServicerContext
    ) -> AsyncIterator[Message | bytes]:
        if free.locked():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY)
        try:
            async with free:
                async for message in handler(request):
                    yield message
        except CallError as error:
            await context.abort(grpc.StatusCode[error.code], error.message)

    return answer
