"""The files of an emulated cgroup: what each shows, and what writing to it does."""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from cgroupfs.emulated import group as cpuset
from cgroupfs.emulated.group import CONTROLLERS, MAX_NODES, parse_list
from cgroupfs.errors import rejection
from cgroupfs.settings import (
    CPU_MAX,
    MAX_QUOTA_US,
    MEMORY_MAX,
    NO_LIMIT,
    VALUES,
    CpuMax,
    ValueFile,
    huge_pages,
    read_number,
    row_of,
)
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from cgroupfs.emulated.group import Group
    from sysfs.mask import Mask

_PID_MAX: Final = 1 << 22


class FileContext(Protocol):
    """What the files need of the emulated kernel around them."""

    controllers: tuple[str, ...]
    cpu_limit: int
    root: Group

    @property
    def partitioned(self) -> bool:
        """Whether there is any partition."""
        ...

    def available(self, group: Group) -> tuple[str, ...]:
        """Return the controllers that the cgroup has."""
        ...

    def changed(self, group: Group) -> None:
        """Bring what is in effect up to date."""
        ...

    def enable(self, group: Group, on: set[str], off: set[str]) -> None:
        """Change what the cgroup passes on to its children."""
        ...

    def move(self, pid: int, group: Group) -> None:
        """Move a process into the cgroup."""
        ...

    def exit(self, pid: int) -> None:
        """End a process."""
        ...


class File(Struct, frozen=True):
    """One file: its controller (None: always there), its text, and what a write does."""

    controller: str | None
    show: Callable[[FileContext, Group], str]
    store: Callable[[FileContext, Group, str], None] | None = None

    def offered(self, controllers: Container[str]) -> bool:
        """Return whether the file is there when these controllers are enabled."""
        return self.controller is None or self.controller in controllers


def _store_cpus(kernel: FileContext, group: Group, text: str) -> None:
    cpus = parse_list(text, kernel.cpu_limit)
    _reject_clearing(group, group.cpus, cpus)
    group.cpus = cpus
    if kernel.partitioned:
        cpuset.break_siblings(group)
    kernel.changed(group)


def _store_mems(kernel: FileContext, group: Group, text: str) -> None:
    mems = parse_list(text, MAX_NODES)
    if not mems <= kernel.root.mems:
        raise rejection(errno.EINVAL)
    _reject_clearing(group, group.mems, mems)
    group.mems = mems
    kernel.changed(group)


def _reject_clearing(group: Group, old: Mask, new: Mask) -> None:
    if old and not new and group.populated:
        raise rejection(errno.ENOSPC)


def _store_exclusive(kernel: FileContext, group: Group, text: str) -> None:
    cpus = parse_list(text, kernel.cpu_limit)
    if cpuset.overlaps_sibling(group, cpus):
        raise rejection(errno.EINVAL)
    group.exclusive = cpus
    kernel.changed(group)


def _store_partition(kernel: FileContext, group: Group, text: str) -> None:
    word = text.strip()
    if word not in cpuset.PARTITIONS:
        raise rejection(errno.EINVAL)
    group.partition, group.broken = word, False
    kernel.changed(group)


def _show_partition(_kernel: FileContext, group: Group) -> str:
    if group.broken:
        return f"{group.partition} invalid\n"
    if group.invalid:
        return f"{group.partition} invalid ({group.invalid})\n"
    return group.partition + "\n"


def _show_isolated(kernel: FileContext, _group: Group) -> str:
    taken = EMPTY
    for group in kernel.root.walk():
        if group.partition == cpuset.ISOLATED and group.is_partition:
            taken |= group.exclusive_now
    return f"{taken}\n"


def _store_burst(_kernel: FileContext, group: Group, text: str) -> None:
    burst = read_number(text, 0, MAX_QUOTA_US, errno.EINVAL)
    _check_burst(burst, _shown(row_of(CPU_MAX), group))
    group.burst = burst


def _check_burst(burst: int, bandwidth: str) -> None:
    quota = CpuMax.parse(bandwidth).quota_us
    if quota is not None and burst > quota:
        raise rejection(errno.EINVAL)


def _value_files() -> dict[str, File]:
    files: dict[str, File] = {}
    for row in (*VALUES, huge_pages(1 << 21), huge_pages(1 << 30)):
        show, store = partial(_show_value, row), partial(_store_value, row)
        files[row.file] = File(row.controller, show, store)
        if row.use:
            files[row.use] = File(row.controller, partial(_show_use, row))
    return files


def _shown(row: ValueFile, group: Group) -> str:
    return group.values.get(row.file, row.unset)


def _show_value(row: ValueFile, _kernel: FileContext, group: Group) -> str:
    return f"{_shown(row, group)}\n"


def _show_use(row: ValueFile, _kernel: FileContext, group: Group) -> str:
    return f"{group.in_use(row.file)}\n"


def _store_value(row: ValueFile, kernel: FileContext, group: Group, text: str) -> None:
    taken = row.taken(text, _shown(row, group))
    if row.file == CPU_MAX:
        _check_burst(group.burst, taken)
    group.values[row.file] = taken
    # The limits of huge pages are charged before a page is used: nothing is killed for them.
    if row.file == MEMORY_MAX and taken != NO_LIMIT and group.in_use(row.file) > int(taken):
        _kill(kernel, group, row.file)


def _kill(kernel: FileContext, group: Group, file: str) -> None:
    """Kill for memory until what is used fits, as the kernel does when nothing can be reclaimed."""
    for one in group.walk():
        for pid in sorted(one.procs):
            kernel.exit(pid)
        one.used.pop(file, None)


def _store_procs(kernel: FileContext, group: Group, text: str) -> None:
    kernel.move(read_number(text, 0, _PID_MAX, errno.ESRCH), group)


def _store_subtree(kernel: FileContext, group: Group, text: str) -> None:
    on: set[str] = set()
    off: set[str] = set()
    for word in text.split():
        sign, name = word[0], word[1:]
        if sign not in "+-" or name not in kernel.controllers:
            raise rejection(errno.EINVAL)
        (on if sign == "+" else off).add(name)
        (off if sign == "+" else on).discard(name)
    kernel.enable(group, on, off)


def _show_subtree(_kernel: FileContext, group: Group) -> str:
    return " ".join(name for name in CONTROLLERS if name in group.subtree) + "\n"


def _show_procs(_kernel: FileContext, group: Group) -> str:
    return "".join(f"{pid}\n" for pid in sorted(group.procs))


def _show_type(_kernel: FileContext, group: Group) -> str:
    if not group.valid_domain:
        return "domain invalid\n"
    return "domain threaded\n" if group.thread_root else "domain\n"


_CORE: Final = {
    "cgroup.controllers": File(None, lambda k, g: " ".join(k.available(g)) + "\n"),
    "cgroup.subtree_control": File(None, _show_subtree, _store_subtree),
    "cgroup.procs": File(None, _show_procs, _store_procs),
}

#: Files of every cgroup but the root.
FILES: Final = {
    **_CORE,
    "cgroup.events": File(None, lambda _, g: f"populated {int(g.populated)}\nfrozen 0\n"),
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
