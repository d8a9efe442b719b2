"""Calls to a gRPC service on a Unix socket, each with a deadline, and services that answer them."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from agent.progress import EndedError, cancelled_here, moved, uncancelled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from agent.rpc.messages import Message, MessageClass

#: The longest message in bytes in either direction; the kubelet's limit is 16 MiB.
LONGEST_MESSAGE: Final = 16 << 20
_LIMITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "grpc.max_receive_message_length": LONGEST_MESSAGE,
        "grpc.max_send_message_length": LONGEST_MESSAGE,
    }
)
_CLIENT: Final = (
    *_LIMITS.items(),
    # By default the authority is the escaped path of the socket, which strict servers reject.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # A plugin that registers again is dialled again; the channel itself need not wait for long.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # A new client dials at once, also after another one of this process has failed.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_BUSY: Final = "too many requests at a time"


class CallError(Exception):
    """A call failed; `code` is gRPC's name of the status, `message` what the server said."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class SocketClient(Protocol):
    """What is asked of a `Client`, in whose place a test may have another."""

    async def call(
        self, method: str, request: Message, response: MessageClass, seconds: float
    ) -> Any:  # noqa: ANN401  # messages are made at run time
        """Return the response of a method; raises `CallError`, also after `seconds`."""

    def stream(
        self, method: str, request: Message, response: MessageClass
    ) -> AsyncGenerator[Any, None]:
        """Yield the responses of a method until the server ends; raises `CallError`."""

    async def close(self) -> None:
        """Close the connection and end all calls."""


class Client:
    """The client of one service on a socket; close it in the end."""

    def __init__(self, socket: Path, service: str) -> None:
        self._service = service
        self._channel = aio.insecure_channel(f"unix:{socket}", options=_CLIENT)

    async def call(
        self, method: str, request: Message, response: MessageClass, seconds: float
    ) -> Message:
        """Return the response of a method; raises `CallError`, also after `seconds`."""
        call = self._channel.unary_unary(
            f"/{self._service}/{method}", request_serializer=_serialized
        )
        try:
            raw = await uncancelled(call(request, timeout=seconds))
        except aio.AioRpcError as error:
            raise CallError(error.code().name, error.details() or "") from error
        except (EndedError, aio.UsageError) as error:  # during the call, before it
            raise _closed() from error
        finally:
            moved()
        return _decoded(response, raw)

    async def stream(
        self, method: str, request: Message, response: MessageClass
    ) -> AsyncGenerator[Message, None]:
        """Yield the responses of a method until the server ends; raises `CallError`."""
        method_call = self._channel.unary_stream(
            f"/{self._service}/{method}", request_serializer=_serialized
        )
        try:
            call = method_call(request)
        except aio.UsageError as error:
            raise _closed() from error
        try:
            async for raw in call:
                yield _decoded(response, raw)
        except aio.AioRpcError as error:
            raise CallError(error.code().name, error.details() or "") from error
        except asyncio.CancelledError as error:
            if cancelled_here():
                raise
            raise _closed() from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection and end all calls."""
        await self._channel.close()


#: Answers one request with a message, or with the bytes of one; raises `CallError` to answer with a
#: status.
Handler: TypeAlias = "Callable[[Message], Awaitable[Message | bytes]]"
#: Answers one request with messages until one of the two sides ends the call.
StreamHandler: TypeAlias = "Callable[[Message], AsyncIterator[Message | bytes]]"
_NO_STREAMS: Final[Mapping[str, tuple[MessageClass, StreamHandler]]] = MappingProxyType({})
_NO_SERVICES: Final[Mapping[str, Mapping[str, tuple[MessageClass, Handler]]]] = MappingProxyType({})


def server(
    socket: Path,
    service: str,
    methods: Mapping[str, tuple[MessageClass, Handler]],
    *,
    concurrent: int,
    streams: Mapping[str, tuple[MessageClass, StreamHandler]] = _NO_STREAMS,
    options: Mapping[str, int] = _LIMITS,
    also: Mapping[str, Mapping[str, tuple[MessageClass, Handler]]] = _NO_SERVICES,
) -> aio.Server:
    """Return a server on a Unix socket, to be started and stopped.

    `methods` are the class of the request and the handler by name, `streams` those that answer with
    any number of messages, `also` the methods of further services by name. More than `concurrent`
    requests of either kind at a time are rejected with RESOURCE_EXHAUSTED. `options` are gRPC's
    channel arguments beside the limits on messages, or in their place. Raises `RuntimeError` (of
    gRPC) if the socket cannot be bound.
    """
    made = aio.server(options=tuple({**_LIMITS, **options}.items()))
    # gRPC's own limit did not reject a second request beside one in progress (grpcio 1.85, tried).
    share = asyncio.Semaphore(concurrent)

    def answered(
        methods: Mapping[str, tuple[MessageClass, Handler]],
    ) -> dict[str, grpc.RpcMethodHandler]:
        return {
            name: grpc.unary_unary_rpc_method_handler(
                _answering(handler, share),
                request_deserializer=request.FromString,
                response_serializer=_serialized,
            )
            for name, (request, handler) in methods.items()
        }

    handlers = answered(methods)
    open_streams = asyncio.Semaphore(concurrent)
    handlers |= {
        name: grpc.unary_stream_rpc_method_handler(
            _streaming(handler, open_streams),
            request_deserializer=request.FromString,
            response_serializer=_serialized,
        )
        for name, (request, handler) in streams.items()
    }
    services = {service: handlers} | {name: answered(each) for name, each in also.items()}
    made.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(*each) for each in services.items())
    )
    made.add_insecure_port(f"unix:{socket}")
    return made


def _closed() -> CallError:
    """Return the error for a call whose channel was closed: gRPC cancels it."""
    return CallError("UNAVAILABLE", "the connection was closed")


def _answering(
    handler: Handler, share: asyncio.Semaphore
) -> Callable[[Message, aio.ServicerContext], Awaitable[Message | bytes]]:
    async def answer(request: Message, context: aio.ServicerContext) -> Message | bytes:
        if share.locked():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY)
        try:
            async with share:
                return await handler(request)
        except CallError as error:
            return await context.abort(grpc.StatusCode[error.code], error.message)

    return answer


def _streaming(
    handler: StreamHandler, share: asyncio.Semaphore
) -> Callable[[Message, aio.ServicerContext], AsyncIterator[Message | bytes]]:
    async def answer(
        request: Message, context: aio.ServicerContext
    ) -> AsyncIterator[Message | bytes]:
        if share.locked():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _BUSY)
        try:
            async with share:
                async for message in handler(request):
                    yield message
        except CallError as error:
            await context.abort(grpc.StatusCode[error.code], error.message)

    return answer


def _decoded(response: MessageClass, raw: bytes) -> Message:
    """Return a response; gRPC itself would pass on None for bytes that are no message."""
    try:
        return response.FromString(raw)
    except DecodeError as error:
        raise CallError("INTERNAL", f"the response cannot be read: {error}") from error


def _serialized(message: Message | bytes) -> bytes:
    data: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return data
