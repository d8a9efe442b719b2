"""Changes in pod cgroups as they happen: containers come and go, somebody writes a setting.

A hint, not a proof: the kernel tells nothing of a changed `*.effective` or of a controller that
was removed, so a periodic `cgroupfs.verify` stays necessary. The watcher's own writes are seen
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from cgroupfs.inotify import Change, Event, Inotify
from cgroupfs.state import CPU_MAX, CPUS, EVENTS, MEMS
from cgroupfs.tree import check_path, join

if TYPE_CHECKING:
    from pathlib import Path

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
    """Events were lost: look at everything again."""


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

        Files that are missing because of a controller are left out. The kernel may tell late or
        never that the cgroup itself went away: watch its parent to learn that at once.
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
