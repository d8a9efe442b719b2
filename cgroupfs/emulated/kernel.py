"""The emulated kernel: a `CgroupTree` that answers as cgroup v2 does (kernel 6.12, or a later one).

Modelled are cpuset (with its silent fallback, hotplug and partitions), the files of one value
(`cgroupfs.settings`), the rules of `cgroup.subtree_control` and of moving processes, and the errors
of all of them. Other controllers can be enabled but have no files. What each file shows and what
writing to it does is a `File`.
"""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cgroupfs.emulated import group as cpuset
from cgroupfs.emulated.group import CONTROLLERS, MAX_NODES, THREADED, Group, parse_list
from cgroupfs.emulated.rules import LINUX_6_12
from cgroupfs.errors import CgroupPathError, TreeLockedError, rejection
from cgroupfs.settings import (
    CPU_MAX,
    MAX_QUOTA_US,
    MEMBER,
    MEMORY_MAX,
    NO_LIMIT,
    PARTITION,
    VALUES,
    CpuMax,
    ValueFile,
    huge_pages,
    read_number,
    reserved_pages,
    row_of,
)
from cgroupfs.tree import check_file, check_path, check_value, join
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from cgroupfs.emulated.rules import Rules
    from cgroupfs.tree import TreeLock
    from sysfs.mask import Mask

_PAGE_SIZES: Final = (1 << 21, 1 << 30)
_PAGE_LIMITS: Final = tuple(huge_pages(size).file for size in _PAGE_SIZES)
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

    `online` are the CPUs that are up (default: all possible ones). With `counts_huge_pages` these
    count as memory (the mount's option memory_hugetlb_accounting); `rules` are the version's,
    `isolcpus` the CPUs that the kernel's command line isolates.
    """

    def __init__(
        self,
        possible: Mask,
        memory: Mask,
        *,
        online: Mask | None = None,
        controllers: Iterable[str] = _DEFAULT_CONTROLLERS,
        counts_huge_pages: bool = False,
        rules: Rules = LINUX_6_12,
        isolcpus: Mask = EMPTY,
    ) -> None:
        offered = frozenset(controllers)
        self.controllers: tuple[str, ...] = tuple(name for name in CONTROLLERS if name in offered)
        self.cpu_limit = possible.highest + 1
        self.root = Group("", None)
        self.root.exclusive = possible
        self.root.cpus = possible if online is None else online
        self.root.mems = memory
        self.root.isolcpus = isolcpus
        #: All cgroups by their paths.
        self._groups = {"": self.root}
        self._homes: dict[int, Group] = {}
        self._partitions: set[Group] = set()
        self._locked = False
        self._counts_huge_pages = counts_huge_pages
        self.rules = rules
        self.isolcpus = isolcpus
        self._settle()

    def read(self, path: str, file: str) -> str:
        group = self._group(path)
        return self._file(group, path, file).show(self, group)

    def read_many(self, path: str, files: Sequence[str]) -> tuple[str | None, ...]:
        group = self._groups.get(path) or self._group(path)
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
        above, name = self._split(path)
        if name in above.children or name in self.files(above):
            raise self._reject(errno.EEXIST, path)
        above.children[name] = self._groups[path] = Group(name, above)
        if self._partitions:
            self._settle()

    def rmdir(self, path: str) -> None:
        above, name = self._split(path)
        group = above.children.get(name)
        if group is None:
            number = errno.ENOTDIR if name in self.files(above) else errno.ENOENT
            raise self._reject(number, path)
        if group.procs or group.children:
            raise self._reject(errno.EBUSY, path)
        del above.children[name], self._groups[path]
        if group in self._partitions:
            if group.broken and above.parent is not None and not above.is_partition:
                self.root.lost |= group.exclusive
            self._partitions.discard(group)
            self._settle()

    def exists(self, path: str) -> bool:
        return self.find(path) is not None

    def children(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(self._group(path).children))

    def listed(self, path: str) -> dict[str, bool]:
        children = self._group(path).children
        return {name: bool(children[name].children) for name in sorted(children)}

    def procs(self, path: str) -> tuple[int, ...]:
        return tuple(sorted(self._group(path).procs))

    def lock(self) -> TreeLock:
        if self._locked:
            raise TreeLockedError(Path("/"), None)
        return _Lock(self)

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

    def in_use(self, group: Group, limit: str) -> int:
        """Return the bytes that count for a limit."""
        pages = _PAGE_LIMITS if self._counts_huge_pages and limit == MEMORY_MAX else ()
        return sum(group.in_use(each) for each in (limit, *pages))

    def allowed(self, pid: int) -> tuple[Mask, Mask]:
        """Return the CPUs and the memory nodes that a process may use."""
        home = self._homes[pid]
        return home.cpus_now, home.mems_now

    def set_online(self, cpus: Mask) -> None:
        """Take CPUs offline or back: exactly `cpus` are up afterwards."""
        self.root.cpus = cpus
        self._settle()

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
            group.yielded = EMPTY
        else:
            self._partitions.add(group)
            if self.rules.keeps_partitions:
                cpuset.yield_to_siblings(group)
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
            cpuset.settle_partitions(self.root, self._partitions, self.rules)
        else:
            cpuset.settle(self.root)

    def home(self, pid: int) -> Group | None:
        """Return the cgroup that a process lives in, None for one that does not run."""
        return self._homes.get(pid)

    def find(self, path: str) -> Group | None:
        """Return the cgroup of a path, None without one."""
        group = self._groups.get(path)
        if group is None:
            check_path(path)
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


_PID_MAX: Final = 1 << 22


class File(Struct, frozen=True):
    """One file: its controller (None: always there), its text, and what a write does."""

    controller: str | None
    show: Callable[[EmulatedKernel, Group], str]
    store: Callable[[EmulatedKernel, Group, str], None] | None = None

    def offered(self, controllers: Container[str]) -> bool:
        """Return whether the file is there when these controllers are enabled."""
        return self.controller is None or self.controller in controllers


def _store_cpus(kernel: EmulatedKernel, group: Group, text: str) -> None:
    cpus = parse_list(text, kernel.cpu_limit)
    _reject_clearing(kernel, group, group.cpus, cpus)
    group.cpus = cpus
    if kernel.partitioned and not kernel.rules.keeps_partitions:
        cpuset.break_siblings(group)
    kernel.changed(group)


def _store_mems(kernel: EmulatedKernel, group: Group, text: str) -> None:
    mems = parse_list(text, MAX_NODES)
    if not mems <= kernel.root.mems:
        raise rejection(errno.EINVAL)
    _reject_clearing(kernel, group, group.mems, mems)
    group.mems = mems
    kernel.changed(group)


def _reject_clearing(kernel: EmulatedKernel, group: Group, old: Mask, new: Mask) -> None:
    if old and not new and group.populated and not kernel.rules.clears_used_sets:
        raise rejection(errno.ENOSPC)


def _store_exclusive(kernel: EmulatedKernel, group: Group, text: str) -> None:
    cpus = parse_list(text, kernel.cpu_limit)
    if cpuset.overlaps_sibling(group, cpus):
        raise rejection(errno.EINVAL)
    group.exclusive, group.stale = cpus, False
    kernel.changed(group)


def _store_partition(kernel: EmulatedKernel, group: Group, text: str) -> None:
    word = row_of(PARTITION).taken(text, "")
    if word == group.partition and group.is_partition:
        return
    for inside in group.walk() if group.is_partition else ():
        inside.detached = inside.partition != MEMBER
    underneath = (inside for inside in group.walk() if inside is not group and inside.is_partition)
    group.over_remote = (
        word != MEMBER
        and group.parent is kernel.root
        and any(not each.exclusive_now.isdisjoint(group.exclusive) for each in underneath)
    )
    group.partition, group.detached = word, False
    group.invalid, group.broken = "", False
    kernel.changed(group)


def _show_partition(_kernel: EmulatedKernel, group: Group) -> str:
    if group.broken:
        return f"{group.partition} invalid\n"
    if group.invalid:
        return f"{group.partition} invalid ({group.invalid})\n"
    return group.partition + "\n"


def _show_isolated(kernel: EmulatedKernel, _group: Group) -> str:
    taken = kernel.root.isolcpus
    for group in kernel.root.walk():
        if group.partition == cpuset.ISOLATED and group.is_partition:
            taken |= group.exclusive_now
    return f"{taken}\n"


def _store_burst(_kernel: EmulatedKernel, group: Group, text: str) -> None:
    burst = read_number(text, 0, MAX_QUOTA_US, errno.EINVAL)
    _check_burst(burst, _shown(row_of(CPU_MAX), group))
    group.burst = burst


def _check_burst(burst: int, bandwidth: str) -> None:
    quota = CpuMax.parse(bandwidth).quota_us
    if quota is not None and burst > quota:
        raise rejection(errno.EINVAL)


def _value_files() -> dict[str, File]:
    files: dict[str, File] = {}
    for row in (*VALUES, *map(huge_pages, _PAGE_SIZES), *map(reserved_pages, _PAGE_SIZES)):
        show, store = partial(_show_value, row), partial(_store_value, row)
        files[row.file] = File(row.controller, show, store)
        if row.use:
            files[row.use] = File(row.controller, partial(_show_use, row))
    return files


def _shown(row: ValueFile, group: Group) -> str:
    return group.values.get(row.file, row.unset)


def _show_value(row: ValueFile, _kernel: EmulatedKernel, group: Group) -> str:
    return group.values.get(row.file, row.unset) + "\n"


def _show_use(row: ValueFile, kernel: EmulatedKernel, group: Group) -> str:
    return f"{kernel.in_use(group, row.file)}\n"


def _store_value(row: ValueFile, kernel: EmulatedKernel, group: Group, text: str) -> None:
    taken = row.taken(text, _shown(row, group))
    if row.file == CPU_MAX:
        _check_burst(group.burst, taken)
    group.values[row.file] = taken
    # The limits of huge pages are charged before a page is used: nothing is killed for them.
    if row.file == MEMORY_MAX and taken != NO_LIMIT and kernel.in_use(group, row.file) > int(taken):
        _kill(kernel, group, row.file)


def _kill(kernel: EmulatedKernel, group: Group, file: str) -> None:
    """Kill for memory until what is used fits, as the kernel does when nothing can be reclaimed."""
    for one in group.walk():
        for pid in sorted(one.procs):
            kernel.exit(pid)
        one.used.pop(file, None)


def _store_procs(kernel: EmulatedKernel, group: Group, text: str) -> None:
    kernel.move(read_number(text, 0, _PID_MAX, errno.ESRCH), group)


def _store_subtree(kernel: EmulatedKernel, group: Group, text: str) -> None:
    on: set[str] = set()
    off: set[str] = set()
    for word in text.split():
        sign, name = word[0], word[1:]
        if sign not in "+-" or name not in kernel.controllers:
            raise rejection(errno.EINVAL)
        (on if sign == "+" else off).add(name)
        (off if sign == "+" else on).discard(name)
    kernel.enable(group, on, off)


def _show_subtree(_kernel: EmulatedKernel, group: Group) -> str:
    return " ".join(name for name in CONTROLLERS if name in group.subtree) + "\n"


def _show_procs(_kernel: EmulatedKernel, group: Group) -> str:
    return "".join(f"{pid}\n" for pid in sorted(group.procs))


def _show_type(_kernel: EmulatedKernel, group: Group) -> str:
    if not group.valid_domain:
        return "domain invalid\n"
    return "domain threaded\n" if group.thread_root else "domain\n"


_POPULATED: Final = "populated 1\nfrozen 0\n"
_UNPOPULATED: Final = "populated 0\nfrozen 0\n"

_CORE: Final = {
    "cgroup.controllers": File(None, lambda k, g: " ".join(k.available(g)) + "\n"),
    "cgroup.subtree_control": File(None, _show_subtree, _store_subtree),
    "cgroup.procs": File(None, _show_procs, _store_procs),
    # A process is one thread here, and a thread is moved with its process alone.
    "cgroup.threads": File(None, _show_procs),
}

#: Files of every cgroup but the root.
FILES: Final = {
    **_CORE,
    "cgroup.events": File(None, lambda _, g: _POPULATED if g.populated else _UNPOPULATED),
    "cgroup.type": File(None, _show_type),
    "cpuset.cpus": File("cpuset", lambda _, g: f"{g.cpus}\n", _store_cpus),
    "cpuset.cpus.effective": File("cpuset", lambda _, g: f"{g.cpus_now}\n"),
    "cpuset.cpus.exclusive": File("cpuset", lambda _, g: f"{g.exclusive}\n", _store_exclusive),
    "cpuset.cpus.exclusive.effective": File("cpuset", lambda _, g: f"{g.exclusive_now}\n"),
    "cpuset.cpus.partition": File("cpuset", _show_partition, _store_partition),
    "cpuset.mems": File("cpuset", lambda _, g: f"{g.mems}\n", _store_mems),
    "cpuset.mems.effective": File("cpuset", lambda _, g: f"{g.mems_now}\n"),
    "cpu.max.burst": File("cpu", lambda _, g: f"{g.burst}\n", _store_burst),
    **_value_files(),
}

#: Files of the root.
ROOT_FILES: Final = {
    **_CORE,
    "cpuset.cpus.effective": File("cpuset", lambda _, g: f"{g.cpus_now}\n"),
    "cpuset.cpus.isolated": File("cpuset", _show_isolated),
    "cpuset.mems.effective": File("cpuset", lambda _, g: f"{g.mems_now}\n"),
}
