"""The kubelet's Pods API on a real socket, written with grpcio, that does as a test says.

Pods are the bytes of messages, so that a test can have the server send any.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import aio

from agent.cluster.kubelet.pods_api import CORE_V1, SERVICE, SOCKET, V1ALPHA1, EventType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from agent.rpc.calls import CallError

#: Ends a stream with an error.
_BROKEN: Final = object()


def amounts(text: str) -> list[dict[str, Any]]:
    """Return the entries of a map of quantities, of `cpu=2 memory=1Gi`."""
    pairs = (pair.split("=", 1) for pair in text.split())
    return [{"key": key, "value": {"string": value}} for key, value in pairs]


def container(
    name: str = "main", asked: str = "cpu=2 memory=1Gi", **fields: object
) -> dict[str, Any]:
    """Return a container that requests what it is limited to."""
    both = {"requests": amounts(asked), "limits": amounts(asked)}
    return {"name": name, "resources": both, **fields}


def pod_message(  # noqa: PLR0913  # the fields of a pod
    uid: str,
    name: str = "web",
    *,
    phase: str = "Running",
    containers: tuple[dict[str, Any], ...] = (),
    init: tuple[dict[str, Any], ...] = (),
    pod_level: str = "",
    overhead: str = "",
    annotations: Mapping[str, str] | None = None,
    deleting: bool = False,
    running: bool = True,
) -> bytes:
    """Return the bytes of a v1.Pod; with one container if none is given."""
    spec: dict[str, Any] = {
        "containers": list(containers or (container(),)),
        "initContainers": list(init),
        "overhead": amounts(overhead),
    }
    if pod_level:
        both = amounts(pod_level)
        spec["resources"] = {"requests": both, "limits": both}
    metadata: dict[str, Any] = {
        "uid": uid,
        "name": name,
        "namespace": "shop",
        "annotations": dict(annotations or {}),
    }
    if deleting:
        metadata["deletionTimestamp"] = {"seconds": 1_700_000_000}
    state: dict[str, Any] = {"state": {"running": {}}} if running else {"state": {}}
    status = {"phase": phase, "containerStatuses": [state]}
    made = CORE_V1["Pod"](metadata=metadata, spec=spec, status=status)
    data: bytes = made.SerializeToString()
    return data


class FakePodsApi:
    """A server below a kubelet's directory; `pods` by uid are listed, and sent to each new watch.

    Those in `unannounced` are listed alone: a kubelet sends a pod once that has a status. A watch
    ends as soon as it has `longest_queue` events that were not read.
    `failing` is an error that all calls are answered with, `hanging`: none is answered. `synced`
    False: no INITIAL_SYNC_COMPLETE is sent. `raw_list` replaces the answer of ListPods. `calls` are
    the names of the methods in their order. While `lists_pass` is cleared, answers to ListPods, as
    of when they were asked for, are under way.
    """

    def __init__(self, directory: Path) -> None:
        self.socket = directory / SOCKET
        self.pods: dict[str, bytes] = {}
        self.unannounced: set[str] = set()
        self.longest_queue: float = math.inf
        self.failing: CallError | None = None
        self.hanging = False
        self.synced = True
        self.raw_list: bytes | None = None
        self.calls: list[str] = []
        self.lists_pass = asyncio.Event()
        self.lists_pass.set()
        self._streams: list[asyncio.Queue[object]] = []
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Serve the socket, which is made again."""
        self.socket.parent.mkdir(exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._server = aio.server(options=(("grpc.max_send_message_length", -1),))
        handlers = {
            "ListPods": grpc.unary_unary_rpc_method_handler(self._list),
            "GetPod": grpc.unary_unary_rpc_method_handler(self._get),
            "WatchPods": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        self._streams.clear()

    @property
    def watched(self) -> int:
        return len(self._streams)

    def add(self, uid: str, data: bytes) -> None:
        """List a pod from now on, and send that it was added."""
        self.pods[uid] = data
        self.send(EventType.ADDED, data)

    def delete(self, uid: str) -> None:
        """List a pod no longer, and send that it was deleted, with nothing but its identity."""
        whole = CORE_V1["Pod"].FromString(self.pods.pop(uid)).metadata
        metadata = {"uid": uid, "name": whole.name, "namespace": whole.namespace}
        self.send(EventType.DELETED, CORE_V1["Pod"](metadata=metadata).SerializeToString())

    def send(self, kind: EventType, data: bytes = b"") -> None:
        self.send_raw(V1ALPHA1["WatchPodsEvent"](type=int(kind), pod=data).SerializeToString())

    def send_raw(self, raw: bytes) -> None:
        for stream in self._streams:
            full = stream.qsize() >= self.longest_queue
            stream.put_nowait(_BROKEN if full else raw)

    def break_watches(self) -> None:
        """End all watches as the server does with one that is too slow."""
        for stream in self._streams:
            stream.put_nowait(_BROKEN)

    async def _answered(self, name: str, context: aio.ServicerContext) -> None:
        self.calls.append(name)
        if self.hanging:
            await asyncio.Event().wait()
        if self.failing is not None:
            await context.abort(grpc.StatusCode[self.failing.code], self.failing.message)

    async def _list(self, _request: bytes, context: aio.ServicerContext) -> bytes:
        await self._answered("ListPods", context)
        if self.raw_list is not None:
            return self.raw_list
        answer = V1ALPHA1["ListPodsResponse"](pods=list(self.pods.values()))
        data: bytes = answer.SerializeToString()
        await self.lists_pass.wait()
        return data

    async def _get(self, request: bytes, context: aio.ServicerContext) -> bytes:
        await self._answered("GetPod", context)
        uid = V1ALPHA1["GetPodRequest"].FromString(request).podUID
        if uid not in self.pods:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"pod with UID {uid} not found")
        data: bytes = V1ALPHA1["GetPodResponse"](pod=self.pods[uid]).SerializeToString()
        return data

    async def _watch(self, _request: bytes, context: aio.ServicerContext) -> AsyncIterator[bytes]:
        await self._answered("WatchPods", context)
        stream: asyncio.Queue[object] = asyncio.Queue()
        for data in (self.pods[uid] for uid in self.pods.keys() - self.unannounced):
            event = V1ALPHA1["WatchPodsEvent"](type=int(EventType.ADDED), pod=data)
            stream.put_nowait(event.SerializeToString())
        if self.synced:
            done = V1ALPHA1["WatchPodsEvent"](type=int(EventType.INITIAL_SYNC_COMPLETE))
            stream.put_nowait(done.SerializeToString())
        self._streams.append(stream)
        try:
            while isinstance(raw := await stream.get(), bytes):
                yield raw
            words = "watch client channel closed"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        finally:
            if stream in self._streams:
                self._streams.remove(stream)
