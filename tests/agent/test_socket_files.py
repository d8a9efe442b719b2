"""What distinguishes the file of one socket from that of the next."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from agent.rpc.sockets import is_socket, socket_file, socket_stamp

if TYPE_CHECKING:
    from pathlib import Path


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def test_a_file_that_is_not_there_is_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert (is_socket(path), socket_file(path), socket_stamp(path)) == (False, None, None)


def test_a_file_that_is_not_a_socket_has_no_stamp(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("")
    assert (is_socket(path), socket_stamp(path)) == (False, None)


def test_a_link_to_a_socket_is_the_same_file(tmp_path: Path) -> None:
    bind(tmp_path / "s")
    (tmp_path / "link").hardlink_to(tmp_path / "s")
    assert socket_file(tmp_path / "link") == socket_file(tmp_path / "s") is not None


def test_a_later_socket_with_the_same_inode_has_another_stamp(tmp_path: Path) -> None:
    path = tmp_path / "s"
    bind(path)
    before, changed = socket_stamp(path), path.lstat().st_ctime_ns
    while path.lstat().st_ctime_ns == changed:  # which is what differs then
        path.chmod(0o700)
    assert socket_stamp(path) != before
    assert socket_file(path) is not None
