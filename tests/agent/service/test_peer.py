from __future__ import annotations

import errno
import os
import socket

import pytest

from agent.service.peer import Peer, peer_of


def test_the_kernel_names_the_process_at_the_other_end() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        peer = peer_of(ours)
    assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
    assert peer.groups == {os.getegid(), *os.getgroups()}


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
