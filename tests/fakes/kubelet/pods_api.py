"""The kubelet's Pods API, `v1alpha1.Pods` (KEP-4188), as kubelet v1.36 serves it.

The first list after a start is sent as complete whether or not the kubelet has its pods by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from grpc import aio

from agent.rpc.messages import Messages
from tests.fakes.kubelet.core_v1 import encoded
from tests.fakes.kubelet.pods import Change

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agent.rpc.messages import Message
    from tests.fakes.kubelet.pods import Event, Pods

SERVICE: Final = "v1alpha1.Pods"
#: The socket below the kubelet's directory.
SOCKET: Final = "pods-api/pods-api.sock"

MESSAGES: Final = Messages(
    "v1alpha1",
    {
        "Empty": {},
        "WatchPodsEvent": {"type": (1, "int32"), "pod": (2, "bytes")},
        "ListPodsResponse": {"pods": (1, "repeated bytes")},
        "GetPodRequest": {"podUID": (1, "string")},
        "GetPodResponse": {"pod": (1, "bytes")},
    },
)


class PodsApi:
    """The server; every start makes its socket anew."""

    def __init__(self, directory: Path, pods: Pods) -> None:
        self._socket = directory / SOCKET
        self._pods = pods
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Serve the socket."""
        self._socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        self._server = aio.server()
        empty, asked = MESSAGES["Empty"], MESSAGES["GetPodRequest"]
        handlers = {
            "ListPods": grpc.unary_unary_rpc_method_handler(
                self._list,
                request_deserializer=empty.FromString,
                response_serializer=_serialized,
            ),
            "GetPod": grpc.unary_unary_rpc_method_handler(
                self._get,
                request_deserializer=asked.FromString,
                response_serializer=_serialized,
            ),
            "WatchPods": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=empty.FromString,
                response_serializer=_serialized,
            ),
        }
        service = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        """End all calls; the socket of a kubelet that ended stays."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _list(self, _request: Message, _context: aio.ServicerContext) -> Message:
        return MESSAGES["ListPodsResponse"](pods=[encoded(pod.document()) for pod in self._pods])

    async def _get(self, request: Message, context: aio.ServicerContext) -> Message:
        pod = self._pods.get(request.podUID)
        if pod is None:
            missing = f"pod with UID {request.podUID} not found"
            await context.abort(grpc.StatusCode.NOT_FOUND, missing)
            raise LookupError(missing)
        return MESSAGES["GetPodResponse"](pod=encoded(pod.document()))

    async def _watch(
        self, _request: Message, context: aio.ServicerContext
    ) -> AsyncIterator[Message]:
        watcher = self._pods.watch()
        try:
            while event := await watcher.next():
                yield _message(event)
        finally:
            self._pods.end_watch(watcher)
        closed = "watch client channel closed"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, closed)


def _message(event: Event) -> Message:
    change, pod = event
    if pod is None:
        return MESSAGES["WatchPodsEvent"](type=change)
    document = pod.document()
    if change is Change.DELETED:
        named = {name: document["metadata"][name] for name in ("name", "namespace", "uid")}
        document = {"metadata": named}
    return MESSAGES["WatchPodsEvent"](type=change, pod=encoded(document))


def _serialized(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return data
