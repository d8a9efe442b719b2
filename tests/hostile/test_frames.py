"""Reading frames of NRI takes no longer than they are long, however they are cut."""

from __future__ import annotations

import struct

import pytest

from agent.cluster.nri.framing import LONGEST_RECEIVED, Demultiplexer, MessageReader
from tests.fakes.nri_runtime import frame, ttrpc_message
from tests.hostile.growth import demand_quick

pytestmark = pytest.mark.nightly


def read(pieces: list[bytes]) -> int:
    frames, messages = Demultiplexer(), MessageReader()
    return sum(1 for data in pieces for _, piece in frames.feed(data) for _ in messages.feed(piece))


def cut(data: bytes, length: int) -> list[bytes]:
    return [data[at : at + length] for at in range(0, len(data), length)]


def test_one_message_in_frames_of_one_byte_is_linear() -> None:
    def make(length: int) -> list[bytes]:
        message = ttrpc_message(1, 1, bytes(length // 9))
        return [b"".join(frame(1, bytes((byte,))) for byte in message)]

    demand_quick(read, make)


def test_one_message_that_arrives_byte_by_byte_is_linear() -> None:
    def make(length: int) -> list[bytes]:
        return cut(frame(1, ttrpc_message(1, 1, bytes(length))), 1)

    demand_quick(read, make, longest=1 << 19)


def test_many_messages_in_one_frame_are_linear() -> None:
    empty = ttrpc_message(1, 1, b"")
    demand_quick(read, lambda length: cut(frame(1, empty * (length // len(empty))), 1 << 18))


def test_the_longest_message_in_many_parts_is_linear() -> None:
    def make(length: int) -> list[bytes]:
        head = struct.pack(">IIBB", length, 1, 1, 0)
        return [frame(1, head), *(frame(1, part) for part in cut(bytes(length), 100))]

    demand_quick(read, make, longest=LONGEST_RECEIVED)


def test_empty_frames_are_linear() -> None:
    demand_quick(read, lambda length: cut(frame(2, b"") * (length // 8), 1000))
