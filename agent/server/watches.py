"""inotify watches on directories and cgroups, as endless streams of changes.

They only save time: the periodic comparison finds what they miss.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from cgroupfs.tree import is_within
from cgroupfs.watch import (
    DIRECTORY_OF_FILES,
    NAMES_IN_DIRECTORY,
    CgroupWatch,
    Change,
    Created,
    Inotify,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable
    from pathlib import Path

_EventT_co = TypeVar("_EventT_co", covariant=True)


class _Readable(Protocol[_EventT_co]):
    def fileno(self) -> int:
        """Return the descriptor to wait on."""

    def read(self) -> tuple[_EventT_co, ...]:
        """Return pending events; never blocks."""


async def directory_changes(directory: Path) -> AsyncIterator[None]:
    """Yield once the directory is watched, and when a file in it was written, moved or removed.

    Ends without the directory, which its reader reports, and when it was removed or renamed. Raises
    `OSError`.
    """
    with suppress(FileNotFoundError):
        async with aclosing(_changes(directory, DIRECTORY_OF_FILES)) as changes:
            async for _ in changes:
                yield


def directory_names(directory: Path) -> AsyncIterator[None]:
    """Yield once the directory is watched, and whenever a name in it appears or disappears.

    Ends when the directory was removed or renamed. Raises `OSError`, ENOENT without the directory.
    """
    return _changes(directory, NAMES_IN_DIRECTORY)


async def _changes(directory: Path, changes: Change) -> AsyncGenerator[None, None]:
    above = directory.parent
    with Inotify() as inotify:
        # A directory that was removed says so itself only once no process has it, or a socket that
        # was bound in it, open.
        inotify.add(above, NAMES_IN_DIRECTORY)
        inotify.add(directory, changes)
        yield
        async with aclosing(_readings(inotify)) as readings:
            async for events in readings:
                gone = [
                    each.change & (Change.DELETE | Change.MOVED_FROM)
                    if (each.path, each.name) == (above, directory.name)
                    else each.change & (Change.IGNORED | Change.MOVE_SELF)
                    for each in events
                ]
                if any(gone) or any(each.path != above for each in events):
                    yield
                if any(gone):
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

    async def changes(self) -> AsyncIterator[tuple[str, ...]]:
        """Yield whenever a cgroup was created or removed, or one of its settings was written.

        What is yielded are the cgroups that were created.
        """
        async with aclosing(_readings(self._watch)) as readings:
            async for events in readings:
                yield tuple([event.cgroup for event in events if isinstance(event, Created)])

    def close(self) -> None:
        """End all watches."""
        self._watch.close()


async def _readings(source: _Readable[_EventT_co]) -> AsyncGenerator[tuple[_EventT_co, ...], None]:
    """Yield the events that were read from a descriptor, whenever there are any.

    Close the generator before the descriptor: the loop would watch whatever has its number next.
    """
    readable = asyncio.Event()
    loop, number = asyncio.get_running_loop(), source.fileno()
    loop.add_reader(number, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            if events := source.read():
                yield events
    finally:
        loop.remove_reader(number)
