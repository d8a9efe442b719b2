"""Which devices of plugins each container has: given at admission, kept in the checkpoint.

The order is that of kubelet v1.36's device manager: container by container, the init containers
first; what an init container had, the containers after it have again; a running container of a
kubelet that was restarted is not allocated a second time.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from agent.rpc.calls import CallError
from agent.rpc.device_plugins import V1BETA1
from tests.fakes.kubelet.resources import is_sidecar, limits_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.fakes.device_manager import Endpoint, FakeDeviceManager
    from tests.fakes.kubelet.pod_resources import Given
    from tests.fakes.kubelet.pods import KubeletPod

#: Ids by NUMA node (-1: none) by resource by container by uid of the pod.
Entries: TypeAlias = "Mapping[str, Mapping[str, Mapping[str, Mapping[int, list[str]]]]]"
#: The directory of plugins below the kubelet's, and the file in it.
DIRECTORY: Final = "device-plugins"
CHECKPOINT: Final = "kubelet_internal_checkpoint"
_NO_NODE: Final = -1


@dataclass(frozen=True, slots=True)
class Share:
    """Devices of one resource that one container has, and the plugin's answer about them."""

    uid: str
    container: str
    resource: str
    nodes: Mapping[str, tuple[int, ...]]
    answer: bytes

    def entry(self) -> dict[str, object]:
        ids: dict[str, list[str]] = {}
        for device, nodes in self.nodes.items():
            for node in nodes or (_NO_NODE,):
                ids.setdefault(str(node), []).append(device)
        return {
            "PodUID": self.uid,
            "ContainerName": self.container,
            "ResourceName": self.resource,
            "DeviceIDs": ids,
            "AllocResp": base64.b64encode(self.answer).decode(),
        }


@dataclass(slots=True)
class Delivered:
    """What plugins add to a container."""

    environment: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi_devices: list[str] = field(default_factory=list)


def _write_checkpoint(file: Path, entries: object, registered: Mapping[str, list[str]]) -> None:
    data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
    checksum = zlib.crc32(json.dumps(data).encode())
    new = file.with_name(f".{CHECKPOINT}")
    new.write_text(json.dumps({"Data": data, "Checksum": checksum}))
    new.replace(file)


def write_device_checkpoint(directory: Path, given: Entries, *registered: str) -> Path:
    """Write the file below a kubelet's directory as a kubelet does, and return its path."""
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
    path = directory / DIRECTORY / CHECKPOINT
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    _write_checkpoint(path, entries or None, {resource: ["any"] for resource in registered})
    return path


class DeviceShares:
    def __init__(self, manager: FakeDeviceManager) -> None:
        self._manager = manager
        self._file = manager.directory / CHECKPOINT
        self._shares: list[Share] = []

    def start(self) -> None:
        """Read the checkpoint of the kubelet before."""
        if self._file.exists():
            entries = json.loads(self._file.read_text())["Data"]["PodDeviceEntries"] or ()
            self._shares = [_share(entry) for entry in entries]

    async def admit(self, pod: KubeletPod) -> None:
        """Allocate what the pod's containers ask for; raises `CallError` with the plugin's words.

        What was allocated to its first containers stays with the pod until `release`.
        """
        free_again: dict[str, list[str]] = {}
        for container in pod.containers():
            for resource, asked in limits_of(container).items():
                if not self._is_known(resource) or self._share_of(pod.uid, container, resource):
                    continue
                reused = free_again.setdefault(resource, [])
                share = await self._allocate(pod, container, resource, int(asked), reused)
                self._shares.append(share)
                for device in share.nodes:
                    if device in reused:
                        reused.remove(device)
                    if container in pod.spec.get("initContainers", ()) and not is_sidecar(
                        container
                    ):
                        reused.append(device)
        self._save()

    def given(self, uid: str, container: str) -> Given:
        found = (each for each in self._shares if (each.uid, each.container) == (uid, container))
        return {share.resource: share.nodes for share in found}

    def delivered(self, uid: str, container: str) -> Delivered:
        total = Delivered()
        for share in self._shares:
            if (share.uid, share.container) == (uid, container):
                answer = V1BETA1["ContainerAllocateResponse"].FromString(share.answer)
                total.environment |= dict(answer.envs)
                total.annotations |= dict(answer.annotations)
                total.cdi_devices += [device.name for device in answer.cdi_devices]
        return total

    def release(self, uid: str) -> None:
        kept = [share for share in self._shares if share.uid != uid]
        if kept != self._shares:
            self._shares = kept
            self._save()

    def _is_known(self, resource: str) -> bool:
        seen = {share.resource for share in self._shares} | self._registered_before()
        return resource in self._manager.endpoints or resource in seen

    def _registered_before(self) -> set[str]:
        if not self._file.exists():
            return set()
        return set(json.loads(self._file.read_text())["Data"]["RegisteredDevices"])

    def _share_of(self, uid: str, container: Mapping[str, Any], resource: str) -> Share | None:
        asked = (uid, container["name"], resource)
        found = (s for s in self._shares if (s.uid, s.container, s.resource) == asked)
        return next(found, None)

    async def _allocate(
        self,
        pod: KubeletPod,
        container: Mapping[str, Any],
        resource: str,
        count: int,
        reused: Sequence[str],
    ) -> Share:
        endpoint = self._manager.endpoints.get(resource)
        if endpoint is None or not endpoint.healthy:
            words = "no healthy devices present; cannot allocate unhealthy devices"
            raise CallError("UNKNOWN", f"{words} {resource}")
        taken = {
            device for share in self._shares if share.resource == resource for device in share.nodes
        }
        free = sorted(endpoint.healthy - taken)
        ids = [*reused, *free][:count]
        if len(ids) < count:
            words = f"requested number of devices unavailable for {resource}."
            available = len(free) + len(reused)
            raise CallError("UNKNOWN", f"{words} Requested: {count}, Available: {available}")
        ids = await self._preferred(endpoint, [*reused, *free], reused[:count], ids)
        answer = await self._manager.allocate(resource, *ids)
        nodes = {device: endpoint.nodes.get(device, ()) for device in ids}
        (response,) = answer.container_responses
        raw = response.SerializeToString()
        return Share(pod.uid, container["name"], resource, nodes, raw)

    async def _preferred(
        self, endpoint: Endpoint, free: Sequence[str], required: Sequence[str], ids: list[str]
    ) -> list[str]:
        """Return the plugin's choice if it makes one."""
        if not endpoint.preferring:
            return ids
        request = V1BETA1["PreferredAllocationRequest"](
            container_requests=[
                {
                    "available_deviceIDs": free,
                    "must_include_deviceIDs": required,
                    "allocation_size": len(ids),
                }
            ]
        )
        answered = V1BETA1["PreferredAllocationResponse"]
        answer = await endpoint.client.call("GetPreferredAllocation", request, answered, 60.0)
        (response,) = answer.container_responses
        return list(response.deviceIDs)

    def _save(self) -> None:
        endpoints: Iterable[tuple[str, Endpoint]] = self._manager.endpoints.items()
        entries = [share.entry() for share in self._shares]
        registered = {name: list(each.ids or ()) for name, each in endpoints}
        _write_checkpoint(self._file, entries, registered)


def _share(entry: Mapping[str, Any]) -> Share:
    nodes: dict[str, tuple[int, ...]] = {}
    for node, devices in entry["DeviceIDs"].items():
        for device in devices:
            own = () if int(node) == _NO_NODE else (int(node),)
            nodes[device] = (*nodes.get(device, ()), *own)
    names = (entry["PodUID"], entry["ContainerName"], entry["ResourceName"])
    return Share(*names, nodes, base64.b64decode(entry["AllocResp"]))
