"""ttrpc over the two connections of NRI: the plugin's service, and calls of the runtime's.

A message is a header of ten bytes (length, stream, type, flags) and a body. Only unary calls are
spoken: one Request, one Response on the same stream. Source: github.com/containerd/ttrpc,
PROTOCOL.md.

NRI multiplexes the connections over one socket. A frame is two big-endian numbers of four bytes,
the id of the connection and the length, and then so many bytes of the connection's stream; there is
no other mark, so that after one wrong frame nothing can be read. Where frames begin says nothing
about where messages begin. Source: github.com/containerd/nri, pkg/net/multiplex.
"""

from __future__ import annotations

import asyncio
import struct
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import structlog
from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.rpc import Messages
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

    from agent.rpc import Message, MessageClass

#: The connection on which the runtime calls the plugin.
PLUGIN_SERVICE: Final = 1
#: The connection on which the plugin calls the runtime.
RUNTIME_SERVICE: Final = 2

#: The length of the header of a ttrpc message.
MESSAGE_HEADER: Final = 10
#: The longest body in bytes that a runtime reads.
LONGEST_SENT: Final = 4 << 20
#: The longest body that is read. Since NRI 0.7 a runtime divides what has more than 4 MiB, NRI 0.6
#: sends all pods in one message, in frames of up to 16 MiB.
LONGEST_RECEIVED: Final = 16 << 20

_MUX_HEADER: Final = struct.Struct(">II")
_LONGEST_FRAME: Final = LONGEST_RECEIVED + MESSAGE_HEADER
#: The runtime reads the beginning of a message with a buffer of so many bytes, and fails with
#: ENOMEM if the frame that it meets there is longer; it reads the rest with one as long as the rest
#: (bufio.Reader below ttrpc's channel). More than 256 unread frames end the connection, so that
#: many short frames are no alternative.
_FIRST_FRAME: Final = 4096

log = structlog.get_logger(__name__)

#: The plugin answers so many requests at a time; the others wait in the socket. An error in their
#: place would be the runtime's error of the pod. Creations of containers may wait for a decision
#: each, and are not to keep others from being answered.
MOST_REQUESTS: Final = 64
#: How long the runtime may leave what it was sent unread, in seconds.
WRITE_SECONDS: Final = 5.0
#: So many characters of what a runtime says are repeated.
LONGEST_WORDS: Final = 300

_REQUEST: Final = 1
_RESPONSE: Final = 2
_UNARY: Final = 0
#: "No more data expected": what a unary request is anyhow.
_REMOTE_CLOSED: Final = 1
_HEADER: Final = struct.Struct(">IIBB")
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


class NriProtocolError(Exception):
    """The runtime sent what the protocol does not allow; nothing more can be read from it."""


class Demultiplexer:
    """Takes the bytes of a socket apart; it stores no more than the header of one frame."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield the connection and the bytes of each piece of its stream, in their order.

        Raises `NriProtocolError` after the last piece that is sound.
        """
        view = memoryview(data)
        at = 0
        while at < len(view):
            if self._left:
                piece = view[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                yield self._connection, piece
                continue
            part = view[at : at + _MUX_HEADER.size - len(self._header)]
            at += len(part)
            self._header += part
            if len(self._header) == _MUX_HEADER.size:
                self._begin_frame()

    def _begin_frame(self) -> None:
        connection, length = _MUX_HEADER.unpack(self._header)
        if connection not in (PLUGIN_SERVICE, RUNTIME_SERVICE):
            raise NriProtocolError(f"a frame of connection {connection}; there are only 1 and 2")
        if length > _LONGEST_FRAME:
            raise NriProtocolError(
                f"a frame of {length} bytes; the longest has {_LONGEST_FRAME} bytes"
            )
        self._header.clear()
        self._connection, self._left = connection, length


def framed(connection: int, message: bytes) -> bytes:
    """Return the frames of one ttrpc message, its header included, so that a runtime can read it.

    `message` has at most `MESSAGE_HEADER + LONGEST_SENT` bytes.
    """
    first, rest = message[:_FIRST_FRAME], message[_FIRST_FRAME:]
    frames = _MUX_HEADER.pack(connection, len(first)) + first
    if rest:
        frames += _MUX_HEADER.pack(connection, len(rest)) + rest
    return frames


class TtrpcError(Exception):
    """A call ended with a status: `code` is gRPC's name of the status, `message` what was said."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class LateError(Exception):
    """Work did not end by its deadline (not a `TimeoutError`, which the work itself may raise)."""


class TtrpcMessage(Struct, frozen=True):
    """One message: the type is that of its header."""

    stream: int
    type: int
    body: bytes


class RuntimeCall(Struct, frozen=True, eq=False):
    """A request of the runtime; `seconds` are until its deadline, 0 if it gave none.

    `received` is when its last byte was read, in seconds of `time.perf_counter`.
    """

    method: str
    payload: bytes
    seconds: float
    received: float


#: Answers a request with the bytes of a message. `TtrpcError` becomes the status of the answer,
#: `NriProtocolError` ends the connection; nothing else may be raised.
Answer: TypeAlias = "Callable[[RuntimeCall], Awaitable[bytes]]"


class MessageReader:
    """Puts the messages of one connection together; it stores one incomplete message at most."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: memoryview | bytes) -> Iterator[TtrpcMessage]:
        """Yield the messages that are complete now.

        Raises `NriProtocolError` after the last one that is sound.
        """
        self._buffer += piece
        at = 0
        while len(self._buffer) - at >= MESSAGE_HEADER:
            length, stream, kind, flags = _HEADER.unpack_from(self._buffer, at)
            _check_header(length, stream, kind, flags)
            body = at + MESSAGE_HEADER
            if len(self._buffer) < body + length:
                break
            with memoryview(self._buffer) as view:
                message = TtrpcMessage(stream, kind, bytes(view[body : body + length]))
            at = body + length
            yield message
        del self._buffer[:at]


def _check_header(length: int, stream: int, kind: int, flags: int) -> None:
    if length > LONGEST_RECEIVED:
        raise NriProtocolError(
            f"a message of {length} bytes; the longest has {LONGEST_RECEIVED} bytes"
        )
    if kind not in (_REQUEST, _RESPONSE):
        raise NriProtocolError(f"a message of type {kind}; only unary calls are spoken")
    if flags not in (_UNARY, _REMOTE_CLOSED):
        raise NriProtocolError(f"a message with flags {flags:#x}; only unary calls are spoken")
    if stream % 2 == 0:
        raise NriProtocolError(f"a message of stream {stream}; streams have odd numbers")


def encoded(stream: int, kind: int, body: bytes) -> bytes:
    """Return a message with its header; raises `NriProtocolError` if the body is too long."""
    if len(body) > LONGEST_SENT:
        raise NriProtocolError(
            f"a message of {len(body)} bytes; the longest has {LONGEST_SENT} bytes"
        )
    return _HEADER.pack(len(body), stream, kind, _UNARY) + body


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
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._stream = -1
        self._newest_request = 0
        self._share = asyncio.Semaphore(MOST_REQUESTS)
        self._answering: set[asyncio.Task[None]] = set()
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
        data = encoded(stream, _REQUEST, request.SerializeToString())
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
        if message.type != (_REQUEST if connection == PLUGIN_SERVICE else _RESPONSE):
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
            data = encoded(stream, _RESPONSE, response.SerializeToString())
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


async def within(seconds: float, work: Coroutine[None, None, ResultT]) -> ResultT:
    """Return what `work` returns; raises what it raises, or `LateError` after `seconds`.

    At the deadline the work is cancelled and left alone, so that work which ignores that does not
    delay its caller; what it raises then is logged. Raises `RuntimeError` if the work was cancelled
    from elsewhere.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
        if task.cancelled():
            raise RuntimeError("the work was cancelled")
        if task.done():
            return task.result()
    finally:
        # Also where the caller was cancelled while the work ended.
        task.add_done_callback(_retrieve if task.done() else _report_late)
        task.cancel()
    raise LateError


def _retrieve(task: asyncio.Task[ResultT]) -> None:
    """Take note of what work raised; asyncio would report it if its caller was cancelled."""
    if not task.cancelled():
        task.exception()


def _report_late(task: asyncio.Task[ResultT]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("NRI work failed after its deadline", exc_info=error)


async def _awaited(future: asyncio.Future[ResultT]) -> ResultT:
    return await future


def _parsed(kind: MessageClass, data: bytes) -> Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise NriProtocolError(f"a {kind.DESCRIPTOR.name} that is not protobuf") from error
