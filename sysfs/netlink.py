"""Netlink messages as the kernel sends them: what little of the protocol is read here.

A library for netlink would do, at the price of a fifth of the agent's start and 10 MiB.
Layouts and numbers: linux/netlink.h, linux/rtnetlink.h, linux/if_link.h.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: NETLINK_ROUTE and NETLINK_KOBJECT_UEVENT: the protocols of links and of device events.
ROUTE: Final = 0
UEVENT: Final = 15

#: Larger than any message of these protocols: the kernel sends at most 32 KiB at a time.
LARGEST: Final = 1 << 16

#: struct nlmsghdr: length, type, flags, sequence, port.
_HEADER: Final = struct.Struct("=IHHII")
#: struct rtattr: length, type.
_ATTRIBUTE: Final = struct.Struct("=HH")
_ERROR: Final = 2
_DONE: Final = 3
#: NLM_F_REQUEST | NLM_F_DUMP: every object of a kind.
_REQUEST_ALL: Final = 0x301
#: The upper bits of an attribute's type are flags (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
_TYPE_MASK: Final = 0x3FFF


def open_socket(protocol: int) -> socket.socket:
    """Return a netlink socket; raises `OSError` where the system refuses it."""
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)


def dump(kind: int, body: bytes) -> Iterator[bytes]:
    """Yield the payload of every message that answers a NETLINK_ROUTE request for all of a kind.

    `body` is what follows the header of the request. Raises `OSError` as the kernel answers.
    """
    length = _HEADER.size + len(body)
    with open_socket(ROUTE) as netlink:
        netlink.sendall(_HEADER.pack(length, kind, _REQUEST_ALL, 1, 0) + body)
        while True:
            for found, payload in messages(netlink.recv(LARGEST)):
                if found == _DONE:
                    return
                if found == _ERROR:
                    _raise(payload)
                yield payload


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and payload of each message in what was received at once."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        yield kind, data[at + _HEADER.size : at + length]
        at += _aligned(max(length, _HEADER.size))


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes that follow a message's fixed part, by type."""
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        found[kind & _TYPE_MASK] = data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(max(length, _ATTRIBUTE.size))
    return found


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _raise(payload: bytes) -> None:
    (number,) = struct.unpack_from("=i", payload)
    if number:
        raise OSError(-number, os.strerror(-number))
