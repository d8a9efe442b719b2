"""What a kubelet leaves and answers about devices: its file, and podresources on a real socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from agent.cluster.kubelet.devices import FILE, SOCKET
from agent.rpc import POD_RESOURCES_LISTER, V1, CallError, server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from grpc.aio import Server

#: Ids by NUMA node (-1: none) by resource by container by uid of the pod.
Given: TypeAlias = "Mapping[str, Mapping[str, Mapping[str, Mapping[int, list[str]]]]]"

_REQUESTS: Final = {
    "List": "ListPodResourcesRequest",
    "Get": "GetPodResourcesRequest",
    "GetAllocatableResources": "AllocatableResourcesRequest",
}


def write_device_checkpoint(directory: Path, given: Given, *registered: str) -> Path:
    """Write the file as a kubelet does, replacing it by a rename, and return its path."""
    entries = [
        {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {str(node): ids for node, ids in by_node.items()},
            "AllocResp": "",
        }
        for uid, containers in given.items()
        for container, resources in containers.items()
        for resource, by_node in resources.items()
    ]
    data = {
        "PodDeviceEntries": entries or None,
        "RegisteredDevices": {resource: ["any"] for resource in registered},
    }
    path = directory / FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    written = path.with_name(f".{path.name}")
    written.write_text(json.dumps({"Data": data, "Checksum": 1}))
    written.rename(path)
    return path


def container_devices(resource: str, *ids: str, node: int | None = None) -> dict[str, Any]:
    """Return the devices of a resource on one node, as podresources list them."""
    message: dict[str, Any] = {"resource_name": resource, "device_ids": list(ids)}
    return message if node is None else {**message, "topology": {"nodes": [{"ID": node}]}}


class FakePodResources:
    """The podresources of a kubelet: `pods` are containers by name by (namespace, name).

    `answers` are by method and replace the usual answer; they get the request.
    """

    def __init__(self, directory: Path) -> None:
        self.socket = directory / SOCKET
        self.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        self.pods: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
        self.allocatable: list[dict[str, Any]] = []
        self.answers: dict[str, Callable[[Any], Awaitable[bytes]]] = {}
        self.calls: list[str] = []
        self._server: Server | None = None

    async def start(self) -> None:
        self._server = server(
            self.socket,
            POD_RESOURCES_LISTER,
            {name: (V1[request], self._handler(name)) for name, request in _REQUESTS.items()},
            concurrent=16,
        )
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _handler(self, method: str) -> Callable[[Any], Awaitable[bytes]]:
        usual = {"List": self._list, "Get": self._get, "GetAllocatableResources": self._all}

        async def answer(request: Any) -> bytes:  # noqa: ANN401  # of any method
            self.calls.append(method)
            return await self.answers.get(method, usual[method])(request)

        return answer

    async def _list(self, _request: object) -> bytes:
        return _encoded("ListPodResourcesResponse", pod_resources=[*map(self._pod, self.pods)])

    async def _get(self, request: Any) -> bytes:  # noqa: ANN401  # a message
        name = (request.pod_namespace, request.pod_name)
        if name not in self.pods:
            raise CallError("UNKNOWN", f"pod {name[1]} in namespace {name[0]} not found")
        return _encoded("GetPodResourcesResponse", pod_resources=self._pod(name))

    async def _all(self, _request: object) -> bytes:
        return _encoded("AllocatableResourcesResponse", devices=self.allocatable)

    def _pod(self, name: tuple[str, str]) -> dict[str, Any]:
        containers = [
            {"name": container, "devices": devices}
            for container, devices in self.pods[name].items()
        ]
        return {"namespace": name[0], "name": name[1], "containers": containers}


def _encoded(name: str, **fields: Any) -> bytes:  # noqa: ANN401  # fields of any message
    data: bytes = V1[name](**fields).SerializeToString()
    return data
