from __future__ import annotations

import struct
from typing import Self

import pytest

from sysfs import netlink
from sysfs.netlink import attributes, dump, messages

GET_LINKS = 18


def message(kind: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 0, 1, 0) + padded(payload)


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + padded(value)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


class Kernel:
    """A socket that answers a request with what it is given, one part a read."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = list(parts)
        self.asked = b""
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def sendall(self, data: bytes) -> None:
        self.asked += data

    def recv(self, _: int) -> bytes:
        return self._parts.pop(0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> type[Kernel]:
    class Answers(Kernel):
        def __init__(self, *parts: bytes) -> None:
            super().__init__(*parts)
            monkeypatch.setattr(netlink, "open_socket", lambda _: self)

    return Answers


def test_messages_and_attributes_are_found_behind_odd_lengths() -> None:
    data = message(7, b"odd") + message(8, b"even")
    assert list(messages(data)) == [(7, b"odd"), (8, b"even")]
    found = attributes(attribute(3, b"eth0\0") + attribute(0x8000 | 5, b"x") + attribute(6, b""))
    assert found == {3: b"eth0\0", 5: b"x", 6: b""}


def test_a_cut_message_ends_the_list() -> None:
    assert list(messages(message(7, b"odd")[:10])) == []
    assert list(messages(bytes(32))) == [(0, b""), (0, b"")]
    assert attributes(b"\0\0\0") == {}


def test_answers_come_until_the_kernel_says_that_it_is_done(answers: type[Kernel]) -> None:
    kernel = answers(message(16, b"one") + message(16, b"two"), message(3, bytes(4)))
    assert list(dump(GET_LINKS, b"body")) == [b"one", b"two"]
    assert kernel.asked == struct.pack("=IHHII", 20, GET_LINKS, 0x301, 1, 0) + b"body"
    assert kernel.closed


def test_a_refusal_is_raised_as_the_kernel_gives_it(answers: type[Kernel]) -> None:
    kernel = answers(message(2, struct.pack("=i", -1) + bytes(16)))
    with pytest.raises(PermissionError, match="not permitted"):
        list(dump(GET_LINKS, b""))
    assert kernel.closed
