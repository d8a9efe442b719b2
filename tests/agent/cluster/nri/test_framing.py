"""Frames and messages, however the bytes arrive, and whatever they are."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.nri.framing import (
    LONGEST_RECEIVED,
    LONGEST_SENT,
    PLUGIN_SERVICE,
    RUNTIME_SERVICE,
    Demultiplexer,
    MessageReader,
    NriProtocolError,
    TtrpcMessage,
    encoded,
    framed,
)
from tests.fakes.nri_runtime import frame, ttrpc_message

if TYPE_CHECKING:
    from collections.abc import Iterator

#: As Go's bufio reads by default.
GO_BUFFER = 4096

CONNECTIONS = st.sampled_from((PLUGIN_SERVICE, RUNTIME_SERVICE))
MESSAGES = st.lists(
    st.tuples(
        CONNECTIONS,
        st.integers(0, (1 << 31) - 1).map(lambda number: 2 * number + 1),
        st.sampled_from((1, 2)),
        st.binary(max_size=60),
    ),
    max_size=8,
)
CUTS = st.lists(st.integers(0, 1000), max_size=12)


def parts(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in pairwise(places):
        yield data[begin:end]


class Reader:
    """Both layers, and what came out of them until the first violation."""

    def __init__(self) -> None:
        self.frames = Demultiplexer()
        self.readers = {PLUGIN_SERVICE: MessageReader(), RUNTIME_SERVICE: MessageReader()}
        self.messages: list[tuple[int, TtrpcMessage]] = []

    def feed(self, data: bytes) -> None:
        for connection, piece in self.frames.feed(data):
            for message in self.readers[connection].feed(piece):
                self.messages.append((connection, message))

    @property
    def stored(self) -> int:
        buffers = (reader._buffer for reader in self.readers.values())
        return len(self.frames._header) + sum(map(len, buffers))


@given(MESSAGES, CUTS, CUTS)
def test_neither_frames_nor_reads_decide_what_is_received(
    sent: list[tuple[int, int, int, bytes]], frame_cuts: list[int], read_cuts: list[int]
) -> None:
    stream = b"".join(
        frame(connection, part)
        for connection, number, kind, body in sent
        for part in parts(ttrpc_message(number, kind, body), frame_cuts)
    )
    reader = Reader()
    for part in parts(stream, read_cuts):
        reader.feed(part)
    assert reader.messages == [
        (connection, TtrpcMessage(number, kind, body)) for connection, number, kind, body in sent
    ]
    assert reader.stored == 0


@given(MESSAGES)
def test_one_frame_may_have_many_messages(sent: list[tuple[int, int, int, bytes]]) -> None:
    stream = b"".join(ttrpc_message(number, kind, body) for _, number, kind, body in sent)
    reader = Reader()
    reader.feed(frame(PLUGIN_SERVICE, stream))
    assert [message.body for _, message in reader.messages] == [body for *_, body in sent]


@given(MESSAGES, st.binary(min_size=1, max_size=200), CUTS)
def test_garbage_ends_in_a_typed_error_or_waits_for_more(
    sent: list[tuple[int, int, int, bytes]], garbage: bytes, cuts: list[int]
) -> None:
    sound = b"".join(
        frame(connection, ttrpc_message(number, kind, body))
        for connection, number, kind, body in sent
    )
    at_once, in_parts = Reader(), Reader()
    outcomes = []
    for reader, pieces in ((at_once, [sound + garbage]), (in_parts, parts(sound + garbage, cuts))):
        try:
            for piece in pieces:
                reader.feed(piece)
            outcomes.append("")
        except NriProtocolError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
    assert at_once.messages == in_parts.messages
    assert [message.body for _, message in at_once.messages][: len(sent)] == [
        body for *_, body in sent
    ]


@given(st.integers(0, LONGEST_SENT), CONNECTIONS)
def test_a_message_fits_the_buffers_of_a_runtime(length: int, connection: int) -> None:
    message = encoded(1, 2, bytes(length))
    data = framed(connection, message)
    at = 0
    taken = 0
    frames = 0
    while at < len(data):
        found, size = struct.unpack_from(">II", data, at)
        # The first read is into the buffer, each further one into what is missing, or the buffer.
        room = GO_BUFFER if taken == 0 else max(GO_BUFFER, len(message) - taken)
        assert found == connection
        assert 0 < size <= room
        taken += size
        at += 8 + size
        frames += 1
    assert taken == len(message)
    assert frames <= 2


def test_only_one_incomplete_message_is_stored() -> None:
    reader = Reader()
    head = struct.pack(">IIBB", LONGEST_RECEIVED, 1, 1, 0)
    piece = bytes(1 << 20)
    reader.feed(frame(PLUGIN_SERVICE, head))
    for _ in range(LONGEST_RECEIVED // len(piece)):
        reader.feed(frame(PLUGIN_SERVICE, piece))
        assert reader.stored <= LONGEST_RECEIVED
    assert [len(message.body) for _, message in reader.messages] == [LONGEST_RECEIVED]
    assert reader.stored == 0


def test_a_message_longer_than_any_is_an_error_before_its_body_is_read() -> None:
    reader = Reader()
    with pytest.raises(NriProtocolError, match="a message of 16777217 bytes"):
        reader.feed(frame(PLUGIN_SERVICE, struct.pack(">IIBB", LONGEST_RECEIVED + 1, 1, 1, 0)))


def test_a_frame_longer_than_any_is_an_error_before_its_bytes_are_read() -> None:
    with pytest.raises(NriProtocolError, match="a frame of 4294967295 bytes"):
        Reader().feed(struct.pack(">II", PLUGIN_SERVICE, 0xFFFFFFFF))


def test_a_message_that_a_runtime_cannot_read_is_not_sent() -> None:
    assert len(encoded(1, 2, bytes(LONGEST_SENT))) == LONGEST_SENT + 10
    with pytest.raises(NriProtocolError, match="a message of 4194305 bytes"):
        encoded(1, 2, bytes(LONGEST_SENT + 1))


@given(CUTS)
def test_empty_frames_are_no_message(cuts: list[int]) -> None:
    reader = Reader()
    for part in parts(frame(RUNTIME_SERVICE, b"") * 50, cuts):
        reader.feed(part)
    assert reader.messages == []
    assert reader.stored == 0
