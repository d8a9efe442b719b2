"""One agent for each cgroup tree: a lock that belongs to the tree itself.

Two agents on one tree would each give the same CPUs to their pods, whatever else they have apart.
The lock is flock(2) on a file of the tree's root, so that it is the same for all who see that
tree, in containers too, and never outlives its holder. Only root can open a file that nobody may
read; where the kernel has none (before 5.19), the root's directory is locked, which any user could
do, so the holder is named.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final, Protocol

from cgroupfs.beneath import open_beneath
from cgroupfs.errors import TreeLockedError

#: Files of mode 0200 in the root of a tree; a cgroup namespace's root has the second one as well.
_UNREADABLE: Final = ("memory.reclaim", "cgroup.kill")
_LOCKS: Final = Path("/proc/locks")


class TreeLock(Protocol):
    """The exclusive lock of a cgroup tree, held until `release` or the end of the process."""

    def release(self) -> None:
        """Give the tree free; doing it twice is harmless."""
        ...


class FlockedTree:
    """The lock of the tree mounted at `root`, whose open directory is `root_fd`.

    Raises `TreeLockedError` at once when another process has it, `OSError` as open(2) does.
    """

    def __init__(self, root: Path, root_fd: int) -> None:
        self._fd = _open(root_fd)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._fd)
            self.release()
            raise TreeLockedError(root, holder) from None
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the tree free; see `TreeLock.release`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open(root_fd: int) -> int:
    for name in _UNREADABLE:
        try:
            return open_beneath(root_fd, name, os.O_WRONLY)
        except FileNotFoundError:
            continue
    return open_beneath(root_fd, "", os.O_RDONLY | os.O_DIRECTORY)


def _holder(fd: int) -> str | None:
    """Return process id and name of who holds the lock, None when it cannot be seen from here.

    A line of /proc/locks reads `1: FLOCK  ADVISORY  WRITE 4711 00:1a:42 0 EOF` (proc(5)); the
    processes of other pid namespaces are left out.
    """
    status = os.fstat(fd)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    file = f"{device}:{status.st_ino}"
    try:
        for line in _LOCKS.read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[5:6] == [file] and int(words[4]) > 0:
                return _described(words[4])
    except (OSError, ValueError):
        return None
    return None


def _described(pid: str) -> str:
    try:
        name = Path("/proc", pid, "comm").read_bytes().decode(errors="replace").strip()
    except OSError:
        return pid
    return f"{pid} ({name})" if name.isprintable() else pid
