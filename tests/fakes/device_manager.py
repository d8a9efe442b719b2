"""The device manager of a kubelet, as device plugins meet it on real sockets.

The order is that of kubelet v1.36: at its start all sockets of the directory are removed, then
`kubelet.sock` is made; `Register` is answered after the plugin was dialled and asked for its
options; then its list is watched. `Allocate` has no deadline there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.device_plugins import DEVICE_PLUGIN, KUBELET_SOCKET, REGISTRATION, V1BETA1, VERSION
from agent.rpc.server import server
from agent.rpc.sockets import is_socket

if TYPE_CHECKING:
    from pathlib import Path

    from grpc import aio

#: No test waits so long; a kubelet waits for ever.
_PATIENCE: Final = 60.0
_CONCURRENT: Final = 16


class Endpoint:
    """A registered plugin: its client, and the ids of its last list (None before the first).

    `nodes` are the NUMA nodes of each device of that list, `preferring` says whether the plugin has
    preferences among devices.
    """

    def __init__(self, resource: str, client: Client, *, preferring: bool = False) -> None:
        self.resource = resource
        self.client = client
        self.preferring = preferring
        self.nodes: dict[str, tuple[int, ...]] = {}
        self.ids: tuple[str, ...] | None = None
        self.healthy: frozenset[str] = frozenset()
        self.watching: asyncio.Task[None] | None = None


class FakeDeviceManager:
    """A kubelet's device manager in `directory`, which can be started and stopped repeatedly.

    `endpoints` are the registered plugins by resource, `registrations` the RegisterRequests of all
    its lives. `reject` makes Register answer with these words, `hang` makes it answer never.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / KUBELET_SOCKET
        self.endpoints: dict[str, Endpoint] = {}
        self.registrations: list[Any] = []
        self.options: list[Any] = []
        self.reject: str | None = None
        self.hang = False
        self.changed = asyncio.Event()
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Clear the directory as a starting kubelet does, and take registrations."""
        self.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            if is_socket(path):
                path.unlink()
        methods = {"Register": (V1BETA1["RegisterRequest"], self._register)}
        self._server = server(self.socket, REGISTRATION, methods, concurrent=_CONCURRENT)
        await self._server.start()

    async def stop(self) -> None:
        """Stop as a kubelet that is asked to: its socket is removed."""
        for endpoint in tuple(self.endpoints.values()):
            await self._drop(endpoint)
        self.endpoints.clear()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def crash(self) -> None:
        """Stop as a kubelet that is killed: its socket stays, and no process listens on it."""
        kept = self.directory / "kept"
        kept.hardlink_to(self.socket)
        await self.stop()
        kept.rename(self.socket)

    async def until_listed(self, resource: str) -> Endpoint:
        """Return the plugin of a resource once it has sent a list."""
        while (endpoint := self.endpoints.get(resource)) is None or endpoint.ids is None:
            self.changed.clear()
            await self.changed.wait()
        return endpoint

    async def allocate(self, resource: str, *ids: str) -> Any:  # noqa: ANN401  # a message
        """Allocate devices to one container; raises `CallError`."""
        request = V1BETA1["AllocateRequest"](container_requests=[{"devices_ids": ids}])
        answered = V1BETA1["AllocateResponse"]
        client = self.endpoints[resource].client
        return await client.call("Allocate", request, answered, _PATIENCE)

    async def _register(self, request: Any) -> Any:  # noqa: ANN401  # messages
        self.registrations.append(request)
        if self.hang:
            await asyncio.Event().wait()
        if self.reject is not None:
            raise CallError("UNKNOWN", self.reject)
        if request.version != VERSION:
            words = f'requested API version "{request.version}" is not supported by kubelet'
            raise CallError("UNKNOWN", words)
        client = Client(self.directory / request.endpoint, DEVICE_PLUGIN)
        empty, options = V1BETA1["Empty"](), V1BETA1["DevicePluginOptions"]
        try:
            answer = await client.call("GetDevicePluginOptions", empty, options, 10.0)
        except CallError as error:
            await client.close()
            raise CallError("UNKNOWN", f"failed to dial device plugin: {error}") from error
        self.options.append(answer)
        preferring = answer.get_preferred_allocation_available
        endpoint = Endpoint(request.resource_name, client, preferring=preferring)
        former = self.endpoints.get(endpoint.resource)
        self.endpoints[endpoint.resource] = endpoint
        if former is not None:
            await self._drop(former)
        endpoint.watching = asyncio.create_task(self._watch(endpoint))
        self.changed.set()
        return empty

    async def _watch(self, endpoint: Endpoint) -> None:
        request, listed = V1BETA1["Empty"](), V1BETA1["ListAndWatchResponse"]
        try:
            async for answer in endpoint.client.stream("ListAndWatch", request, listed):
                endpoint.nodes = {
                    each.ID: tuple(node.ID for node in each.topology.nodes)
                    for each in answer.devices
                }
                endpoint.ids = tuple(endpoint.nodes)
                endpoint.healthy = frozenset(
                    each.ID for each in answer.devices if each.health == "Healthy"
                )
                self.changed.set()
        except CallError:
            endpoint.healthy = frozenset()  # as the kubelet does until it registers again
            self.changed.set()

    async def _drop(self, endpoint: Endpoint) -> None:
        if endpoint.watching is not None:
            endpoint.watching.cancel()
            await asyncio.gather(endpoint.watching, return_exceptions=True)
        await endpoint.client.close()
