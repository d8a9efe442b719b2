"""The file of a Unix socket: whether a path is a socket, and whether it is the same as before."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path


#: The longest path of a socket in bytes (sun_path of unix(7), less the NUL).
LONGEST_SOCKET: Final = 107


def is_socket(path: Path) -> bool:
    """Return whether a path is a socket; raises `OSError` except for a path that is not there."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def socket_file(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, None if there is none.

    They are those of one socket as long as it is bound; an inode is used again soon afterwards.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def socket_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever another socket takes a path, None if there is none.

    The inode alone does not: a file system gives the next socket that of the removed one.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
