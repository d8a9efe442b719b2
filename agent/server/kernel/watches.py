"""inotify watches on directories and cgroups, as endless streams of changes.

They only save time: the periodic comparison finds what they miss.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from cgroupfs.tree import is_within
from cgroupfs.watch import DIRECTORY_OF_FILES, NAMES_IN_DIRECTORY, CgroupWatch, Change, Inotify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable
    from pathlib import Path


_EventT_co = TypeVar("_EventT_co", covariant=True)


class _Readable(Protocol[_EventT_co]):
    def fileno(self) -> int:
        """Return the descriptor to wait on."""

    def read(self) -> tuple[_EventT_co, ...]:
        """Return pending events; never blocks."""


async def directory_changes(directory: Path) -> AsyncIterator[None]:
    """Yield whenever files of a directory were written, moved or removed. Raises `OSError`."""
    with Inotify() as inotify:
        inotify.add(directory, DIRECTORY_OF_FILES)
        async for _ in _readings(inotify):
            yield


async def directory_names(directory: Path) -> AsyncIterator[None]:
    """Yield once the directory is watched, and whenever a name in it appears or disappears.

    Ends when the directory was removed or renamed. Raises `OSError`, ENOENT without the directory.
    """
    with Inotify() as inotify:
        inotify.add(directory, NAMES_IN_DIRECTORY)
        yield
        async for events in _readings(inotify):
            yield
            if any(event.change & (Change.IGNORED | Change.MOVE_SELF) for event in events):
                return


class CgroupChanges:
    """Watches a changing set of cgroups."""

    def __init__(self, mount: Path) -> None:
        self._watch = CgroupWatch(mount)
        self._watched: set[str] = set()

    def follow(self, cgroups: Iterable[str], renewed: Collection[str] = ()) -> None:
        """Watch exactly these cgroups, except those that no longer exist.

        A controller that was disabled and enabled again has new files, and so has a cgroup that was
        removed and created again: cgroups at or below one of `renewed` are watched again. Raises
        `OSError` (ENOSPC) when the kernel allows no more watches.
        """
        desired = frozenset(cgroups)
        for cgroup in self._watched - desired:
            self._watch.remove(cgroup)
        kept = {cgroup for cgroup in self._watched & desired if not is_within(cgroup, renewed)}
        added = {cgroup for cgroup in desired - kept if self._watch.add(cgroup)}
        self._watched = kept | added

    def also(self, cgroups: Iterable[str]) -> None:
        """Watch these cgroups too, except those that no longer exist.

        Raises `OSError` (ENOSPC) when the kernel allows no more watches.
        """
        self._watched.update(cgroup for cgroup in cgroups if self._watch.add(cgroup))

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever a cgroup was created or removed, or one of its settings was written."""
        async for _ in _readings(self._watch):
            yield

    def close(self) -> None:
        """End all watches."""
        self._watch.close()


async def _readings(source: _Readable[_EventT_co]) -> AsyncIterator[tuple[_EventT_co, ...]]:
    """Yield the events that were read from a descriptor, whenever there are any."""
    readable = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(source.fileno(), readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            if events := source.read():
                yield events
    finally:
        loop.remove_reader(source.fileno())
