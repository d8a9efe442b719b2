"""The kubelet's podresources (v1): the devices that its plugins gave, asked over a socket.

In: the name of a pod, or none for all pods. Out: devices with their NUMA nodes, or `CallError`. The
kubelet's managers of CPUs and memory are off, so its answers have devices alone.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from agent.managers.device.kubelet import KubeletListing
from agent.pods.model import GivenDevice
from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.pod_resources import POD_RESOURCES_LISTER, V1
from sysfs.mask import EMPTY, MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from agent.managers.device.kubelet import Claims
    from agent.pods.model import GivenDevices
    from agent.rpc.messages import Message

#: In the kubelet's directory.
SOCKET: Final = "pod-resources/kubelet.sock"
#: How long an answer about one pod may take, in seconds: an admission waits for it.
GET_SECONDS: Final = 0.5
#: How long an answer about all pods may take, in seconds; nothing waits for it.
LIST_SECONDS: Final = 5.0
#: The most devices of an answer: more than a host has.
MOST_DEVICES: Final = 100_000
#: The answers of a kubelet that has no `Get` (before v1.27, or behind its gate).
_NO_GET: Final = frozenset({"UNIMPLEMENTED", "UNKNOWN"})


class PodResourcesClient:
    """Asks a kubelet; every call has a deadline and raises `CallError`."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def of(self, namespace: str, name: str) -> GivenDevices:
        """Return the devices of a pod, none of a pod that the kubelet does not know."""
        request = V1["GetPodResourcesRequest"](pod_name=name, pod_namespace=namespace)
        async with self._client() as client:
            try:
                answer = await client.call(
                    "Get", request, V1["GetPodResourcesResponse"], GET_SECONDS
                )
            except CallError as error:
                if error.code not in _NO_GET:
                    raise
            else:
                return await asyncio.to_thread(_of_containers, answer.pod_resources.containers)
            pods = await self._pods(client, GET_SECONDS)
        return (await asyncio.to_thread(_by_name, pods)).get((namespace, name), {})

    async def all(self) -> KubeletListing:
        """Return the devices of all pods, and those that pods may have."""
        request = V1["AllocatableResourcesRequest"]()
        async with self._client() as client:
            pods = await self._pods(client, LIST_SECONDS)
            response = V1["AllocatableResourcesResponse"]
            answer = await client.call("GetAllocatableResources", request, response, LIST_SECONDS)
        by_name = await asyncio.to_thread(_by_name, pods)
        devices = await asyncio.to_thread(_devices, answer.devices)
        return KubeletListing(by_name, devices, _claims(pods))

    async def _pods(self, client: Client, seconds: float) -> Iterable[Message]:
        request, response = V1["ListPodResourcesRequest"](), V1["ListPodResourcesResponse"]
        answer = await client.call("List", request, response, seconds)
        pods: Iterable[Message] = answer.pod_resources
        return pods

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        client = Client(self._socket, POD_RESOURCES_LISTER)
        try:
            yield client
        finally:
            await client.close()


def _by_name(pods: Iterable[Message]) -> dict[tuple[str, str], GivenDevices]:
    by_name = {(pod.namespace, pod.name): _of_containers(pod.containers) for pod in pods}
    _limit(sum(len(devices) for given in by_name.values() for devices in given.values()))
    return {name: given for name, given in by_name.items() if given}


def _claims(pods: Iterable[Message]) -> dict[tuple[str, str], Claims]:
    by_name = {
        (pod.namespace, pod.name): {
            each.name: tuple(each.dynamic_resources)
            for each in pod.containers
            if each.dynamic_resources
        }
        for pod in pods
    }
    _limit(sum(len(parts) for claims in by_name.values() for parts in claims.values()))
    return {name: claims for name, claims in by_name.items() if claims}


def _of_containers(containers: Iterable[Message]) -> dict[str, tuple[GivenDevice, ...]]:
    by_container = {each.name: _devices(each.devices) for each in containers}
    return {name: devices for name, devices in by_container.items() if devices}


def _devices(entries: Iterable[Message]) -> tuple[GivenDevice, ...]:
    """Return the devices of a list, in which a device of several NUMA nodes is named for each.

    A number that no node can have is ignored.
    """
    places: dict[tuple[str, str], Mask] = {}
    for entry in entries:
        ids = [node.ID for node in entry.topology.nodes if 0 <= node.ID <= MAX_ID]
        nodes = Mask.from_ids(ids)
        for device in entry.device_ids:
            key = (entry.resource_name, device)
            places[key] = places.get(key, EMPTY) | nodes
        _limit(len(places))
    return tuple(
        GivenDevice(resource, device, nodes) for (resource, device), nodes in places.items()
    )


def _limit(devices: int) -> None:
    if devices > MOST_DEVICES:
        raise CallError("OUT_OF_RANGE", f"the kubelet lists more than {MOST_DEVICES} devices")
