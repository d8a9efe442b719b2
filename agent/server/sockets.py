"""The two listening sockets. Errors are one line with a remedy."""

from __future__ import annotations

import errno
import grp
import os
import socket
import ssl
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.files import risk_above, risk_of
from agent.server.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SOCKET_MODE: Final = 0o660
#: Connections that wait for accept(2); a client retries a dropped one only after a second.
BACKLOG: Final = 1024
#: Receive buffer of a metrics connection (the kernel doubles it, socket(7)). A request head is
#: smaller, and pipelined requests fill the buffer on each connection.
RECEIVE_BYTES: Final = 16 << 10
_LIMIT: Final = 107  # sun_path without its final NUL, unix(7)


class Address(Struct, frozen=True):
    """Where the metrics listener listens, and with which certificate (None: plain HTTP)."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class UnixListener(Struct):
    """A listening Unix socket and the file it made: (device, inode) in `file`.

    `group` is what the file is given to, None for the process's own.
    """

    path: Path
    socket: socket.socket
    file: tuple[int, int]
    group: int | None

    def close(self) -> None:
        """Stop listening; remove the file unless another process put its own there meanwhile."""
        self.socket.close()
        if self.has_file():
            self.path.unlink(missing_ok=True)

    def has_file(self) -> bool:
        """Return whether the file is still the one that was made."""
        try:
            status = self.path.lstat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.file

    def open_again(self) -> None:
        """Listen at a new file; the former socket is the caller's to close. Raises `StartError`."""
        made = open_unix(self.path, self.group)
        self.socket, self.file = made.socket, made.file


def group_id(name: str) -> int:
    """Return the id of a group; raises `StartError` when there is none of that name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        remedy = f"create it (groupadd --system {name}) or name another one"
        raise StartError("socket group", f"there is no group {name!r}", remedy) from None


def open_unix(path: Path, group: int | None) -> UnixListener:
    """Listen at a path with mode 0660, given to `group` when it is not None.

    A stale socket is replaced. Raises `StartError` if another process listens on it, or if
    the path cannot be used.
    """
    make_room(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_mode():
            listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise _unusable(path, error) from error
    made = path.lstat()
    opened = UnixListener(path, listening, (made.st_dev, made.st_ino), group)
    try:
        # The unit's system call filter rejects chown, which the service's own group does not need.
        if group is not None and made.st_gid != group:
            os.chown(path, -1, group)
        listening.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise _unusable(path, error) from error
    return opened


def make_room(path: Path) -> None:
    """Check that a socket can be made at a path, and remove a stale one there.

    Raises `StartError` if another process listens on it, or if the path cannot be used.
    """
    check_socket_path(path)
    _remove_stale(path)


@contextmanager
def socket_mode() -> Iterator[None]:
    """Let sockets that are bound meanwhile have the mode 0660."""
    previous = os.umask(0o777 & ~SOCKET_MODE)
    try:
        yield
    finally:
        os.umask(previous)


def _unusable(path: Path, error: OSError) -> StartError:
    remedy = "let the agent's user write there, or name another path"
    return StartError(f"socket {path}", error.strerror or str(error), remedy)


def check_socket_path(path: Path) -> None:
    """Raise `StartError` if no socket can be made at a path, or other users could replace it."""
    what = f"socket {path}"
    if len(os.fsencode(path)) > _LIMIT:
        raise StartError(what, f"longer than {_LIMIT} bytes", "name a shorter path")
    try:
        path.parent.stat()
        untrusted = risk_above(path.parent / "socket")
    except OSError as error:
        remedy = f"create the directory: install -d -m 0755 {path.parent}"
        raise StartError(what, f"{path.parent}: {error.strerror}", remedy) from error
    if untrusted is not None:
        raise StartError(what, str(untrusted), untrusted.remedy)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(f"socket {path}", error.strerror or str(error), "check it") from error
    if not stat.S_ISSOCK(mode):
        raise StartError(f"socket {path}", "a file of that name exists", "name another path")
    if is_served(path):
        remedy = "stop the agent that uses it, or name another path"
        raise StartError(f"socket {path}", "in use", remedy)
    path.unlink(missing_ok=True)


def is_served(path: Path) -> bool:
    """Return whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        outcome = probe.connect_ex(str(path))
    # EAGAIN means a full backlog: a busy process listens.
    return outcome in (0, errno.EAGAIN, errno.EINPROGRESS)


def open_tcp(address: Address) -> socket.socket:
    """Listen at a host (a name or an IPv4 or IPv6 address) and port; raises `StartError`."""
    what = f"metrics listener {address}"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        remedy = "name an address of this machine"
        raise StartError(what, error.strerror or str(error), remedy) from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        listening.bind(where)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        remedy = "stop what listens there, or name another address"
        raise StartError(what, error.strerror or str(error), remedy) from error
    return listening


def tls_context(address: Address) -> ssl.SSLContext | None:
    """Return the server side's TLS settings, None for plain HTTP; raises `StartError`."""
    if address.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password's callback an encrypted key would ask the terminal for one.
        context.load_cert_chain(address.certificate, address.key, password=str)
    except (OSError, ssl.SSLError) as error:
        what = f"TLS certificate {address.certificate}"
        remedy = "name a PEM certificate and its unencrypted key"
        raise StartError(what, error.strerror or str(error), remedy) from error
    _check_key(address.key or address.certificate)
    return context


def _check_key(key: Path) -> None:
    """Raise `StartError` if other users can read or replace the private key."""
    what = f"TLS key {key}"
    try:
        status = key.stat()
        untrusted = risk_of(key, status) or risk_above(key)
    except OSError as error:
        remedy = "name a PEM certificate and its unencrypted key"
        raise StartError(what, error.strerror or str(error), remedy) from error
    if untrusted is not None:
        raise StartError(what, str(untrusted), untrusted.remedy)
    if status.st_mode & stat.S_IRWXO:
        found = f"readable by all users (mode {stat.S_IMODE(status.st_mode):04o})"
        raise StartError(what, found, f"close it: chmod o-rwx {key}")
