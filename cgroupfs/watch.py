"""Changes in cgroups and directories as they happen: inotify(7) as typed events."""

from __future__ import annotations

import ctypes
import os
import struct
from enum import IntFlag
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from cgroupfs.settings import CPU_MAX, CPUS, MEMS
from cgroupfs.state import EVENTS
from cgroupfs.tree import check_path, join

if TYPE_CHECKING:
    from pathlib import Path


class Change(IntFlag):
    """What happened, and what to watch for (linux/inotify.h)."""

    MODIFY = 0x0002
    CLOSE_WRITE = 0x0008
    MOVED_FROM = 0x0040
    MOVED_TO = 0x0080
    CREATE = 0x0100
    DELETE = 0x0200
    DELETE_SELF = 0x0400
    MOVE_SELF = 0x0800
    UNMOUNT = 0x2000
    OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x0100_0000
    DONT_FOLLOW = 0x0200_0000
    ISDIR = 0x4000_0000


#: For a directory of files that are replaced by renaming or written and closed.
DIRECTORY_OF_FILES: Final = (
    Change.CLOSE_WRITE
    | Change.MOVED_TO
    | Change.MOVED_FROM
    | Change.DELETE
    | Change.DELETE_SELF
    | Change.MOVE_SELF
    | Change.ONLYDIR
)

#: For the names in a directory, of whatever files.
NAMES_IN_DIRECTORY: Final = (
    Change.CREATE
    | Change.MOVED_TO
    | Change.MOVED_FROM
    | Change.DELETE
    | Change.DELETE_SELF
    | Change.MOVE_SELF
    | Change.ONLYDIR
)

_HEADER: Final = struct.Struct("=iIII")

_BUFFER: Final = 64 * 1024

_LIBC: Final = ctypes.CDLL(None, use_errno=True)

_LIBC.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


class Event(Struct, frozen=True):
    """One event: the watched path, what happened, the name inside it (`""`: the path itself).

    `path` is None when events were lost (`Change.OVERFLOW`): observe everything again.
    """

    path: Path | None
    change: Change
    name: str


class Inotify:
    """A set of watched paths. Not thread-safe; close it, or use it as a context manager."""

    def __init__(self) -> None:
        self._fd = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
        self._paths: dict[int, Path] = {}
        self._watches: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor to wait on for readability."""
        return self._fd

    def close(self) -> None:
        """End all watches."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def add(self, path: Path, changes: Change) -> None:
        """Watch `path`; watching it again replaces the changes, or the file that was there.

        Raises `OSError`: ENOENT for a path that is not there, ENOSPC when
        fs.inotify.max_user_watches is used up.
        """
        watch = _checked(
            _LIBC.inotify_add_watch(self._fd, os.fsencode(path), int(changes)), str(path)
        )
        before = self._watches.get(path, watch)
        if before != watch:
            # The kernel may not report that a file of a cgroup was removed.
            self._paths.pop(before, None)
            _LIBC.inotify_rm_watch(self._fd, before)
        self._paths[watch] = path
        self._watches[path] = watch

    def remove(self, path: Path) -> None:
        """Stop watching `path`; a path that is not watched is ignored."""
        watch = self._watches.pop(path, None)
        if watch is not None:
            self._paths.pop(watch, None)
            _LIBC.inotify_rm_watch(self._fd, watch)

    def read(self) -> tuple[Event, ...]:
        """Return what happened since the last call, nothing when nothing did; never blocks."""
        try:
            data = os.read(self._fd, _BUFFER)
        except BlockingIOError:
            return ()
        events: list[Event] = []
        offset = 0
        while offset < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            event = self._event(watch, Change(mask), name)
            if event is not None:
                events.append(event)
        return tuple(events)

    def _event(self, watch: int, change: Change, name: str) -> Event | None:
        if change & Change.OVERFLOW:
            return Event(None, change, "")
        path = self._paths.get(watch)
        if path is None:
            return None  # queued before `remove`
        if change & Change.IGNORED:
            del self._paths[watch]
            if self._watches.get(path) != watch:
                return None  # the path was watched again meanwhile
            del self._watches[path]
        return Event(path, change, name)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


#: A cgroup's directory: children, and its own end.
_GROUP: Final = (
    Change.CREATE | Change.DELETE | Change.DELETE_SELF | Change.ONLYDIR | Change.DONT_FOLLOW
)

_FILES: Final = (CPUS, MEMS, CPU_MAX, EVENTS)


class Created(Struct, frozen=True):
    """A cgroup appeared."""

    cgroup: str


class Removed(Struct, frozen=True):
    """A cgroup went away."""

    cgroup: str


class Touched(Struct, frozen=True):
    """A file was written, or its content changed (`cgroup.events`)."""

    cgroup: str
    file: str


class Rescan(Struct, frozen=True):
    """Events were lost: observe everything again."""


CgroupEvent = Created | Removed | Touched | Rescan


class CgroupWatch:
    """Watches cgroups below one root. Wait on `fileno()`, then call `read()`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._inotify = Inotify()
        self._cgroups: dict[Path, tuple[str, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor to wait on for readability."""
        return self._inotify.fileno()

    def close(self) -> None:
        """End all watches."""
        self._inotify.close()

    def add(self, cgroup: str) -> bool:
        """Watch a cgroup and its settings; False when it is gone. Adding it twice is harmless.

        Files that are missing because of a controller are left out. The kernel may report late or
        never that the cgroup itself was removed: watch its parent to see that at once.
        """
        directory = self._root / check_path(cgroup)
        try:
            self._watch(directory, cgroup, "", _GROUP)
        except FileNotFoundError:
            return False
        for file in _FILES:
            try:
                self._watch(directory / file, cgroup, file, Change.MODIFY | Change.DONT_FOLLOW)
            except FileNotFoundError:
                continue
        return True

    def remove(self, cgroup: str) -> None:
        """Stop watching a cgroup."""
        directory = self._root / check_path(cgroup)
        for path in (directory, *(directory / file for file in _FILES)):
            self._cgroups.pop(path, None)
            self._inotify.remove(path)

    def read(self) -> tuple[CgroupEvent, ...]:
        """Return what happened, each thing once, in order; never blocks."""
        seen: dict[CgroupEvent, None] = {}
        for event in self._inotify.read():
            found = self._translate(event)
            if found is not None:
                seen[found] = None
        return tuple(seen)

    def _watch(self, path: Path, cgroup: str, file: str, changes: Change) -> None:
        self._inotify.add(path, changes)
        self._cgroups[path] = (cgroup, file)

    def _translate(self, event: Event) -> CgroupEvent | None:
        if event.path is None:
            return Rescan()
        known = self._cgroups.get(event.path)
        if known is None:
            return None
        if event.change & Change.IGNORED:
            del self._cgroups[event.path]
            return None
        cgroup, file = known
        if file:
            return Touched(cgroup, file) if event.change & Change.MODIFY else None
        return _in_group(cgroup, event)


def _in_group(cgroup: str, event: Event) -> CgroupEvent | None:
    if event.change & Change.DELETE_SELF:
        return Removed(cgroup)
    if not event.change & Change.ISDIR:
        return None
    inner = join(cgroup, event.name)
    return Created(inner) if event.change & Change.CREATE else Removed(inner)
