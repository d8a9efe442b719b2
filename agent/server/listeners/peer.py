"""Identifies the peer of a connection, and checks its access."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from array import array
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.server.listeners.limits import Caller

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

#: From asm-generic/socket.h (Linux 4.13); the socket module does not name it.
SO_PEERGROUPS: Final = 59

_UCRED: Final = struct.Struct("3i")
_GID: Final = "I"
#: What socket.getsockopt returns at most, in bytes.
_LONGEST: Final = 1024


class Peer(Struct, frozen=True):
    """The process that connected, as the kernel recorded it at connect(2).

    `groups` are its primary and supplementary groups.
    """

    pid: int
    uid: int
    groups: frozenset[int]

    def may_ask(self, owner: int, group: int | None) -> bool:
        """Return whether the peer is root, the agent's user `owner`, or a member of `group`."""
        return self.uid in (0, owner) or (group is not None and group in self.groups)


def peer_of(connection: socket.socket | TransportSocket) -> Peer:
    """Return the peer of a connected Unix socket (unix(7): SO_PEERCRED, SO_PEERGROUPS).

    Of a process in more than 256 groups only the primary one is known, which can only deny.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return Peer(pid, uid, frozenset((gid, *_supplementary(connection))))


def _supplementary(connection: socket.socket | TransportSocket) -> array[int]:
    try:
        return array(_GID, connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _LONGEST))
    except OSError as error:
        if error.errno in (errno.ERANGE, errno.ENOPROTOOPT):
            return array(_GID)
        raise


def user_caller(connection: socket.socket) -> Caller:
    """Return the caller of a Unix connection; raises `OSError` if it is closed.

    Root (which the service manager uses too) and the agent's own user are privileged.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, uid, _ = _UCRED.unpack(raw)
    return Caller(f"user {uid}", privileged=uid in (0, own_user()))


def address_caller(connection: socket.socket) -> Caller:
    """Return the caller of a TCP connection; raises `OSError` if it is closed.

    An IPv6 host can use all addresses of its /64 (RFC 4291 section 2.5.4), which is one caller.
    """
    host = connection.getpeername()[0].partition("%")[0]
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return Caller(f"address {address.ipv4_mapped}")
        return Caller(f"network {ipaddress.IPv6Network((int(address), 64), strict=False)}")
    return Caller(f"address {address}")


def own_user() -> int:
    """Return the user that this process acts as."""
    return os.geteuid()
