"""Who wrote a cgroup file: fanotify(7), and what procfs says of the process behind a write.

One mark on the file system reports the writes of all processes, in every mount namespace, each with
the process and an open descriptor of the file. That takes CAP_SYS_ADMIN. A process may end before
procfs is read: then only its id is known.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from cgroupfs.apply import ENABLED
from cgroupfs.state import Writer
from cgroupfs.tree import check_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# linux/fanotify.h
_CLOEXEC: Final = 0x01
_NONBLOCK: Final = 0x02
_MODIFY: Final = 0x02
_OVERFLOW: Final = 0x4000
_MARK_ADD: Final = 0x01
_MARK_FILESYSTEM: Final = 0x100
_AT_FDCWD: Final = -100
_VERSION: Final = 3
#: event_len, vers, reserved, metadata_len, mask, fd, pid
_EVENT: Final = struct.Struct("=IBBHQii")
#: Each event has an open descriptor: so many bytes are 170 of them at once.
_BUFFER: Final = 4096
#: How often the queue is read before the lock is released: other processes may fill it for ever.
_READS: Final = 64

#: The controllers whose files are followed.
_FOLLOWED: Final = ("cpuset.", "cpu.", "memory.", "hugetlb.", "pids.")
#: How many files are remembered, those that were written last.
MOST_FILES: Final = 4096

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.fanotify_init.argtypes = (ctypes.c_uint, ctypes.c_uint)
_LIBC.fanotify_mark.argtypes = (
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.c_uint64,
    ctypes.c_int,
    ctypes.c_char_p,
)


class FileEvent(Struct, frozen=True):
    """One write: the process id, 0 for one of another pid namespace, and a descriptor of the file.

    `lost`: the kernel dropped events instead; `fd` is then negative.
    """

    pid: int
    fd: int
    lost: bool = False


def parse_events(data: bytes) -> tuple[FileEvent, ...]:
    """Return the events in what was read from fanotify, up to the first that is malformed."""
    events: list[FileEvent] = []
    offset = 0
    while offset + _EVENT.size <= len(data):
        length, version, _, _, mask, fd, pid = _EVENT.unpack_from(data, offset)
        if version != _VERSION or not _EVENT.size <= length <= len(data) - offset:
            break
        events.append(FileEvent(pid, fd, lost=bool(mask & _OVERFLOW)))
        offset += length
    return tuple(events)


class EventSource(Protocol):
    """Where events come from."""

    def fileno(self) -> int:
        """Return the descriptor to wait on for readability."""
        ...

    def read(self) -> tuple[FileEvent, ...]:
        """Return pending events, nothing if there are none; never blocks. Raises `OSError`.

        The caller closes the descriptors of the events.
        """
        ...

    def close(self) -> None:
        """End the reports."""
        ...


class Fanotify:
    """The writes to all files of a file system; `path` is any directory of it.

    Raises `OSError`: EPERM without CAP_SYS_ADMIN, ENOSYS or EINVAL where the kernel cannot do it.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._fd = _checked(_LIBC.fanotify_init(_CLOEXEC | _NONBLOCK, flags), "fanotify_init")
        try:
            mark = _LIBC.fanotify_mark(
                self._fd, _MARK_ADD | _MARK_FILESYSTEM, _MODIFY, _AT_FDCWD, os.fsencode(path)
            )
            _checked(mark, "fanotify_mark")
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor to wait on for readability."""
        return self._fd

    def read(self) -> tuple[FileEvent, ...]:
        """Return pending events; see `EventSource.read`."""
        try:
            return parse_events(os.read(self._fd, _BUFFER))
        except BlockingIOError:
            return ()

    def close(self) -> None:
        """End the reports; a second call has no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class CgroupWriters:
    """Remembers which other process wrote each cgroup file last.

    `mount` is where the hierarchy is mounted, `proc` where procfs is. A thread reads the events at
    once, since a process may end soon after its write; close it, or the thread stays.
    """

    def __init__(self, mount: Path, proc: Path, events: EventSource) -> None:
        self._mount = mount
        self._proc = proc
        self._events = events
        self._last: OrderedDict[int, Writer] = OrderedDict()
        self._changing = threading.Lock()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._follow, name="numawarden-writers", daemon=True)
        self._thread.start()

    def writer_of(self, cgroup: str, file: str) -> Writer | None:
        """Return who wrote a file last, None if that was this process or is not known."""
        with self._changing:
            self._drain()
            try:
                status = (self._mount / check_path(cgroup) / file).stat()
            except OSError:
                return None
            return self._last.get(status.st_ino)

    def close(self) -> None:
        """End the thread and the reports; a second call has no effect."""
        if self._stop < 0:
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        self._stop = -1
        self._events.close()

    def _follow(self) -> None:
        waiting = select.poll()
        waiting.register(self._events.fileno(), select.POLLIN)
        waiting.register(self._stop, select.POLLIN)
        while True:
            ready = {fd for fd, _ in waiting.poll()}
            if self._stop in ready:
                return
            with self._changing:
                self._drain()

    def _drain(self) -> None:
        """Take over all writes that were reported."""
        for _ in range(_READS):
            try:
                events = self._events.read()
            except OSError:
                # The kernel could not open the file of one event (cgroup.kill cannot be read), and
                # has dropped the event.
                continue
            if not events:
                return
            self._note(events)

    def _note(self, events: Sequence[FileEvent]) -> None:
        known: dict[int, Writer] = {}
        for event in events:
            if event.lost:
                # Whichever file was written meanwhile, its writer is not known.
                self._last.clear()
            if event.fd < 0:
                continue
            try:
                inode = self._followed(event.fd)
            finally:
                os.close(event.fd)
            if inode is None:
                continue
            self._last.pop(inode, None)
            if event.pid not in (0, os.getpid()):
                if event.pid not in known:
                    known[event.pid] = described(self._proc, event.pid)
                self._last[inode] = known[event.pid]
            while len(self._last) > MOST_FILES:
                self._last.popitem(last=False)

    def _followed(self, fd: int) -> int | None:
        """Return the inode of a file that is followed, else None."""
        try:
            name = (self._proc / "self/fd" / str(fd)).readlink().name
        except OSError:  # procfs is hidden
            return None
        return os.fstat(fd).st_ino if name == ENABLED or name.startswith(_FOLLOWED) else None


def described(proc: Path, pid: int) -> Writer:
    """Return what procfs says of a process now; only its id where it has ended."""
    try:
        lines = (proc / str(pid) / "cgroup").read_bytes().splitlines()
        cgroup = next((line[3:] for line in lines if line.startswith(b"0::")), b"")
        uid = (proc / str(pid)).stat().st_uid
    except OSError:
        return Writer(pid, "", None, "")
    return Writer(pid, command_of(proc, pid), uid, os.fsdecode(cgroup))


def command_of(proc: Path, pid: int) -> str:
    """Return the name of a process (`/proc/PID/comm`), "" where it has ended."""
    try:
        return os.fsdecode((proc / str(pid) / "comm").read_bytes().rstrip(b"\n"))
    except OSError:
        return ""


#: What `/proc/PID/loginuid` shows of a process that belongs to no login (proc(5)).
_NO_LOGIN: Final = (1 << 32) - 1


def login_of(proc: Path, pid: int) -> int | None:
    """Return the user who logged in, whatever uid a process has by now (`/proc/PID/loginuid`).

    None for a process of no login, without the kernel's audit, and where it has ended.
    """
    try:
        uid = int((proc / str(pid) / "loginuid").read_bytes())
    except (OSError, ValueError):
        return None
    return None if uid == _NO_LOGIN else uid


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
