"""Several logical connections over one socket, as NRI multiplexes them.

A frame is two big-endian numbers of four bytes, the id of the connection and the length, and then
so many bytes of the connection's stream; there is no other mark, so that after one wrong frame
nothing can be read. Where frames begin says nothing about where messages begin. Source:
github.com/containerd/nri, pkg/net/multiplex.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

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
#: The longest body that is read. Since NRI 0.7 a runtime divides what has more than 4 MiB, NRI 0.6
#: sends all pods in one message, in frames of up to 16 MiB.
LONGEST_RECEIVED: Final = 16 << 20

_HEADER: Final = struct.Struct(">II")
_LONGEST_FRAME: Final = LONGEST_RECEIVED + MESSAGE_HEADER
#: The runtime reads the beginning of a message with a buffer of so many bytes, and fails with
#: ENOMEM if the frame that it meets there is longer; it reads the rest with one as long as the rest
#: (bufio.Reader below ttrpc's channel). More than 256 unread frames end the connection, so that
#: many short frames are no alternative.
_FIRST_FRAME: Final = 4096


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
            part = view[at : at + _HEADER.size - len(self._header)]
            at += len(part)
            self._header += part
            if len(self._header) == _HEADER.size:
                self._begin_frame()

    def _begin_frame(self) -> None:
        connection, length = _HEADER.unpack(self._header)
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
    frames = _HEADER.pack(connection, len(first)) + first
    if rest:
        frames += _HEADER.pack(connection, len(rest)) + rest
    return frames
