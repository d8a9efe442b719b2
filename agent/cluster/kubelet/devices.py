"""The devices of the kubelet's own plugins, as the agent knows them now (`KubeletDevices`).

Before the agent decides on a pod of the kubelet, the pod's devices are read from the kubelet's file
(`DeviceCheckpoint`) or, where that cannot be read, asked for (`PodResourcesClient`). All devices
are asked for from time to time for what shows them: documents of pods, the map, podresources of the
agent, the node topology.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeAlias, TypeVar

import msgspec
import structlog
from msgspec import Meta, Struct

from agent.files import UntrustedPathError, read_trusted
from agent.managers.device.kubelet import NOT_LISTED, KubeletListing
from agent.pods.model import NO_GIVEN_DEVICES, GivenDevice
from agent.rpc import POD_RESOURCES_LISTER, V1, CallError, Client
from sysfs.mask import EMPTY, MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from pathlib import Path

    from agent.clock import Clock
    from agent.managers.device.kubelet import Claims
    from agent.pods.model import GivenDevices, Pod
    from agent.rpc import Message


#: In the kubelet's directory.
FILE: Final = "device-plugins/kubelet_internal_checkpoint"
#: In bytes. A container has an entry of a few KiB for each resource (the plugin's response).
LONGEST: Final = 8 << 20
#: In place of a NUMA node, of devices whose plugin reports none.
_NO_NODE: Final = -1
_FORMAT: Final = (
    "this release does not know the format: report the kubelet's release; meanwhile the kubelet is "
    "asked over podresources"
)

#: In the kubelet's directory.
SOCKET: Final = "pod-resources/kubelet.sock"
#: An admission waits for the answer about its pod, nothing waits for that about all; in seconds.
GET_SECONDS: Final = 0.5
LIST_SECONDS: Final = 5.0
#: Above what a host has: an answer with more devices is not taken over.
MOST_DEVICES: Final = 100_000
#: How a kubelet answers that has no `Get` (before v1.27, or behind its gate).
_NO_GET: Final = frozenset({"UNIMPLEMENTED", "UNKNOWN"})

log = structlog.get_logger(__name__)

#: How long after an answer about all pods the next one is asked for, in seconds.
REFRESH_SECONDS: Final = 10.0
_Result = TypeVar("_Result")


class DeviceCheckpointError(Exception):
    """The file cannot be read: `found` says why, `remedy` what to do."""

    def __init__(self, path: Path, found: str, remedy: str) -> None:
        super().__init__(f"{path}: {found}; {remedy}")
        self.path = path
        self.remedy = remedy


_Node: TypeAlias = Annotated[int, Meta(ge=_NO_NODE, le=MAX_ID)]


class _Entry(Struct):
    """The devices of one resource that a container has; a device of several nodes is at each."""

    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[_Node, list[str] | None] | None = None

    def devices(self) -> tuple[GivenDevice, ...]:
        nodes: dict[str, Mask] = {}
        for node, ids in sorted((self.DeviceIDs or {}).items()):
            place = EMPTY if node == _NO_NODE else Mask.of(node)
            for each in ids or ():
                nodes[each] = nodes.get(each, EMPTY) | place
        return tuple(GivenDevice(self.ResourceName, each, on) for each, on in nodes.items())


class _Data(Struct):
    PodDeviceEntries: list[_Entry] | None = None
    RegisteredDevices: dict[str, object] | None = None


class _Document(Struct):
    Data: _Data


class CheckpointContent:
    """What the file says; `registered` are the resources of plugins that registered."""

    def __init__(self, data: _Data) -> None:
        self.registered = frozenset(data.RegisteredDevices or ())
        self._entries: dict[str, list[_Entry]] = {}
        for entry in data.PodDeviceEntries or ():
            self._entries.setdefault(entry.PodUID, []).append(entry)

    def of(self, uid: str) -> GivenDevices:
        """Return the devices of a pod, none of a pod that the file does not have."""
        found: dict[str, tuple[GivenDevice, ...]] = {}
        for entry in self._entries.get(uid, ()):
            known = found.get(entry.ContainerName, ())
            found[entry.ContainerName] = (*known, *entry.devices())
        return found or NO_GIVEN_DEVICES

    def awaited(self, pod: Pod) -> frozenset[str]:
        """Return the resources of plugins that a container asks for and does not have yet."""
        given = self.of(pod.uid)
        return frozenset(
            resource
            for container in pod.all_containers()
            for resource, amount in container.resources.limits.items()
            if resource in self.registered
            and amount.value
            and all(each.resource != resource for each in given.get(container.name, ()))
        )


class DeviceCheckpoint:
    """`kubelet_internal_checkpoint` of one kubelet, which is parsed only when it has changed.

    The kubelet's device manager replaces the file whenever a container got devices. Read is what
    says where the devices are. The checksum is not compared: the file is never half written (it is
    renamed into its place), and a kubelet that adds a field to it computes the sum in another way.
    `own` is the resource of which the agent itself is the plugin, "" without one.
    """

    def __init__(self, directory: Path, own: str = "") -> None:
        self.path = directory / FILE
        self._own = own
        self._known: tuple[tuple[int, int, int], CheckpointContent] | None = None

    def read(self) -> CheckpointContent:
        """Return what the file says now; raises `DeviceCheckpointError`.

        A kubelet without a file has given no device yet.
        """
        try:
            status = self.path.stat()
            # Of an older file than the content if the kubelet replaces it meanwhile: read again.
            identity = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._known is None or self._known[0] != identity:
                self._known = (identity, self._parsed(read_trusted(self.path, LONGEST)))
        except FileNotFoundError as error:
            if self.path.parent.is_dir():
                return CheckpointContent(_Data())
            raise DeviceCheckpointError(
                self.path.parent,
                "there is no such directory",
                "set agent.kubelet.directory to the kubelet's --root-dir",
            ) from error
        except UntrustedPathError as error:
            raise DeviceCheckpointError(self.path, str(error.risk), error.risk.remedy) from error
        except OSError as error:
            remedy = f"make it readable to the agent: ls -l {self.path}"
            raise DeviceCheckpointError(self.path, error.strerror or str(error), remedy) from error
        return self._known[1]

    def awaits(self, pod: Pod) -> bool:
        """Return whether the kubelet has yet to give a pod devices; it does so when it admits it.

        The agent's own resource does not count: it is given while the agent decides. Of a file that
        cannot be read nothing is awaited.
        """
        try:
            return bool(self.read().awaited(pod) - {self._own})
        except DeviceCheckpointError:
            return False

    def _parsed(self, content: bytes) -> CheckpointContent:
        try:
            return CheckpointContent(msgspec.json.decode(content, type=_Document).Data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            found = str(error) if content else "the file is empty"
            raise DeviceCheckpointError(self.path, found, _FORMAT) from error


class PodResourcesClient:
    """Asks the kubelet's podresources (v1); every call has a deadline and raises `CallError`.

    The kubelet's managers are off, so that its answers have devices alone, with their NUMA nodes.
    Asked are `Get` of one pod, and `List` with `GetAllocatableResources` for all.
    """

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
    found = {(pod.namespace, pod.name): _of_containers(pod.containers) for pod in pods}
    devices = sum(len(some) for given in found.values() for some in given.values())
    _limit(devices)
    return {name: given for name, given in found.items() if given}


def _claims(pods: Iterable[Message]) -> dict[tuple[str, str], Claims]:
    found = {
        (pod.namespace, pod.name): {
            each.name: tuple(each.dynamic_resources)
            for each in pod.containers
            if each.dynamic_resources
        }
        for pod in pods
    }
    _limit(sum(len(some) for claims in found.values() for some in claims.values()))
    return {name: claims for name, claims in found.items() if claims}


def _of_containers(containers: Iterable[Message]) -> dict[str, tuple[GivenDevice, ...]]:
    found = {each.name: _devices(each.devices) for each in containers}
    return {name: devices for name, devices in found.items() if devices}


def _devices(entries: Iterable[Message]) -> tuple[GivenDevice, ...]:
    """Return the devices of a list that has those of each resource by their NUMA nodes.

    A device of several nodes stands at each; a number that no node can have says nothing.
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


class InThread(Protocol):
    """Runs a blocking call beside the event loop."""

    def __call__(self, call: Callable[[], _Result], /) -> Awaitable[_Result]:
        """Return what the call returns."""
        ...


class KubeletDevices:
    """The devices of one kubelet; `conditions` says what of them cannot be found out.

    `listed` is the last answer about all pods, which stays while the kubelet does not answer: its
    pods keep their devices. `own` is the resource of which the agent itself is the plugin, "" for
    none: its devices are on no node, and are not the pod's.
    """

    def __init__(self, directory: Path, in_thread: InThread, own: str = "") -> None:
        self._checkpoint = DeviceCheckpoint(directory, own)
        self._own = own
        self._client = PodResourcesClient(directory / SOCKET)
        self._in_thread = in_thread
        self.listed: KubeletListing = NOT_LISTED
        self._unread = ""
        self._unlisted = ""

    @property
    def conditions(self) -> tuple[str, ...]:
        """What cannot be found out, a line each."""
        return tuple(filter(None, (self._unread, self._unlisted)))

    async def of(self, pod: Pod) -> GivenDevices:
        """Return the devices of a pod, by container; none where they cannot be found out.

        The file is behind while the kubelet admits a pod: a resource that a plugin provides and
        that the file lacks is asked for.
        """
        return _without(self._own, await self._of(pod))

    async def _of(self, pod: Pod) -> GivenDevices:
        try:
            content = await self._in_thread(self._checkpoint.read)
        except DeviceCheckpointError as error:
            return await self._asked(pod, str(error))
        self._note_read("")
        given = content.of(pod.uid)
        if not content.awaited(pod) - {self._own}:
            return given
        try:
            return await self._client.of(pod.namespace, pod.name) or given
        except CallError:  # what the file has is all that is known
            return given

    async def follow(self, clock: Clock) -> None:
        """Ask for the devices of all pods again and again, until cancelled."""
        while True:
            await self.refresh()
            await clock.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Ask for the devices of all pods once."""
        try:
            listed = await self._client.all()
        except CallError as error:
            self._note_listed(str(error))
            return
        self._note_listed("")
        listed = _listed_without(self._own, listed)
        if listed != self.listed:
            self.listed = listed

    async def _asked(self, pod: Pod, why: str) -> GivenDevices:
        try:
            given = await self._client.of(pod.namespace, pod.name)
        except CallError as error:
            self._note_read(f"{why}; podresources of the kubelet: {error}")
            return NO_GIVEN_DEVICES
        self._note_read("")
        return given

    def _note_read(self, why: str) -> None:
        if why and not self._unread:
            log.warning("devices of the kubelet not known", why=why)
        self._unread = (
            f"the devices of the kubelet's plugins are not known, so that CPUs and memory of new "
            f"pods may be far from them: {why}"
            if why
            else ""
        )

    def _note_listed(self, why: str) -> None:
        if why and not self._unlisted:
            log.warning("devices of the kubelet not listed", why=why)
        self._unlisted = (
            f"the map, podresources and the node topology may lack devices of the kubelet's "
            f"plugins: the kubelet's podresources do not answer: {why}; see that the kubelet runs: "
            "systemctl status kubelet"
            if why
            else ""
        )


def _listed_without(own: str, listed: KubeletListing) -> KubeletListing:
    """Return a list without the devices of a resource, and without pods that have no other."""
    pods = {name: _without(own, given) for name, given in listed.pods.items()}
    return KubeletListing(
        {name: given for name, given in pods.items() if given},
        tuple(each for each in listed.allocatable if each.resource != own),
        listed.claims,
    )


def _without(own: str, given: GivenDevices) -> GivenDevices:
    """Return the devices without those of a resource, and without containers that have no other."""
    if not own:
        return given
    rest = {
        name: tuple(each for each in devices if each.resource != own)
        for name, devices in given.items()
    }
    return {name: devices for name, devices in rest.items() if devices}
