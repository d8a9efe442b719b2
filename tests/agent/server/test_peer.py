from __future__ import annotations

import errno
import os
import socket
import struct

import pytest

from agent.server import sockets
from agent.server.limits import Caller
from agent.server.sockets import Peer, address_caller, peer_of, user_caller


def test_the_kernel_names_the_process_at_the_other_end() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        found = peer_of(ours)
    assert (found.pid, found.uid) == (os.getpid(), os.geteuid())
    assert found.groups == {os.getegid(), *os.getgroups()}


@pytest.mark.parametrize(
    ("uid", "groups", "group", "may"),
    [
        (0, {0}, None, True),
        (500, {500}, None, True),
        (1000, {1000, 77}, 77, True),
        (1000, {1000, 77}, 78, False),
        (1000, {1000, 77}, None, False),
        (1000, {0}, None, False),
    ],
)
def test_root_the_agents_user_and_its_group_may_ask(
    uid: int, groups: set[int], group: int | None, *, may: bool
) -> None:
    assert Peer(1, uid, frozenset(groups)).may_ask(owner=500, group=group) is may


class ManyGroups:
    """A socket whose peer is in more groups than fit."""

    def __init__(self, connected: socket.socket, number: int) -> None:
        self._connected = connected
        self._number = number

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        if option == socket.SO_PEERCRED:
            return self._connected.getsockopt(level, option, size)
        raise OSError(self._number, os.strerror(self._number))


def test_of_a_peer_in_too_many_groups_the_primary_one_is_known() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        crowded = ManyGroups(ours, errno.ERANGE)
        assert peer_of(crowded).groups == {os.getegid()}  # type: ignore[arg-type]
        broken = ManyGroups(ours, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            peer_of(broken)  # type: ignore[arg-type]


def test_a_user_counts_as_one_caller_and_the_agents_own_is_always_let_in() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert user_caller(ours) == Caller(f"user {os.geteuid()}", privileged=True)


@pytest.mark.parametrize(("uid", "privileged"), [(0, True), (500, True), (1000, False)])
def test_root_and_the_agents_own_user_are_privileged(
    monkeypatch: pytest.MonkeyPatch, uid: int, *, privileged: bool
) -> None:
    monkeypatch.setattr(sockets, "own_user", lambda: 500)
    assert user_caller(Credentials(uid)) == Caller(f"user {uid}", privileged)  # type: ignore[arg-type]


class Credentials:
    """A socket whose peer is some user."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def getsockopt(self, _level: int, _option: int, _size: int) -> bytes:
        return struct.pack("3i", 1, self._uid, self._uid)


class Peername:
    """A socket whose peer has some address."""

    def __init__(self, host: str) -> None:
        self._host = host

    def getpeername(self) -> tuple[str, int]:
        return (self._host, 1234)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1", "address 127.0.0.1"),
        ("::ffff:10.1.2.3", "address 10.1.2.3"),
        ("fe80::1%eth0", "network fe80::/64"),
        ("2001:db8:1:2:3:4:5:6", "network 2001:db8:1:2::/64"),
    ],
)
def test_an_address_counts_as_one_caller_and_ipv6_by_its_network(host: str, name: str) -> None:
    assert address_caller(Peername(host)) == Caller(name)  # type: ignore[arg-type]
