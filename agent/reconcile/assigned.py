"""What containers have, as files that follow every change: the values of KEP-6369.

A container finds its CPUs in `<directory>/<pod uid>/<container>/assigned.cpuset`, the NUMA nodes of
its memory in `assigned.memset` beside it, both in the kernel's list format without a line break;
empty where none are its own. What it mounts is the directory: a file is replaced by another.

Numbers are taken from a file before the kernel takes the CPUs from the container, so that a program
that follows the file has left them when they are given away. They come into a file only after the
kernel has shown them: what is written is what was allocated and is effective in the container's
cgroup, or all that was allocated as long as the cgroup is not there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.files import UntrustedPathError, is_current, replace_file, trusted_directory
from agent.pods.model import uid_fault
from agent.reconcile.desired import Role
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from pathlib import Path

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.reconcile.report import EnforcementReport
    from cgroupfs.state import CgroupState

CPUSET: Final = "assigned.cpuset"
MEMSET: Final = "assigned.memset"
_FILES: Final = (CPUSET, MEMSET)
#: All that may be in the directory of a container: the files, and those that are being written.
_OURS: Final = frozenset((*_FILES, *(f".{name}.new" for name in _FILES)))

#: The uid of a pod and the name of a container.
_Key: TypeAlias = tuple[str, str]
#: CPUs and memory nodes.
_Sets: TypeAlias = tuple[Mask, Mask]
#: By which a file is known to be the one that was written: inode, time, size and mode.
_Stamp: TypeAlias = tuple[int, int, int, int]


class AssignedFiles:
    """The files of all containers below one directory.

    All but `conditions` is for the one thread that writes cgroups; nothing is raised.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, PodAllocation] = {}
        self._sets: dict[_Key, _Sets] = {}
        self._stamps: dict[_Key, tuple[_Sets, tuple[_Stamp, ...]]] = {}
        #: A line by container, of a pod ("") or of the directory ("", ""). Replaced, never changed:
        #: it is read in another thread.
        self._conditions: Mapping[_Key, str] = {}

    @property
    def conditions(self) -> tuple[str, ...]:
        """What could not be written or removed, a line each."""
        return tuple(self._conditions.values())

    def before(self, allocations: Mapping[str, PodAllocation]) -> None:
        """Take from the files what containers are about to lose, and the files of pods that ended.

        `allocations` are those that are enforced next, by uid.
        """
        for uid in self._known.keys() - allocations.keys():
            self._remove(uid)
        for uid, known in self._known.items():
            if allocations[uid] is known:
                continue
            for container in allocations[uid].containers:
                key = uid, container.name
                cpus, mems = self._sets.get(key, (EMPTY, EMPTY))
                new = _allocated(container)
                left = cpus & new[0], mems & new[1]
                if left != (cpus, mems):
                    self._write(key, left)

    def after(self, allocations: Mapping[str, PodAllocation], report: EnforcementReport) -> None:
        """Write what the kernel shows now; after a comparison of all pods also what is missing.

        Nothing is written where the kernel could not be read.
        """
        if not report.compared:
            return
        shown = {
            (each.desired.pod, each.desired.container or ""): each.state
            for each in report.cgroups
            if each.desired.role is Role.CONTAINER
        }
        for uid, allocation in allocations.items():
            same = self._known.get(uid) is allocation
            if same and report.pods is not None and uid not in report.pods:
                continue
            for container in allocation.containers:
                key = uid, container.name
                state = shown.get(key)
                if state is None and same and key in self._sets:
                    self._write(key, self._sets[key])
                else:
                    self._write(key, _effective(_allocated(container), state))
            self._known[uid] = allocation
        if report.pods is None:
            self._remove_others(allocations)

    def _write(self, key: _Key, sets: _Sets) -> None:
        """Write the files of a container unless they are the ones that were written before."""
        uid, container = key
        directory = self._directory / uid / container
        stamped = self._stamps.get(key)
        if stamped and stamped[0] == sets and _stamps(directory) == stamped[1]:
            return

        def write() -> None:
            if uid_fault(uid) or uid_fault(container):
                raise OSError(0, "its name cannot be that of a directory")
            with (
                trusted_directory(directory.parents[1], create=True),
                trusted_directory(directory.parent, create=True),
                trusted_directory(directory, create=True) as opened,
            ):
                for name, mask in zip(_FILES, sets, strict=True):
                    content = str(mask).encode()
                    if not is_current(opened, name, content):
                        replace_file(opened, name, content)
            self._sets[key] = sets
            self._stamps[key] = sets, _stamps(directory)

        self._tried(key, f"{directory} cannot be written", write)

    def _remove_others(self, uids: Container[str]) -> None:
        """Remove the files of pods without an allocation; what is not ours stays.

        What could not be removed before is tried again: another's file may have gone since.
        """
        directory = self._directory
        found: list[str] = []

        def look() -> None:
            with suppress(FileNotFoundError), trusted_directory(directory, create=False):
                found.extend(each.name for each in directory.iterdir())

        self._tried(("", ""), f"{directory} cannot be used", look)
        failed = {uid for uid, container in self._conditions if uid and not container}
        for uid in failed.union(found):
            if uid not in uids and (uid in failed or _is_ours(directory / uid)):
                self._remove(uid)

    def _remove(self, uid: str) -> None:
        directory = self._directory / uid

        def remove() -> None:
            with suppress(FileNotFoundError), trusted_directory(directory, create=False):
                for container in directory.iterdir():
                    with trusted_directory(container, create=False) as opened:
                        for name in _OURS:
                            with suppress(FileNotFoundError):
                                os.unlink(name, dir_fd=opened)
                    container.rmdir()
                directory.rmdir()

        self._tried((uid, ""), f"{directory} cannot be removed", remove)
        self._known.pop(uid, None)
        for key in [key for key in self._sets if key[0] == uid]:
            del self._sets[key]
            self._stamps.pop(key, None)
        kept = {key: line for key, line in self._conditions.items() if key[0] != uid or not key[1]}
        self._conditions = kept

    def _tried(self, key: _Key, what: str, action: Callable[[], None]) -> None:
        """Do something with files, and note whether it failed."""
        try:
            action()
        except (OSError, UntrustedPathError) as error:
            why = error.strerror if isinstance(error, OSError) else f"{error}; {error.risk.remedy}"
            self._stamps.pop(key, None)
            self._conditions = {**self._conditions, key: f"assigned files: {what}: {why}"}
        else:
            if key in self._conditions:
                self._conditions = {k: v for k, v in self._conditions.items() if k != key}


def _is_ours(directory: Path) -> bool:
    """Return whether a directory has the files of containers, and nothing else."""
    try:
        inside = [os.listdir(container) for container in directory.iterdir()]  # noqa: PTH208  # names
    except OSError:
        return False
    return bool(inside) and all(names and _OURS.issuperset(names) for names in inside)


def _allocated(container: ContainerAllocation) -> _Sets:
    """Return what is the container's own; the node's shared pool is not."""
    return container.cpus or EMPTY, container.mems or EMPTY


def _effective(allocated: _Sets, state: CgroupState | None) -> _Sets:
    """Return what of an allocation the kernel gives; all of it where there is no cgroup yet."""
    shown = (None, None) if state is None else (state.cpus_effective, state.mems_effective)
    cpus, mems = (
        own if seen is None else own & seen for own, seen in zip(allocated, shown, strict=True)
    )
    return cpus, mems


def _stamps(directory: Path) -> tuple[_Stamp, ...]:
    """Return the stamps of a container's files, none where one is missing."""
    with suppress(OSError):
        found = [os.lstat(f"{directory}/{name}") for name in _FILES]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size, each.st_mode) for each in found)
    return ()
