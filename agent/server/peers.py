"""Who is at the other end of a connection, a user of this host or an address, and who may ask.

In goes a connected socket. The kernel says whose process is at the other end of a Unix socket
(unix(7)), and whose socket on this host is at the other end of a TCP connection (sock_diag(7)). Out
comes the caller that the connection is counted for. `Access` is the middleware of the API: requests
of root, of the agent's own user and of members of a group reach its handler, no others.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from array import array
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
from msgspec import Struct
from structlog.contextvars import bound_contextvars

from agent.api.documents.history import RequesterDocument
from agent.managers.allocation import API
from agent.server.limits import Caller
from agent.server.log import LimitedLog
from agent.server.operations import requested_by
from agent.server.queue import called_by
from cgroupfs.writers import command_of, login_of

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Callable

    from agent.server.http import Answer, Failure, Handler, Request

    #: A connected socket, of asyncio or not.
    Connected: TypeAlias = socket.socket | TransportSocket
    _Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
    #: One end of a TCP connection: address and port.
    _End: TypeAlias = tuple[_Ip, int]


log = structlog.get_logger(__name__)

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

    @property
    def caller(self) -> Caller:
        """The peer's user."""
        return _caller(self.uid)

    def may_ask(self, owner: int, group: int | None) -> bool:
        """Return whether the peer is root, the agent's user `owner`, or a member of `group`."""
        return self.uid in (0, owner) or (group is not None and group in self.groups)


class Access:
    """Lets root, the agent's own user and members of `group` reach a handler.

    `failed` makes the answer to others. `proc` is where procfs is, which has the names of the
    processes that ask.
    """

    def __init__(
        self, handler: Handler, failed: Failure, group: int | None, proc: Path = Path("/proc")
    ) -> None:
        self._handler = handler
        self._failed = failed
        self._group = group
        self._proc = proc
        self._lines = LimitedLog(log)

    async def __call__(self, request: Request) -> Answer:
        """Answer a request."""
        if request.connection is None:  # already closed by the peer
            return self._failed(HTTPStatus.FORBIDDEN, "the connection is closed")
        peer = peer_of(request.connection)
        if not peer.may_ask(own_user(), self._group):
            # In limited lines: whoever can connect can ask without end.
            self._lines.warning("request rejected", peer_pid=peer.pid, peer_uid=peer.uid)
            message = f"user {peer.uid} is neither root nor a member of the agent's group"
            return self._failed(HTTPStatus.FORBIDDEN, message)
        with ExitStack() as known:
            known.enter_context(called_by(peer.caller))
            if request.method != "GET":  # reading is not recorded
                known.enter_context(requested_by(self._requester(peer)))
                known.enter_context(bound_contextvars(peer_uid=peer.uid, peer_pid=peer.pid))
            return await self._handler(request)

    def _requester(self, peer: Peer) -> RequesterDocument:
        return RequesterDocument(
            source=API.name,
            uid=peer.uid,
            pid=peer.pid,
            command=command_of(self._proc, peer.pid),
            login=login_of(self._proc, peer.pid),
        )


def peer_of(connection: Connected) -> Peer:
    """Return the peer of a connected Unix socket (unix(7): SO_PEERCRED, SO_PEERGROUPS).

    Of a process in more than 256 groups only the primary one is known, which can only deny.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return Peer(pid, uid, frozenset((gid, *_supplementary(connection))))


def _supplementary(connection: Connected) -> array[int]:
    try:
        return array(_GID, connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _LONGEST))
    except OSError as error:
        if error.errno in (errno.ERANGE, errno.ENOPROTOOPT):
            return array(_GID)
        raise


def user_caller(connection: Connected) -> Caller:
    """Return the caller of a Unix connection; raises `OSError` if it is closed."""
    return peer_of(connection).caller


def _caller(uid: int) -> Caller:
    """Return a user as a caller; root (the service manager too) and our own are privileged."""
    return Caller(f"user {uid}", privileged=uid in (0, own_user()))


def own_user() -> int:
    """Return the user that this process acts as."""
    return os.geteuid()


def callers_of(listening: socket.socket) -> Callable[[Connected], Caller]:
    """Return what names the caller of a connection to a TCP listener.

    A peer on this host counts as its user, as on the Unix socket, so that users who share an
    address do not share their places. Where the kernel does not name users (sock_diag(7)), every
    peer counts as its address.
    """
    here = _end(listening.getsockname())
    anywhere = ipaddress.ip_address(bytes(len(here[0].packed)))
    named = user_of(here, (anywhere, 0), _LISTEN) is not None
    return tcp_caller if named else address_caller


def tcp_caller(connection: Connected) -> Caller:
    """Return the caller of a TCP connection: a user of this host, or else its address.

    Raises `OSError` if it is closed.
    """
    uid = user_of(_end(connection.getpeername()), _end(connection.getsockname()), _ESTABLISHED)
    return address_caller(connection) if uid is None else _caller(uid)


def address_caller(connection: Connected) -> Caller:
    """Return the address of a TCP connection as its caller; raises `OSError` if it is closed.

    An IPv6 host can use all addresses of its /64 (RFC 4291 section 2.5.4), which is one caller.
    """
    address, _ = _end(connection.getpeername())
    if isinstance(address, ipaddress.IPv6Address):
        return Caller(f"network {ipaddress.IPv6Network((int(address), 64), strict=False)}")
    return Caller(f"address {address}")


def _end(name: tuple[str, int]) -> _End:
    """Return an end of a connection by its name; an IPv4 address in IPv6 is the IPv4 address."""
    address = ipaddress.ip_address(name[0].partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address, name[1]


#: From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h; include/net/tcp_states.h.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_ESTABLISHED: Final = 1
_LISTEN: Final = 10
#: nlmsghdr: length, type, flags, sequence, port.
_HEADER: Final = struct.Struct("=IHHII")
#: inet_diag_req_v2 without its inet_diag_sockid: family, protocol, extensions, pad, states.
_REQUEST: Final = struct.Struct("=BBBxI")
#: inet_diag_sockid: both ports, both addresses, interface, cookie (all ones: any).
_SOCKET: Final = struct.Struct("!HH16s16s4x8s")
_ANY_COOKIE: Final = b"\xff" * 8
#: inet_diag_msg: family, state, timer, retransmissions; the socket; expiry, queues, uid, inode.
_ANSWER: Final = struct.Struct(f"=BBBB{_SOCKET.size}s12xII")


def user_of(local: _End, remote: _End, state: int) -> int | None:
    """Return the user whose socket on this host has these ends and this state, None for no user.

    The kernel looks that socket up in its table (sock_diag(7)), so that the cost does not grow with
    the host's sockets; it takes a listener where no connection has these ends. A socket that no
    process has open (inode 0) shows root as its user.
    """
    (source, sport), (destination, dport) = local, remote
    family = socket.AF_INET if source.version == 4 else socket.AF_INET6  # noqa: PLR2004
    asked = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << state)
    asked += _SOCKET.pack(sport, dport, source.packed, destination.packed, _ANY_COOKIE)
    size = _HEADER.size + len(asked)
    header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.send(header + asked)
            # The kernel has answered before send returns.
            answer = kernel.recv(_LONGEST, socket.MSG_DONTWAIT)
    except OSError:  # a kernel without sock_diag, or no file left: the address is known
        return None
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:  # an error: there is no such socket
        return None
    _, found, _, _, _, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return int(uid) if found == state and inode else None
