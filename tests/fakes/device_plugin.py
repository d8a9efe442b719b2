"""A device plugin on a real socket, written with grpcio, that does as a test says.

Messages are bytes on their way in and out, so that a test can have it send any.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from grpc import aio

from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.device_plugins import (
    DEVICE_PLUGIN,
    PLUGIN_REGISTRATION,
    PLUGIN_WATCHER,
    REGISTRATION,
    V1BETA1,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

Answer: TypeAlias = "Callable[[bytes], Awaitable[bytes]]"

#: Every method that is answered at once, with the class of its request.
_REQUESTS: Final = {
    "GetDevicePluginOptions": "Empty",
    "GetPreferredAllocation": "PreferredAllocationRequest",
    "Allocate": "AllocateRequest",
    "PreStartContainer": "PreStartContainerRequest",
}
_PATIENCE: Final = 30.0


def encoded(name: str, **fields: Any) -> bytes:  # noqa: ANN401  # fields of any message
    data: bytes = V1BETA1[name](**fields).SerializeToString()
    return data


def device(name: str, *nodes: int, health: str = "Healthy") -> dict[str, object]:
    """Return a device of a list; without nodes it has an empty topology."""
    return {"ID": name, "health": health, "topology": {"nodes": [{"ID": node} for node in nodes]}}


def device_list(*devices: dict[str, object]) -> bytes:
    return encoded("ListAndWatchResponse", devices=devices)


async def never(_request: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


def failing(code: str, words: str) -> Answer:
    async def fail(_request: bytes) -> bytes:
        raise CallError(code, words)

    return fail


def always(raw: bytes) -> Answer:
    async def answer(_request: bytes) -> bytes:
        return raw

    return answer


class FakePlugin:
    """A plugin of one resource; `answers` are by method and can be replaced at any time.

    `calls` are the methods in their order, with their decoded requests. `statuses` are what became
    of its registration by a plugin watcher, which is answered `info`.
    """

    def __init__(
        self,
        directory: Path,
        resource: str = "example.com/gpu",
        endpoint: str = "gpu.sock",
        *,
        preferring: bool = False,
        pre_start: bool = False,
    ) -> None:
        self.directory = directory
        self.resource = resource
        self.endpoint = endpoint
        self.calls: list[tuple[str, Any]] = []
        self.info: dict[str, object] = {
            "type": "DevicePlugin",
            "name": resource,
            "supported_versions": ["v1beta1"],
        }
        self.statuses: list[tuple[bool, str]] = []
        self.streams: list[asyncio.Queue[bytes | None]] = []
        self.answers: dict[str, Answer] = {
            "GetDevicePluginOptions": always(
                encoded(
                    "DevicePluginOptions",
                    pre_start_required=pre_start,
                    get_preferred_allocation_available=preferring,
                )
            ),
            "GetPreferredAllocation": self._prefer,
            "Allocate": self._allocate,
            "PreStartContainer": always(b""),
        }
        self._list = b""
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Serve the plugin's socket; a plugin does that before it registers."""
        self._server = aio.server(options=(("grpc.max_send_message_length", -1),))
        handlers = {name: self._handler(name) for name in _REQUESTS}
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self._watch)
        handler = grpc.method_handlers_generic_handler(DEVICE_PLUGIN, handlers)
        watched = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(self._get_info),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(self._notified),
        }
        watcher = grpc.method_handlers_generic_handler(PLUGIN_WATCHER, watched)
        self._server.add_generic_rpc_handlers((handler, watcher))
        self._server.add_insecure_port(f"unix:{self.directory / self.endpoint}")
        await self._server.start()

    async def register(self, **fields: object) -> None:
        request = V1BETA1["RegisterRequest"](
            **{
                "version": "v1beta1",
                "resource_name": self.resource,
                "endpoint": self.endpoint,
                **fields,
            }
        )
        client = Client(self.directory / "kubelet.sock", REGISTRATION)
        try:
            await client.call("Register", request, V1BETA1["Empty"], _PATIENCE)
        finally:
            await client.close()

    def send(self, *devices: dict[str, object]) -> None:
        """Send a list now, and at the beginning of every further stream."""
        self.send_raw(device_list(*devices))

    def send_raw(self, raw: bytes) -> None:
        """Send bytes as a list now, and at the beginning of every further stream."""
        self._list = raw
        for stream in self.streams:
            stream.put_nowait(raw)

    def end_streams(self) -> None:
        for stream in self.streams:
            stream.put_nowait(None)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def methods(self) -> list[str]:
        return [name for name, _ in self.calls]

    async def _get_info(self, _request: bytes, _context: aio.ServicerContext) -> bytes:
        data: bytes = PLUGIN_REGISTRATION["PluginInfo"](**self.info).SerializeToString()
        return data

    async def _notified(self, raw: bytes, _context: aio.ServicerContext) -> bytes:
        status = PLUGIN_REGISTRATION["RegistrationStatus"].FromString(raw)
        self.statuses.append((status.plugin_registered, status.error))
        return b""

    def _handler(self, name: str) -> grpc.RpcMethodHandler:
        async def answer(request: bytes, context: aio.ServicerContext) -> bytes:
            self.calls.append((name, V1BETA1[_REQUESTS[name]].FromString(request)))
            try:
                return await self.answers[name](request)
            except CallError as error:
                await context.abort(grpc.StatusCode[error.code], error.message)
                raise

        return grpc.unary_unary_rpc_method_handler(answer)

    async def _watch(self, _request: bytes, _context: aio.ServicerContext) -> AsyncIterator[bytes]:
        self.calls.append(("ListAndWatch", None))
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.streams.append(stream)
        raw: bytes | None = self._list
        while raw is not None:
            yield raw
            raw = await stream.get()

    async def _prefer(self, raw: bytes) -> bytes:
        """Prefer the last ids in their order, with those that must be included."""
        [asked] = V1BETA1["PreferredAllocationRequest"].FromString(raw).container_requests
        required = list(asked.must_include_deviceIDs)
        others = sorted(set(asked.available_deviceIDs) - set(required), reverse=True)
        ids = [*required, *others][: asked.allocation_size]
        return encoded("PreferredAllocationResponse", container_responses=[{"deviceIDs": ids}])

    async def _allocate(self, raw: bytes) -> bytes:
        [asked] = V1BETA1["AllocateRequest"].FromString(raw).container_requests
        envs = {"DEVICES": ",".join(asked.devices_ids)}
        return encoded("AllocateResponse", container_responses=[{"envs": envs}])
