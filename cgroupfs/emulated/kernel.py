"""The emulated kernel: a `Tree` that answers as cgroup v2 does (kernel 6.12).

Modelled are cpuset (with its silent fallback, hotplug and partitions), the files of one value
(`cgroupfs.settings`), the rules of `cgroup.subtree_control` and of moving processes, and the errors
of all of them. Other controllers can be enabled but have no files.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cgroupfs.emulated import group as cpuset
from cgroupfs.emulated.files import FILES, ROOT_FILES
from cgroupfs.emulated.group import CONTROLLERS, MEMBER, THREADED, Group
from cgroupfs.errors import CgroupPathError, TreeLockedError, rejection
from cgroupfs.tree import check_file, check_path, check_value, join

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from cgroupfs.emulated.files import File
    from cgroupfs.tree import TreeLock
    from sysfs.mask import Mask

_DEFAULT_CONTROLLERS: Final = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")


class _Lock:
    """The lock of an emulated tree, which is in the memory of one process."""

    def __init__(self, kernel: EmulatedKernel) -> None:
        self._kernel: EmulatedKernel | None = kernel
        kernel._locked = True  # noqa: SLF001  # one thing in two classes

    def release(self) -> None:
        """Give the tree free; see `cgroupfs.tree.TreeLock`."""
        if self._kernel is not None:
            self._kernel._locked = False  # noqa: SLF001
            self._kernel = None


class EmulatedKernel:
    """A cgroup v2 hierarchy of a host with the CPUs `possible` and the memory nodes `memory`.

    `online` are the CPUs that are up (default: all possible ones).
    """

    def __init__(
        self,
        possible: Mask,
        memory: Mask,
        *,
        online: Mask | None = None,
        controllers: Iterable[str] = _DEFAULT_CONTROLLERS,
    ) -> None:
        offered = frozenset(controllers)
        self.controllers: tuple[str, ...] = tuple(name for name in CONTROLLERS if name in offered)
        self.cpu_limit = possible.highest + 1
        self.root = Group("", None)
        self.root.exclusive = possible
        self.root.cpus = possible if online is None else online
        self.root.mems = memory
        self._homes: dict[int, Group] = {}
        self._partitions: set[Group] = set()
        self._locked = False
        self._settle()

    # --- the tree ---------------------------------------------------------------------------

    def read(self, path: str, file: str) -> str:
        """Return the text of one file; see `cgroupfs.tree.Tree`."""
        group = self._group(path)
        return self._file(group, path, file).show(self, group)

    def read_many(self, path: str, files: Sequence[str]) -> tuple[str | None, ...]:
        """Return the texts of several files; see `cgroupfs.tree.Tree`."""
        group = self._group(path)
        known, offered = self._files(group)
        texts: list[str | None] = []
        for file in files:
            found = known.get(file)
            if found is None:
                check_file(file)
                texts.append(None)
            elif found.controller is None or found.controller in offered:
                texts.append(found.show(self, group))
            else:
                texts.append(None)
        return tuple(texts)

    def write(self, path: str, file: str, value: str) -> None:
        """Give one file a value; see `cgroupfs.tree.Tree`."""
        self.raw_write(path, file, check_value(value))

    def raw_write(self, path: str, file: str, value: str) -> None:
        """Write as write(2) does: no bytes are a success that changes nothing."""
        group = self._group(path)
        target = self._file(group, path, file)
        if not value:
            return
        try:
            if target.store is None:
                raise rejection(errno.EINVAL)
            target.store(self, group, value)
        except OSError as error:
            error.filename = join(path, file)
            raise

    def mkdir(self, path: str) -> None:
        """Create one cgroup; see `cgroupfs.tree.Tree`."""
        above, name = self._split(path)
        if name in above.children or name in self.files(above):
            raise self._reject(errno.EEXIST, path)
        above.children[name] = Group(name, above)
        if self._partitions:
            self._settle()

    def rmdir(self, path: str) -> None:
        """Remove one cgroup; see `cgroupfs.tree.Tree`."""
        above, name = self._split(path)
        group = above.children.get(name)
        if group is None:
            number = errno.ENOTDIR if name in self.files(above) else errno.ENOENT
            raise self._reject(number, path)
        if group.procs or group.children:
            raise self._reject(errno.EBUSY, path)
        del above.children[name]
        if group in self._partitions:
            self._partitions.discard(group)
            self._settle()

    def exists(self, path: str) -> bool:
        """Return whether the cgroup exists; see `cgroupfs.tree.Tree`."""
        return self.find(path) is not None

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the child cgroups; see `cgroupfs.tree.Tree`."""
        return tuple(sorted(self._group(path).children))

    def procs(self, path: str) -> tuple[int, ...]:
        """Return the processes of one cgroup; see `cgroupfs.tree.Tree`."""
        return tuple(sorted(self._group(path).procs))

    def lock(self) -> TreeLock:
        """Take the tree for one agent; see `cgroupfs.tree.Tree`."""
        if self._locked:
            raise TreeLockedError(Path("/"), None)
        return _Lock(self)

    # --- the world around the tree ----------------------------------------------------------

    def spawn(self, path: str, pid: int) -> None:
        """Start a process in a cgroup, under the rules of moving one there."""
        if pid in self._homes:
            raise ValueError(f"process {pid} exists already")
        group = self._group(path)
        self.check_home(group)
        self._homes[pid] = group
        group.procs.add(pid)

    def admit(self, pid: int, path: str) -> None:
        """Move a process into a cgroup, starting it there if it is not known."""
        if pid in self._homes:
            self.move(pid, self._group(path))
        else:
            self.spawn(path, pid)

    def exit(self, pid: int) -> None:
        """End a process."""
        self._homes.pop(pid).procs.discard(pid)

    def use(self, path: str, limit: str, size: int) -> None:
        """Have the processes of one cgroup use so many bytes of what a file limits."""
        self._group(path).used[limit] = size

    def allowed(self, pid: int) -> tuple[Mask, Mask]:
        """Return the CPUs and the memory nodes that a process may use."""
        home = self._homes[pid]
        return home.cpus_now, home.mems_now

    def set_online(self, cpus: Mask) -> None:
        """Take CPUs offline or back: exactly `cpus` are up afterwards."""
        self.root.cpus = cpus
        self._settle()

    # --- for the files ----------------------------------------------------------------------

    @property
    def partitioned(self) -> bool:
        """Whether any cgroup was made a partition."""
        return bool(self._partitions)

    def files(self, group: Group) -> dict[str, File]:
        """Return the files that a cgroup has now, by name."""
        if group.parent is None:
            return {name: f for name, f in ROOT_FILES.items() if f.offered(self.controllers)}
        return {name: f for name, f in FILES.items() if f.offered(group.parent.subtree)}

    def texts(self, group: Group) -> dict[str, str]:
        """Return all files of a cgroup with their texts."""
        return {name: file.show(self, group) for name, file in self.files(group).items()}

    def writable(self, path: str) -> list[str]:
        """Return the names of the files of a cgroup that take values."""
        found = self.files(self._group(path))
        return [name for name, file in found.items() if file.store is not None]

    def available(self, group: Group) -> tuple[str, ...]:
        """Return the controllers of `cgroup.controllers`, in the kernel's order."""
        if group.parent is None:
            return self.controllers
        return tuple(name for name in CONTROLLERS if name in group.parent.subtree)

    def changed(self, group: Group) -> None:
        """Bring what is in effect up to date after a cpuset setting of `group` changed."""
        if group.partition == MEMBER:
            self._partitions.discard(group)
        else:
            self._partitions.add(group)
        self._settle()

    def enable(self, group: Group, on: set[str], off: set[str]) -> None:
        """Change `cgroup.subtree_control`; raises what the kernel would."""
        on, off = on - group.subtree, off & group.subtree
        if on - set(self.available(group)):
            raise rejection(errno.ENOENT)
        if any(off & child.subtree for child in group.children.values()):
            raise rejection(errno.EBUSY)
        if on:
            self._check_enable(group, on)
        group.subtree |= on
        group.subtree -= off
        for child in group.children.values():
            for name in off:
                child.reset(name)
            self.changed(child)

    def move(self, pid: int, group: Group) -> None:
        """Move a process; raises ESRCH for one that does not run, and what the kernel would."""
        home = self._homes.get(pid)
        if home is None:
            raise rejection(errno.ESRCH)
        self.check_home(group)
        home.procs.discard(pid)
        group.procs.add(pid)
        self._homes[pid] = group

    @staticmethod
    def check_home(group: Group) -> None:
        """Raise unless processes may live in this cgroup (cgroup_migrate_vet_dst)."""
        if not group.valid_domain:
            raise rejection(errno.EOPNOTSUPP)
        if group.subtree and not group.may_be_thread_root:
            raise rejection(errno.EBUSY)

    @staticmethod
    def _check_enable(group: Group, on: set[str]) -> None:
        if group.parent is None:
            return
        if not group.valid_domain:
            raise rejection(errno.EOPNOTSUPP)
        if on <= THREADED:
            if group.may_be_thread_root:
                return
        elif group.thread_root:
            raise rejection(errno.EOPNOTSUPP)
        if group.procs:
            raise rejection(errno.EBUSY)

    def _settle(self) -> None:
        if self._partitions:
            cpuset.settle_partitions(self.root, self._partitions)
        else:
            cpuset.settle(self.root)

    # --- lookup -----------------------------------------------------------------------------

    def home(self, pid: int) -> Group | None:
        """Return the cgroup that a process lives in, None for one that does not run."""
        return self._homes.get(pid)

    def find(self, path: str) -> Group | None:
        """Return the cgroup of a path, None without one."""
        group = self.root
        for name in check_path(path).split("/") if path else ():
            child = group.children.get(name)
            if child is None:
                return None
            group = child
        return group

    def _group(self, path: str) -> Group:
        group = self.find(path)
        if group is None:
            raise self._reject(errno.ENOENT, path)
        return group

    def _split(self, path: str) -> tuple[Group, str]:
        above, _, name = check_path(path).rpartition("/")
        if not name:
            raise CgroupPathError(path, "the root itself is neither created nor removed")
        return self._group(above), name

    def _file(self, group: Group, path: str, file: str) -> File:
        found = self._lookup(group, check_file(file))
        if found is None:
            raise self._reject(errno.ENOENT, join(path, file))
        return found

    def _lookup(self, group: Group, file: str) -> File | None:
        known, offered = self._files(group)
        found = known.get(file)
        return found if found is not None and found.offered(offered) else None

    def _files(self, group: Group) -> tuple[Mapping[str, File], Container[str]]:
        """Return the files of a cgroup, and the controllers without which some are not there."""
        if group.parent is None:
            return ROOT_FILES, self.controllers
        return FILES, group.parent.subtree

    @staticmethod
    def _reject(number: int, path: str) -> OSError:
        error = rejection(number)
        error.filename = path
        return error
