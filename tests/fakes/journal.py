"""A journald that keeps what it is sent: the receiving end of the native protocol."""

from __future__ import annotations

import os
import socket
from array import array
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LARGEST = 1 << 20


class FakeJournal:
    """Listens at `path`; `files` counts the entries that came as memory files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))

    def entries(self) -> list[dict[str, str]]:
        """Return the fields of all entries that arrived since the last call."""
        found: list[dict[str, str]] = []
        while (entry := self._next()) is not None:
            found.append(fields_of(entry))
        return found

    def _next(self) -> bytes | None:
        try:
            data, rights, _, _ = self._socket.recvmsg(_LARGEST, socket.CMSG_SPACE(4))
        except BlockingIOError:
            return None
        if not rights:
            return data
        self.files += 1
        (descriptor,) = array("i", rights[0][2])
        with os.fdopen(descriptor, "rb") as file:
            file.seek(0)
            return file.read()

    def close(self) -> None:
        self._socket.close()


@contextmanager
def fake_journal(path: Path) -> Iterator[FakeJournal]:
    journal = FakeJournal(path)
    try:
        yield journal
    finally:
        journal.close()
        path.unlink()


def fields_of(entry: bytes) -> dict[str, str]:
    """Return the fields of an entry, as https://systemd.io/JOURNAL_NATIVE_PROTOCOL has them."""
    found: dict[str, str] = {}
    while entry:
        line, _, entry = entry.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(entry[:8], "little")
            value, end, entry = entry[8 : 8 + size], entry[8 + size : 9 + size], entry[9 + size :]
            assert end == b"\n"
        found[name.decode()] = value.decode()
    return found
