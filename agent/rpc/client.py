"""The client of a gRPC service on a Unix socket: each call has a deadline, a stream has none.

A failed call is a `CallError`, whatever failed: the server, the connection, or the response.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from google.protobuf.message import DecodeError
from grpc import aio

from agent.progress import EndedError, cancelled_here, progressed, uncancelled
from agent.rpc.calls import LIMITS, CallError, serialized

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from agent.rpc.messages import Message, MessageClass


_CLIENT: Final = (
    *LIMITS.items(),
    # By default the authority is the escaped path of the socket, which strict servers reject.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # A plugin that registers again is dialled again; the channel itself need not wait for long.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # A new client dials at once, also after another one of this process has failed.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


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
            f"/{self._service}/{method}", request_serializer=serialized
        )
        try:
            raw = await uncancelled(call(request, timeout=seconds))
        except aio.AioRpcError as error:
            raise CallError(error.code().name, error.details() or "") from error
        except (EndedError, aio.UsageError) as error:  # during the call, before it
            raise _closed() from error
        finally:
            progressed()
        return _decoded(response, raw)

    async def stream(
        self, method: str, request: Message, response: MessageClass
    ) -> AsyncGenerator[Message, None]:
        """Yield the responses of a method until the server ends; raises `CallError`."""
        method_call = self._channel.unary_stream(
            f"/{self._service}/{method}", request_serializer=serialized
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


def _decoded(response: MessageClass, raw: bytes) -> Message:
    """Return a response; gRPC itself would pass on None for bytes that are no message."""
    try:
        return response.FromString(raw)
    except DecodeError as error:
        raise CallError("INTERNAL", f"the response cannot be read: {error}") from error


def _closed() -> CallError:
    """Return the error for a call whose channel was closed: gRPC cancels it."""
    return CallError("UNAVAILABLE", "the connection was closed")
