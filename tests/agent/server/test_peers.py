from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from agent.server import peers
from agent.server.limits import Caller
from agent.server.peers import (
    Peer,
    address_caller,
    callers_of,
    peer_of,
    tcp_caller,
    user_caller,
)
from tests.agent.server.support import acting_as

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        with pytest.raises(OSError, match="Input/output error"):
            peer_of(ManyGroups(ours, errno.EIO))  # type: ignore[arg-type]


class Credentials:
    """A socket whose peer is some user."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def getsockopt(self, _level: int, _option: int, _size: int) -> bytes:
        return struct.pack("3i", 1, self._uid, self._uid)


@pytest.mark.parametrize(("uid", "privileged"), [(0, True), (500, True), (1000, False)])
def test_a_user_counts_as_one_caller_and_root_and_the_agents_own_are_privileged(
    monkeypatch: pytest.MonkeyPatch, uid: int, *, privileged: bool
) -> None:
    monkeypatch.setattr(peers, "own_user", lambda: 500)
    assert user_caller(Credentials(uid)) == Caller(f"user {uid}", privileged)  # type: ignore[arg-type]


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


OTHER = 4242


@contextmanager
def connected(listening: socket.socket, host: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the end of a listener and the end of a new client."""
    with ExitStack() as stack:
        client = stack.enter_context(
            socket.create_connection((host, listening.getsockname()[1]), timeout=10)
        )
        accepted, _ = listening.accept()
        yield stack.enter_context(accepted), client


@pytest.fixture(params=[("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def listener(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    """Return a TCP listener and the address to reach it by."""
    host, by = request.param
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.bind((host, 0))
        listening.listen()
        yield listening, by


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_of_this_host_count_separately(listener: tuple[socket.socket, str]) -> None:
    listening, host = listener
    caller_of = callers_of(listening)
    with ExitStack() as stack:
        own, _ = stack.enter_context(connected(listening, host))
        with acting_as(OTHER):
            ours, _ = stack.enter_context(connected(listening, host))
        assert caller_of(own) == Caller(f"user {os.geteuid()}", privileged=True)
        assert caller_of(ours) == Caller(f"user {OTHER}")


def test_a_client_that_closed_its_end_counts_as_its_address_not_as_root() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        connected(listening, "127.0.0.1") as (ours, client),
    ):
        client.close()
        assert tcp_caller(ours) == Caller("address 127.0.0.1")


def test_a_listener_at_the_port_of_a_client_that_is_gone_is_not_the_client() -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        other = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ends = (listening.getsockname(), other.getsockname())
        here, there = ((ipaddress.ip_address(host), port) for host, port in ends)
        listens, connection = 10, 1  # include/net/tcp_states.h
        assert peers.user_of(there, here, listens) == os.geteuid()
        assert peers.user_of(there, here, connection) is None


def test_a_client_of_another_host_counts_as_its_address() -> None:
    class Remote(Peername):
        def getsockname(self) -> tuple[str, int]:
            return ("192.0.2.1", 9464)

    assert tcp_caller(Remote("192.0.2.7")) == Caller("address 192.0.2.7")  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", [errno.EPROTONOSUPPORT, errno.EMFILE])
def test_where_the_kernel_does_not_name_users_the_address_counts(
    monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    made = socket.socket

    def rejected(*arguments: int) -> socket.socket:
        if arguments[:1] == (socket.AF_NETLINK,):
            raise OSError(fault, os.strerror(fault))
        return made(*arguments)

    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        connected(listening, "127.0.0.1") as (ours, _),
    ):
        monkeypatch.setattr(socket, "socket", rejected)
        assert tcp_caller(ours) == Caller("address 127.0.0.1")
        assert callers_of(listening) is address_caller
        monkeypatch.undo()
