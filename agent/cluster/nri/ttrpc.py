"""Calls over the socket of NRI, in both directions: ttrpc with deadlines (`TtrpcLink`).

In: requests of the runtime, and calls of the plugin. Out: answers. Each call ends: with an answer,
a status (`TtrpcError`), at its deadline, or with the connection.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.cluster.nri.deadline import LateError, within
from agent.cluster.nri.framing import (
    PLUGIN_SERVICE,
    REQUEST,
    RESPONSE,
    RUNTIME_SERVICE,
    Demultiplexer,
    MessageReader,
    NriProtocolError,
    TtrpcMessage,
    encoded,
    framed,
)
from agent.rpc.messages import Messages
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent.rpc.messages import Message, MessageClass

#: The most requests that are answered at a time; the others wait in the socket, since an error in
#: their place would be the runtime's error of the pod. There are this many because the creation of
#: a container may wait for a decision, and others must not wait for it.
MOST_REQUESTS: Final = 64
#: How long the runtime may leave what it was sent unread, in seconds.
WRITE_SECONDS: Final = 5.0
#: The most characters of what a runtime says that are repeated.
LONGEST_WORDS: Final = 300
_CHUNK: Final = 1 << 18
#: gRPC's status codes that a plugin answers with or meets, by name.
STATUS_CODES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "CANCELLED": 1,
        "UNKNOWN": 2,
        "INVALID_ARGUMENT": 3,
        "DEADLINE_EXCEEDED": 4,
        "NOT_FOUND": 5,
        "ALREADY_EXISTS": 6,
        "PERMISSION_DENIED": 7,
        "RESOURCE_EXHAUSTED": 8,
        "FAILED_PRECONDITION": 9,
        "ABORTED": 10,
        "OUT_OF_RANGE": 11,
        "UNIMPLEMENTED": 12,
        "INTERNAL": 13,
        "UNAVAILABLE": 14,
        "DATA_LOSS": 15,
        "UNAUTHENTICATED": 16,
    }
)
_NAMES: Final = MappingProxyType({number: name for name, number in STATUS_CODES.items()})

_TTRPC: Final = Messages(
    "ttrpc",
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

ResultT = TypeVar("ResultT")


class TtrpcError(Exception):
    """A call ended with a status: `code` is gRPC's name of the status, `message` what was said."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class RuntimeCall(Struct, frozen=True, eq=False):
    """A request of the runtime."""

    method: str
    payload: bytes
    #: Until its deadline, 0 if it gave none.
    seconds: float
    #: When its last byte was read (`time.perf_counter`).
    received: float


#: Answers a request with the bytes of a message. `TtrpcError` becomes the status of the answer,
#: `NriProtocolError` ends the connection; nothing else may be raised.
Answer: TypeAlias = "Callable[[RuntimeCall], Awaitable[bytes]]"


class TtrpcLink:
    """Both services over one socket: answers the requests of a runtime, and calls it.

    `service` is the plugin's, to which requests are addressed. `written` is called with a request
    once its answer is written. The streams are closed by the caller, after `run` has ended.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        service: str,
        answer: Answer,
        written: Callable[[RuntimeCall], None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._service = service
        self._answer = answer
        self._written = written
        #: The calls of the runtime that are not answered, by stream, and the newest stream.
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._stream = -1
        #: The newest stream of the runtime's requests.
        self._newest_request = 0
        self._share = asyncio.Semaphore(MOST_REQUESTS)
        self._answering: set[asyncio.Task[None]] = set()
        #: Why a task beside `run` ended the connection.
        self._violation: NriProtocolError | OSError | None = None

    async def run(self) -> None:
        """Read until the runtime closes the socket.

        Raises `NriProtocolError` if the protocol was violated, `OSError` if the socket failed. All
        calls under way fail, and all answers not given yet are cancelled.
        """
        frames = Demultiplexer()
        messages = {PLUGIN_SERVICE: MessageReader(), RUNTIME_SERVICE: MessageReader()}
        try:
            while data := await self._reader.read(_CHUNK):
                for connection, piece in frames.feed(data):
                    for message in messages[connection].feed(piece):
                        await self._receive(connection, message)
        except OSError:
            if self._violation is None:
                raise
        finally:
            await self._end()
        if self._violation is not None:
            raise self._violation

    async def call(self, service: str, method: str, payload: bytes, seconds: float) -> bytes:
        """Return the payload of a response of the runtime; raises `TtrpcError`.

        An answer that comes after `seconds` is ignored. Raises `NriProtocolError` if the payload
        does not fit in a message.
        """
        self._stream += 2
        stream = self._stream
        request = _TTRPC["Request"](
            service=service, method=method, payload=payload, timeout_nano=int(seconds * 1e9)
        )
        data = encoded(stream, REQUEST, request.SerializeToString())
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        try:
            await self._send(RUNTIME_SERVICE, data)
            response = await within(seconds, _awaited(answer))
        except LateError as error:
            text = f"{method} was not answered within {seconds:g} s"
            raise TtrpcError("DEADLINE_EXCEEDED", text) from error
        except OSError as error:
            raise TtrpcError("UNAVAILABLE", f"{method} could not be sent: {error}") from error
        finally:
            del self._calls[stream]
        if response.status.code:
            code: int = response.status.code
            raise TtrpcError(_NAMES.get(code, f"status {code}"), words(response.status.message))
        result: bytes = response.payload
        return result

    async def _receive(self, connection: int, message: TtrpcMessage) -> None:
        if message.type != (REQUEST if connection == PLUGIN_SERVICE else RESPONSE):
            raise NriProtocolError(f"a message of type {message.type} on connection {connection}")
        if connection == RUNTIME_SERVICE:
            self._take_response(message)
            return
        if message.stream <= self._newest_request:
            raise NriProtocolError(
                f"a request of stream {message.stream} after {self._newest_request}"
            )
        self._newest_request = message.stream
        received = perf_counter()
        request = _parsed(_TTRPC["Request"], message.body)
        await self._share.acquire()
        task = asyncio.create_task(self._respond(message.stream, request, received))
        self._answering.add(task)
        task.add_done_callback(self._answered)

    def _take_response(self, message: TtrpcMessage) -> None:
        if message.stream > self._stream:
            raise NriProtocolError(f"a response of stream {message.stream}, which was not opened")
        response = _parsed(_TTRPC["Response"], message.body)
        call = self._calls.get(message.stream)
        if call is not None and not call.done():
            call.set_result(response)

    async def _respond(self, stream: int, request: Message, received: float) -> None:
        seconds = max(0.0, request.timeout_nano / 1e9)
        call = RuntimeCall(request.method, request.payload, seconds, received)
        try:
            response = await self._answered_by(request.service, call)
            data = encoded(stream, RESPONSE, response.SerializeToString())
            await self._send(PLUGIN_SERVICE, data)
        except (NriProtocolError, OSError) as error:
            self._break(error)
        else:
            self._written(call)

    async def _answered_by(self, service: str, call: RuntimeCall) -> Message:
        if service != self._service:
            return _status(TtrpcError("UNIMPLEMENTED", f"service {words(service)}"))
        try:
            payload = await self._answer(call)
        except TtrpcError as error:
            return _status(error)
        return _TTRPC["Response"](payload=payload)

    async def _send(self, connection: int, message: bytes) -> None:
        if self._writer.is_closing():  # asyncio would log each further message
            raise ConnectionResetError("the runtime closed the connection")
        self._writer.write(framed(connection, message))
        try:
            await within(WRITE_SECONDS, self._writer.drain())
        except LateError as error:
            raise OSError(f"the runtime read nothing for {WRITE_SECONDS:g} s") from error

    def _break(self, error: NriProtocolError | OSError) -> None:
        """End the connection from a task beside `run`, which raises the error."""
        if self._violation is None:
            self._violation = error
        self._writer.transport.abort()

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        self._share.release()

    async def _end(self) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(TtrpcError("UNAVAILABLE", "the connection ended"))
        tasks = tuple(self._answering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def words(text: str) -> str:
    """Return a runtime's words so that they fit in a line of a log and of a terminal."""
    return printable(text, LONGEST_WORDS)


def _status(error: TtrpcError) -> Message:
    response = _TTRPC["Response"]()
    response.status.code = STATUS_CODES[error.code]
    # What came from a file name may not be Unicode.
    response.status.message = error.message.encode(errors="replace").decode()
    return response


async def _awaited(future: asyncio.Future[ResultT]) -> ResultT:
    return await future


def _parsed(kind: MessageClass, data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise NriProtocolError(f"a {kind.DESCRIPTOR.name} that is not protobuf") from error
