"""Client of the kubelet's Pods API (KEP-4188, `v1alpha1.Pods`), on a socket below its directory.

Seen on kubelet v1.36.2: the gate is `PodsAPI`; the socket is made again at each start; every pod is
listed before its admission and watched after it; INITIAL_SYNC_COMPLETE may come before the kubelet
knows any pod. Of a pod's message (`k8s.io.api.core.v1`, numbers as in `generated.proto` of v1.36)
those fields are declared that a pod is read from; all others are passed over.
"""

from __future__ import annotations

from contextlib import aclosing
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.cluster.kubelet.pods import (
    PodsUnavailableError,
    ReportedPod,
    ReportedPods,
    UnreadablePodError,
    checked_uid,
    is_terminal,
)
from agent.pods.model import LONGEST_NAME
from agent.rpc.calls import CallError
from agent.rpc.client import Client
from agent.rpc.messages import MAP, Messages, RawMessage
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from pathlib import Path

    from agent.rpc.client import SocketClient
    from agent.rpc.messages import Message
    from agent.yaml import Plain

CORE_V1: Final = Messages(
    "k8s.io.api.core.v1",
    {
        "Pod": {
            "metadata": (1, "ObjectMeta"),
            "spec": (2, "PodSpec"),
            "status": (3, "PodStatus"),
        },
        "ObjectMeta": {
            "name": (1, "string"),
            "namespace": (3, "string"),
            "uid": (5, "string"),
            "deletionTimestamp": (9, "Time"),
            "annotations": (12, MAP),
        },
        "Time": {"seconds": (1, "int64")},
        "PodSpec": {
            "containers": (2, "repeated Container"),
            "initContainers": (20, "repeated Container"),
            "overhead": (32, "repeated Amount"),
            "resources": (40, "ResourceRequirements"),
        },
        "Container": {
            "name": (1, "string"),
            "resources": (8, "ResourceRequirements"),
            "restartPolicy": (24, "string"),
        },
        "ResourceRequirements": {
            "limits": (1, "repeated Amount"),
            "requests": (2, "repeated Amount"),
        },
        # An entry of a map of quantities, as it stands on the wire.
        "Amount": {"key": (1, "string"), "value": (2, "Quantity")},
        "Quantity": {"string": (1, "string")},
        "PodStatus": {
            "phase": (1, "string"),
            "containerStatuses": (8, "repeated ContainerStatus"),
            "initContainerStatuses": (10, "repeated ContainerStatus"),
        },
        "ContainerStatus": {"state": (2, "ContainerState")},
        "ContainerState": {"running": (2, "ContainerStateRunning")},
        "ContainerStateRunning": {},
    },
)

SERVICE: Final = "v1alpha1.Pods"
#: The socket below the kubelet's directory.
SOCKET: Final = "pods-api/pods-api.sock"
#: No kubelet runs as many pods; more in one list are rejected.
MOST_PODS: Final = 10_000
#: The most characters of the kubelet's own words in an error.
_LONGEST_WORDS: Final = 500

V1ALPHA1: Final = Messages(
    "v1alpha1",
    {
        "WatchPodsRequest": {},
        "WatchPodsEvent": {"type": (1, "int32"), "pod": (2, "bytes")},
        "ListPodsRequest": {},
        "ListPodsResponse": {"pods": (1, "repeated bytes")},
        "GetPodRequest": {"podUID": (1, "string")},
        "GetPodResponse": {"pod": (1, "bytes")},
    },
)


def read_message(data: bytes) -> ReportedPod:
    """Return one v1.Pod in protobuf; raises `UnreadablePodError`."""
    try:
        pod = CORE_V1["Pod"].FromString(data)
    except DecodeError as error:
        raise UnreadablePodError(f"it is not a pod ({error})") from error
    status = pod.status
    return ReportedPod(
        uid=checked_uid(pod.metadata.uid),
        name=printable(pod.metadata.name, LONGEST_NAME),
        namespace=printable(pod.metadata.namespace, LONGEST_NAME),
        specification=_specification(pod),
        terminal=is_terminal(status.phase),
        deleting=pod.metadata.HasField("deletionTimestamp"),
        running=any(
            each.state.HasField("running")
            for each in (*status.containerStatuses, *status.initContainerStatuses)
        ),
    )


def read_messages(pods: Iterable[bytes]) -> ReportedPods:
    """Return the pods of an answer; one that cannot be read does not affect the others."""
    read, unreadable = list[ReportedPod](), list[UnreadablePodError]()
    for data in pods:
        try:
            read.append(read_message(data))
        except UnreadablePodError as error:
            unreadable.append(error)
    return ReportedPods(tuple(read), tuple(unreadable))


def _specification(pod: Message) -> Plain:
    """Return what a manifest of the pod would say; a field with its default is left out."""
    metadata, spec = pod.metadata, pod.spec
    stated: dict[str, Plain] = {
        "containers": [_container(each) for each in spec.containers],
        "initContainers": [_container(each) for each in spec.initContainers],
        "overhead": _amounts(spec.overhead),
    }
    if spec.HasField("resources"):
        stated["resources"] = _resources(spec.resources)
    named: dict[str, Plain] = {
        key: text for key in ("uid", "name", "namespace") if (text := getattr(metadata, key))
    }
    named["annotations"] = dict(metadata.annotations)
    return {"metadata": named, "spec": stated}


def _container(container: Message) -> Plain:
    stated: dict[str, Plain] = {
        "name": container.name,
        "resources": _resources(container.resources),
    }
    if container.restartPolicy:
        stated["restartPolicy"] = container.restartPolicy
    return stated


def _resources(resources: Message) -> Plain:
    return {"requests": _amounts(resources.requests), "limits": _amounts(resources.limits)}


def _amounts(amounts: Iterable[Message]) -> dict[str, Plain]:
    return {each.key: each.value.string for each in amounts}


class EventType(IntEnum):
    """What happened to a pod (`v1alpha1.EventType`); ADDED does not mean that it is new."""

    UNSPECIFIED = 0
    ADDED = 1
    MODIFIED = 2
    DELETED = 3
    INITIAL_SYNC_COMPLETE = 4


class PodEvent(Struct, frozen=True):
    """One event of a watch: the pod as it is now, or why it cannot be read; neither of a sync."""

    type: EventType
    pod: ReportedPod | None = None
    error: UnreadablePodError | None = None


def dial(socket: Path) -> SocketClient:
    """Return a client of a kubelet's socket."""
    return Client(socket, SERVICE)


class PodsApi:
    """The Pods API of one kubelet; its socket need not exist yet. Close it in the end."""

    def __init__(self, directory: Path, dial: Callable[[Path], SocketClient] = dial) -> None:
        self.socket = directory / SOCKET
        self.way = f"Pods API ({self.socket})"
        self._dial = dial
        self._client: SocketClient | None = None

    async def pods(self, seconds: float) -> ReportedPods:
        """Return all pods of the kubelet, those before their admission included.

        Raises `PodsUnavailableError`, also after `seconds`.
        """
        answer = await self._answer("ListPods", seconds)
        if len(answer.pods) > MOST_PODS:
            raise self._unavailable(f"it lists {len(answer.pods)} pods, more than {MOST_PODS}")
        return read_messages(answer.pods)

    async def pod(self, uid: str, seconds: float) -> ReportedPod | None:
        """Return one pod, None if the kubelet has no pod of that uid.

        Raises `UnreadablePodError`, and `PodsUnavailableError`, also after `seconds`.
        """
        try:
            answer = await self._answer("GetPod", seconds, podUID=uid)
        except PodsUnavailableError as error:
            if error.code == "NOT_FOUND":
                return None
            raise
        pod = read_message(answer.pod)
        if pod.uid != uid:
            raise UnreadablePodError(f"the kubelet answered with the pod of uid {pod.uid}", uid)
        return pod

    async def watch(self) -> AsyncGenerator[PodEvent, None]:
        """Yield the events of all pods, first ADDED of each that is known; runs until it breaks.

        Raises `PodsUnavailableError` when it breaks, also if the server ends it.
        """
        client = self._connected()
        stream = client.stream("WatchPods", V1ALPHA1["WatchPodsRequest"](), RawMessage)
        try:
            async with aclosing(stream):
                async for raw in stream:
                    yield self._event(raw)
        except CallError as error:
            raise self._unavailable(_words(error), error.code) from error
        raise self._unavailable("the kubelet ended the watch")

    async def close(self) -> None:
        """Close the connection; a later call opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _answer(self, method: str, seconds: float, **fields: str) -> Message:
        request = V1ALPHA1[f"{method}Request"](**fields)
        try:
            raw = await self._connected().call(method, request, RawMessage, seconds)
        except CallError as error:
            raise self._unavailable(_words(error), error.code) from error
        return self._decoded(f"{method}Response", raw)

    def _decoded(self, name: str, raw: bytes) -> Message:
        try:
            return V1ALPHA1[name].FromString(raw)
        except DecodeError as error:
            raise self._unavailable(f"its answer cannot be decoded as {name}") from error

    def _event(self, raw: bytes) -> PodEvent:
        event = self._decoded("WatchPodsEvent", raw)
        try:
            kind = EventType(event.type)
        except ValueError:  # of a later kubelet: the pod counts
            kind = EventType.MODIFIED
        if kind is EventType.INITIAL_SYNC_COMPLETE:
            return PodEvent(kind)
        try:
            return PodEvent(kind, read_message(event.pod))
        except UnreadablePodError as error:
            return PodEvent(kind, error=error)

    def _connected(self) -> SocketClient:
        """Return the client; raises `PodsUnavailableError` where there is no socket to connect."""
        if self._client is None:
            # Without a socket gRPC would try for the whole deadline.
            if not self.socket.exists():
                raise PodsUnavailableError(self.way, "there is no such socket", expected=True)
            self._client = self._dial(self.socket)
        return self._client

    def _unavailable(self, found: str, code: str = "") -> PodsUnavailableError:
        return PodsUnavailableError(self.way, found, code=code)


def _words(error: CallError) -> str:
    return printable(str(error), _LONGEST_WORDS)
