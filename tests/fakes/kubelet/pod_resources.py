"""The kubelet's podresources with its managers off: devices, and neither CPUs nor memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from agent.rpc import POD_RESOURCES_LISTER, V1, CallError, server
from tests.fakes.kubelet.resources import is_sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from grpc import aio

    from agent.rpc import Message
    from tests.fakes.kubelet.pods import KubeletPod, Pods

#: The socket below the kubelet's directory.
SOCKET: Final = "pod-resources/kubelet.sock"

#: The devices of one container by resource: the NUMA nodes of each by its id.
Given: TypeAlias = "Mapping[str, Mapping[str, tuple[int, ...]]]"


class PodResources:
    """The server; `given(uid, container)` are the devices of a container."""

    def __init__(
        self,
        directory: Path,
        pods: Pods,
        given: Callable[[str, str], Given],
        *,
        with_get: bool = True,
    ) -> None:
        self._with_get = with_get
        self._socket = directory / SOCKET
        self._pods = pods
        self._given = given
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Serve the socket."""
        self._socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        methods = {
            "List": (V1["ListPodResourcesRequest"], self._list),
            "Get": (V1["GetPodResourcesRequest"], self._get),
            "GetAllocatableResources": (V1["AllocatableResourcesRequest"], _allocatable),
        }
        if not self._with_get:
            del methods["Get"]
        self._server = server(self._socket, POD_RESOURCES_LISTER, methods, concurrent=10)
        await self._server.start()

    async def stop(self) -> None:
        """End all calls."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _list(self, _request: Message) -> Message:
        listed = [self._shown(pod) for pod in self._pods if pod.admitted]
        return V1["ListPodResourcesResponse"](pod_resources=listed)

    async def _get(self, request: Message) -> Message:
        named = (request.pod_namespace, request.pod_name)
        for pod in self._pods:
            if (pod.namespace, pod.name) == named:
                return V1["GetPodResourcesResponse"](pod_resources=self._shown(pod))
        namespace, name = named
        raise CallError("UNKNOWN", f"pod {name} in namespace {namespace} not found")

    def _shown(self, pod: KubeletPod) -> dict[str, object]:
        sidecars = [each for each in pod.spec.get("initContainers", ()) if is_sidecar(each)]
        names = [each["name"] for each in (*sidecars, *pod.spec["containers"])]
        containers = [
            {"name": name, "devices": _devices(self._given(pod.uid, name))} for name in names
        ]
        return {"name": pod.name, "namespace": pod.namespace, "containers": containers}


def _devices(given: Given) -> list[dict[str, object]]:
    return [
        {
            "resource_name": resource,
            "device_ids": [device],
            "topology": {"nodes": [{"ID": node} for node in nodes]},
        }
        for resource, devices in given.items()
        for device, nodes in devices.items()
    ]


async def _allocatable(_request: Message) -> Message:
    return V1["AllocatableResourcesResponse"]()
