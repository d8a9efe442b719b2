"""The bytes on the socket of NRI: frames of two connections, and the messages of ttrpc in them.

In: the bytes of the socket. Out: messages, and the bytes of messages that are sent. After a
`NriProtocolError` nothing more can be read: nothing marks where the next frame begins.

NRI multiplexes two connections over one socket. A frame is the id of the connection and the length
(big-endian, four bytes each), and then so many bytes of the connection's stream. A message of ttrpc
is a header of ten bytes (length, stream, type, flags) and a body; frames may divide it anywhere.
Only unary calls are spoken: one request, one response on the same stream. Sources:
github.com/containerd/nri, pkg/net/multiplex; github.com/containerd/ttrpc, PROTOCOL.md.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The connection on which the runtime calls the plugin.
PLUGIN_SERVICE: Final = 1
#: The connection on which the plugin calls the runtime.
RUNTIME_SERVICE: Final = 2

#: The length of the header of a ttrpc message.
MESSAGE_HEADER: Final = 10
#: The longest body in bytes that a runtime reads.
LONGEST_SENT: Final = 4 << 20
#: The longest body that is read. Since NRI 0.7 a runtime divides what has more than 4 MiB; NRI 0.6
#: sends all pods in one message.
LONGEST_RECEIVED: Final = 16 << 20

_MUX_HEADER: Final = struct.Struct(">II")
_LONGEST_FRAME: Final = LONGEST_RECEIVED + MESSAGE_HEADER
#: The size of the buffer with which the runtime reads the beginning of a message; a longer frame
#: fails there with ENOMEM. It reads the rest of the message in one piece (bufio.Reader below
#: ttrpc's channel). More than 256 unread frames end the connection, so the rest is one frame.
_FIRST_FRAME: Final = 4096

REQUEST: Final = 1
RESPONSE: Final = 2
_UNARY: Final = 0
#: "No more data expected": what a unary request is anyhow.
_REMOTE_CLOSED: Final = 1
_HEADER: Final = struct.Struct(">IIBB")


class NriProtocolError(Exception):
    """The runtime sent what the protocol does not allow; nothing more can be read from it."""


class TtrpcMessage(Struct, frozen=True):
    """One message."""

    stream: int
    #: `REQUEST` or `RESPONSE`.
    type: int
    body: bytes


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
    if kind not in (REQUEST, RESPONSE):
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
