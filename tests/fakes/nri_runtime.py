"""A container runtime as a plugin sees it through NRI: registers, configures, synchronizes, asks.

It reads as ttrpc in Go does, with a buffer of 4 KiB, and fails where that fails.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agent.cluster.nri.events import NriEvent
from agent.cluster.nri.messages import PLUGIN, RUNTIME, V1ALPHA1
from agent.rpc.messages import Messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PLUGIN_CONNECTION: Final = 1
RUNTIME_CONNECTION: Final = 2
REQUEST: Final = 1
RESPONSE: Final = 2
_BUFFER: Final = 4096
_LONGEST: Final = 4 << 20

TTRPC: Final = Messages(
    "ttrpc.fake",
    {
        "Request": {
            "service": (1, "string"),
            "method": (2, "string"),
            "payload": (3, "bytes"),
            "timeout_nano": (4, "int64"),
        },
        "Status": {"code": (1, "int32"), "message": (2, "string")},
        "Response": {"status": (1, "Status"), "payload": (2, "bytes")},
    },
)
#: The events that NRI 0.6 to 0.8 sends by methods of their own; all else is a StateChange.
OWN_METHODS_BEFORE_0_12: Final = frozenset(
    {NriEvent.CREATE_CONTAINER, NriEvent.UPDATE_CONTAINER, NriEvent.STOP_CONTAINER}
)


class RuntimeFailureError(AssertionError):
    """The plugin did what a runtime cannot read or does not allow."""


@dataclass(frozen=True)
class Reply:
    code: int
    message: str
    payload: bytes

    def as_message(self, kind: str) -> Any:  # noqa: ANN401  # as agent.rpc.Message
        assert not self.code, f"{self.code}: {self.message}"
        return V1ALPHA1[kind].FromString(self.payload)


def ttrpc_message(stream: int, kind: int, body: bytes) -> bytes:
    return struct.pack(">IIBB", len(body), stream, kind, 0) + body


def frame(connection: int, data: bytes) -> bytes:
    return struct.pack(">II", connection, len(data)) + data


@dataclass
class PluginConnection:
    runtime: FakeRuntime
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    registered: Any = None
    events: int = 0
    #: The updates that the plugin asked for in its answer to Synchronize.
    repairs: list[Any] = field(default_factory=list)
    synchronized: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""
    _stream: int = -1
    _calls: dict[int, asyncio.Future[Reply]] = field(default_factory=dict)

    async def call(self, method: str, message: Any = None, *, service: str = PLUGIN) -> Reply:  # noqa: ANN401  # a message
        self._stream += 2
        stream = self._stream
        payload = b"" if message is None else message.SerializeToString()
        request = TTRPC["Request"](
            service=service,
            method=method,
            payload=payload,
            timeout_nano=self.runtime.request_timeout_ms * 1_000_000,
        )
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        body = request.SerializeToString()
        await self.send(PLUGIN_CONNECTION, ttrpc_message(stream, REQUEST, body))
        return await answer

    async def event(
        self,
        event: NriEvent,
        pod: dict[str, Any],
        container: dict[str, Any] | None = None,
        asked: dict[str, Any] | None = None,
    ) -> Reply:
        """Send an event as this version of NRI does; `asked` are the resources of an update."""
        if self.runtime.own_methods or event in OWN_METHODS_BEFORE_0_12:
            kind = "PodEvent" if container is None else "ContainerEvent"
            resources = {} if asked is None else {"linux_resources": asked}
            if resources:
                kind = "UpdateContainerRequest"
            message = V1ALPHA1[kind](pod=pod, **resources)
            method = event.method
        else:
            message = V1ALPHA1["StateChangeEvent"](event=event, pod=pod)
            method = "StateChange"
        if container is not None:
            message.container.CopyFrom(V1ALPHA1["Container"](**container))
        return await self.call(method, message)

    async def send(self, connection: int, message: bytes) -> None:
        """Send bytes of a connection, in frames as Go's buffered writer makes them."""
        for data in (message[:_BUFFER], message[_BUFFER:]):
            if data:
                self.writer.write(frame(connection, data))
        await self.writer.drain()

    async def read(self) -> None:
        try:
            while True:
                await self._read_message()
        except (asyncio.IncompleteReadError, OSError):
            pass
        except RuntimeFailureError as error:
            self.failure = str(error)
            raise
        finally:
            self.closed.set()
            self.writer.transport.abort()
            for call in self._calls.values():
                if not call.done():
                    call.set_exception(ConnectionError("the plugin is gone"))
                    call.exception()

    async def _read_message(self) -> None:
        connection, data = await self._read_frame(_BUFFER)
        length, stream, kind, _flags = struct.unpack(">IIBB", data[:10])
        if length > _LONGEST:
            raise RuntimeFailureError(f"a message of {length} bytes")
        body = data[10:]
        while len(body) < length:
            # The rest is read into a buffer of its size, or into the reader's if that is larger.
            other, data = await self._read_frame(max(_BUFFER, length - len(body)))
            assert other == connection, "another message before the end of one"
            body += data
        assert len(body) == length, "a frame with more than one message"
        if connection == PLUGIN_CONNECTION:
            assert kind == RESPONSE
            response = TTRPC["Response"].FromString(body)
            reply = Reply(response.status.code, response.status.message, response.payload)
            self._calls.pop(stream).set_result(reply)
        else:
            assert kind == REQUEST
            await self._serve(stream, TTRPC["Request"].FromString(body))

    async def _read_frame(self, longest: int) -> tuple[int, bytes]:
        header = await self.reader.readexactly(8)
        connection, length = struct.unpack(">II", header)
        if length > longest:
            raise RuntimeFailureError(f"ENOMEM: a frame of {length} bytes, room for {longest}")
        return connection, await self.reader.readexactly(length)

    async def _serve(self, stream: int, request: Any) -> None:  # noqa: ANN401  # a ttrpc request
        assert request.service == RUNTIME
        response = TTRPC["Response"]()
        if request.method == "RegisterPlugin":
            self.registered = V1ALPHA1["RegisterPluginRequest"].FromString(request.payload)
            if self.runtime.registration_error:
                response.status.code = 2
                response.status.message = self.runtime.registration_error
        else:
            raise RuntimeFailureError(f"{request.method} is not a method of a runtime")
        message = ttrpc_message(stream, RESPONSE, response.SerializeToString())
        if request.method != "RegisterPlugin":
            await self.send(RUNTIME_CONNECTION, message)
            return
        starting = self.runtime.start_plugin(self)
        if self.runtime.configures_first:
            self.runtime.background(self._answer_late(starting, message))
        else:
            await self.send(RUNTIME_CONNECTION, message)
            if not self.runtime.registration_error:
                self.runtime.background(starting)
            else:
                starting.close()

    async def _answer_late(self, starting: Any, message: bytes) -> None:  # noqa: ANN401  # a coroutine
        await starting
        await self.send(RUNTIME_CONNECTION, message)


@dataclass
class FakeRuntime:
    """A runtime that serves an NRI socket; `own_methods` is what NRI 0.12 has."""

    socket: Path
    name: str = "containerd"
    version: str = "2.3.4"
    nri_version: str = "v0.12.0"
    own_methods: bool = True
    request_timeout_ms: int = 2000
    known_events: int = 0x3FFF
    configures_first: bool = False
    registration_error: str = ""
    synchronizes: bool = True
    #: What Synchronize sends, and how many pods and containers fit in one part of it.
    pods: list[dict[str, Any]] = field(default_factory=list)
    containers: list[dict[str, Any]] = field(default_factory=list)
    part: int = 1_000_000
    plugins: list[PluginConnection] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self.socket)

    async def stop(self) -> None:
        """End as a runtime does that is stopped: the socket stays, and nothing answers on it."""
        assert self._server is not None
        self._server.close()
        for plugin in self.plugins:
            plugin.writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, AssertionError):
                raise outcome

    async def plugin(self, number: int = 0) -> PluginConnection:
        """Return the plugin that connected as number so much, once it is synchronized."""
        connection = await self.connection(number)
        await connection.synchronized.wait()
        return connection

    async def connection(self, number: int = 0) -> PluginConnection:
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.plugins) > number)
        return self.plugins[number]

    def background(self, work: Any) -> None:  # noqa: ANN401  # a coroutine
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

    async def start_plugin(self, plugin: PluginConnection) -> None:
        configured = await plugin.call(
            "Configure",
            V1ALPHA1["ConfigureRequest"](
                runtime_name=self.name,
                runtime_version=self.version,
                registration_timeout=5000,
                request_timeout=self.request_timeout_ms,
                NRI_version=self.nri_version,
            ),
        )
        plugin.events = configured.as_message("ConfigureResponse").events
        if plugin.events & ~self.known_events or not self.synchronizes:
            return  # as containerd 1.7: it logs an error, and keeps the connection
        await self._synchronize(plugin)
        plugin.synchronized.set()

    async def _synchronize(self, plugin: PluginConnection) -> None:
        pods, containers = list(self.pods), list(self.containers)
        while True:
            more = len(pods) > self.part or len(containers) > self.part
            request = V1ALPHA1["SynchronizeRequest"](
                pods=pods[: self.part], containers=containers[: self.part], more=more
            )
            del pods[: self.part], containers[: self.part]
            reply = await plugin.call("Synchronize", request)
            answer = reply.as_message("SynchronizeResponse")
            if not more:
                plugin.repairs = list(answer.update)
                return
            if answer.update or not answer.more:
                raise RuntimeFailureError("the plugin does not handle split sync requests")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plugin = PluginConnection(self, reader, writer)
        async with self.arrived:
            self.plugins.append(plugin)
            self.arrived.notify_all()
        self.background(plugin.read())


@asynccontextmanager
async def running(*runtimes: FakeRuntime) -> AsyncIterator[None]:
    for runtime in runtimes:
        await runtime.start()
    try:
        yield
    finally:
        for runtime in runtimes:
            await runtime.stop()
