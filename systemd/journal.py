"""Writing to the journal by its native protocol: entries with fields, as sd_journal_send(3).

An entry is one datagram, or, where it is larger than one may be, a sealed memory file whose
descriptor is sent. Nothing here waits: a journal that does not keep up loses entries, and each that
is lost raises `JournalError`.

Source: https://systemd.io/JOURNAL_NATIVE_PROTOCOL
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from array import array
from errno import EMSGSIZE
from pathlib import Path
from typing import TYPE_CHECKING, Final

from systemd.units import SystemdError

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET: Final = Path("/run/systemd/journal/socket")
_STREAM: Final = "JOURNAL_STREAM"
#: The names that the journal takes from a client: others are dropped without a word.
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class JournalError(SystemdError):
    """An entry could not be written: the journal is away, or does not keep up (`full`)."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"cannot write to the journal at {path}: {error.strerror}")
        self.full = isinstance(error, BlockingIOError)


def is_journal(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Return whether a descriptor leads to the journal, as `JOURNAL_STREAM` says (systemd.exec(5)).

    The variable is inherited by processes whose output goes elsewhere: its device and inode have to
    be those of the descriptor.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environment.get(_STREAM, "") == f"{found.st_dev}:{found.st_ino}"


class Journal:
    """The journal's socket; may be used by several threads."""

    def __init__(self, path: Path = SOCKET) -> None:
        self._path = path
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_UNIX, kind)

    def send(self, fields: Mapping[str, str]) -> None:
        """Write an entry; `MESSAGE` is its text, `PRIORITY` a digit of syslog(3).

        Raises `ValueError` for a name that the journal would drop, and `JournalError`.
        """
        entry = encoded(fields)
        try:
            self._send(entry)
        except OSError as error:
            raise JournalError(self._path, error) from error

    def _send(self, entry: bytes) -> None:
        try:
            self._socket.sendto(entry, str(self._path))
        except OSError as error:
            if error.errno != EMSGSIZE:
                raise
            self._send_file(entry)

    def _send_file(self, entry: bytes) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        with open(os.memfd_create("journal-entry", flags), "wb", buffering=0) as file:  # noqa: PTH123  # a descriptor
            file.write(entry)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [file.fileno()]))
            self._socket.sendmsg([], [rights], 0, str(self._path))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def encoded(fields: Mapping[str, str]) -> bytes:
    """Return an entry as it is sent; what is not UTF-8 in a value is escaped."""
    parts: list[bytes] = []
    for name, text in fields.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a field of the journal")
        value = text.encode("utf-8", "backslashreplace")
        if b"\n" in value:
            parts += (name.encode(), b"\n", len(value).to_bytes(8, "little"), value, b"\n")
        else:
            parts += (name.encode(), b"=", value, b"\n")
    return b"".join(parts)
