"""The podresources of a kubelet whose managers are off: devices, and neither CPUs nor memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from agent.cluster.kubelet.pod_resources import SOCKET
from agent.rpc.calls import CallError
from agent.rpc.pod_resources import POD_RESOURCES_LISTER, V1
from agent.rpc.server import server
from tests.fakes.kubelet.resources import is_sidecar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from grpc.aio import Server

    from tests.fakes.kubelet.pods import KubeletPod, Pods

#: The devices of one container by resource: the NUMA nodes of each by its id.
Given: TypeAlias = "Mapping[str, Mapping[str, tuple[int, ...]]]"
#: Containers by name by namespace and name of the pod.
Listed: TypeAlias = "dict[tuple[str, str], dict[str, list[dict[str, Any]]]]"

_REQUESTS: Final = {
    "List": "ListPodResourcesRequest",
    "Get": "GetPodResourcesRequest",
    "GetAllocatableResources": "AllocatableResourcesRequest",
}


def container_devices(resource: str, *ids: str, node: int | None = None) -> dict[str, Any]:
    """Return the devices of a resource on one node, as podresources list them."""
    message: dict[str, Any] = {"resource_name": resource, "device_ids": list(ids)}
    return message if node is None else {**message, "topology": {"nodes": [{"ID": node}]}}


class FakePodResources:
    """The server, which has the `pods` that a test gives it.

    `answers` are by method and replace the usual answer; they get the request.
    """

    def __init__(self, directory: Path) -> None:
        self.socket = directory / SOCKET
        self.pods: Listed = {}
        self.allocatable: list[dict[str, Any]] = []
        self.answers: dict[str, Callable[[Any], Awaitable[bytes]]] = {}
        self.calls: list[str] = []
        self._server: Server | None = None

    def listed(self) -> Listed:
        return self.pods

    def of(self, name: tuple[str, str]) -> dict[str, list[dict[str, Any]]] | None:
        return self.pods.get(name)

    async def start(self) -> None:
        self.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        self.socket.unlink(missing_ok=True)
        methods = {name: (V1[request], self._handler(name)) for name, request in _REQUESTS.items()}
        self._server = server(self.socket, POD_RESOURCES_LISTER, methods, concurrent=16)
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
        listed = [_pod(name, containers) for name, containers in self.listed().items()]
        return _encoded("ListPodResourcesResponse", pod_resources=listed)

    async def _get(self, request: Any) -> bytes:  # noqa: ANN401  # a message
        name = (request.pod_namespace, request.pod_name)
        if (containers := self.of(name)) is None:
            raise CallError("UNKNOWN", f"pod {name[1]} in namespace {name[0]} not found")
        return _encoded("GetPodResourcesResponse", pod_resources=_pod(name, containers))

    async def _all(self, _request: object) -> bytes:
        return _encoded("AllocatableResourcesResponse", devices=self.allocatable)


class PodResourcesOfPods(FakePodResources):
    """The server of a kubelet's own pods; `given(uid, container)` are the devices of a container.

    Without `with_get` it has no `Get`, as before v1.27.
    """

    def __init__(
        self, directory: Path, pods: Pods, given: Callable[[str, str], Given], *, with_get: bool
    ) -> None:
        super().__init__(directory)
        self._pods = pods
        self._given = given
        if not with_get:
            self.answers["Get"] = _unimplemented

    def listed(self) -> Listed:
        """Return the pods that are admitted."""
        return {(pod.namespace, pod.name): self._shown(pod) for pod in self._pods if pod.admitted}

    def of(self, name: tuple[str, str]) -> dict[str, list[dict[str, Any]]] | None:
        """Return the containers of a pod, also before its admission."""
        found = (self._shown(pod) for pod in self._pods if (pod.namespace, pod.name) == name)
        return next(found, None)

    def _shown(self, pod: KubeletPod) -> dict[str, list[dict[str, Any]]]:
        sidecars = [each for each in pod.spec.get("initContainers", ()) if is_sidecar(each)]
        names = [each["name"] for each in (*sidecars, *pod.spec["containers"])]
        return {name: _devices(self._given(pod.uid, name)) for name in names}


async def _unimplemented(_request: object) -> bytes:
    raise CallError("UNIMPLEMENTED", "unknown method Get")


def _devices(given: Given) -> list[dict[str, Any]]:
    return [
        {
            "resource_name": resource,
            "device_ids": [device],
            "topology": {"nodes": [{"ID": node} for node in nodes]},
        }
        for resource, devices in given.items()
        for device, nodes in devices.items()
    ]


def _pod(name: tuple[str, str], containers: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    listed = [{"name": container, "devices": devices} for container, devices in containers.items()]
    return {"namespace": name[0], "name": name[1], "containers": listed}


def _encoded(name: str, **fields: Any) -> bytes:  # noqa: ANN401  # fields of any message
    data: bytes = V1[name](**fields).SerializeToString()
    return data
