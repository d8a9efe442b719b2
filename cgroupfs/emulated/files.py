"""The files of an emulated cgroup: what each shows, and what writing to it does."""

from __future__ import annotations

import errno
from functools import partial
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from cgroupfs.emulated import cpuset
from cgroupfs.emulated.group import CONTROLLERS
from cgroupfs.emulated.lists import (
    MAX_NODES,
    parse_bandwidth,
    parse_list,
    parse_number,
    reject,
)
from cgroupfs.state import MAX_QUOTA_US, MEMORY_MAX, NO_LIMIT, hugetlb_max, limit_text, use_of
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from cgroupfs.emulated.group import Group
    from sysfs.mask import Mask

_PID_MAX: Final = 1 << 22
_MAX_WEIGHT: Final = 10_000
_MAX_BYTES: Final = (1 << 64) - 1
#: The limits in bytes: their files with controller and unit.
_LIMITS: Final = {
    MEMORY_MAX: ("memory", PAGESIZE),
    hugetlb_max(1 << 21): ("hugetlb", 1 << 21),
    hugetlb_max(1 << 30): ("hugetlb", 1 << 30),
}


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
        raise reject(errno.EINVAL)
    _reject_clearing(group, group.mems, mems)
    group.mems = mems
    kernel.changed(group)


def _reject_clearing(group: Group, old: Mask, new: Mask) -> None:
    if old and not new and group.populated:
        raise reject(errno.ENOSPC)


def _store_exclusive(kernel: FileContext, group: Group, text: str) -> None:
    cpus = parse_list(text, kernel.cpu_limit)
    if cpuset.overlaps_sibling(group, cpus):
        raise reject(errno.EINVAL)
    group.exclusive = cpus
    kernel.changed(group)


def _store_partition(kernel: FileContext, group: Group, text: str) -> None:
    word = text.strip()
    if word not in cpuset.PARTITIONS:
        raise reject(errno.EINVAL)
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


def _store_cpu_max(_kernel: FileContext, group: Group, text: str) -> None:
    quota, period = parse_bandwidth(text, group.period)
    if quota is not None and group.burst > quota:
        raise reject(errno.EINVAL)
    group.quota, group.period = quota, period


def _show_cpu_max(_kernel: FileContext, group: Group) -> str:
    return f"{'max' if group.quota is None else group.quota} {group.period}\n"


def _store_burst(_kernel: FileContext, group: Group, text: str) -> None:
    burst = parse_number(text, 0, MAX_QUOTA_US, errno.EINVAL)
    if group.quota is not None and burst > group.quota:
        raise reject(errno.EINVAL)
    group.burst = burst


def _store_weight(_kernel: FileContext, group: Group, text: str) -> None:
    group.weight = parse_number(text, 1, _MAX_WEIGHT, errno.ERANGE)


def _store_limit(file: str, kernel: FileContext, group: Group, text: str) -> None:
    controller, unit = _LIMITS[file]
    word = text.strip()
    if word == NO_LIMIT:
        group.limits.pop(file, None)
        return
    shown = limit_text(parse_number(word, 0, _MAX_BYTES, errno.EINVAL), unit)
    if shown == NO_LIMIT:
        group.limits.pop(file, None)
        return
    group.limits[file] = int(shown)
    if controller == "memory" and group.in_use(file) > group.limits[file]:
        _kill(kernel, group, file)


def _kill(kernel: FileContext, group: Group, file: str) -> None:
    """Kill for memory until what is used fits, as the kernel does when nothing can be reclaimed."""
    for one in group.walk():
        for pid in sorted(one.procs):
            kernel.exit(pid)
        one.used.pop(file, None)


def _show_limit(file: str, _kernel: FileContext, group: Group) -> str:
    return f"{group.limits.get(file, NO_LIMIT)}\n"


def _show_use(file: str, _kernel: FileContext, group: Group) -> str:
    return f"{group.in_use(file)}\n"


def _limit_files() -> dict[str, File]:
    files: dict[str, File] = {}
    for limit, (controller, _) in _LIMITS.items():
        files[limit] = File(controller, partial(_show_limit, limit), partial(_store_limit, limit))
        files[use_of(limit) or ""] = File(controller, partial(_show_use, limit))
    return files


def _store_procs(kernel: FileContext, group: Group, text: str) -> None:
    kernel.move(parse_number(text, 0, _PID_MAX, errno.ESRCH), group)


def _store_subtree(kernel: FileContext, group: Group, text: str) -> None:
    on: set[str] = set()
    off: set[str] = set()
    for word in text.split():
        sign, name = word[0], word[1:]
        if sign not in "+-" or name not in kernel.controllers:
            raise reject(errno.EINVAL)
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
    "cpu.max": File("cpu", _show_cpu_max, _store_cpu_max),
    "cpu.max.burst": File("cpu", lambda _, g: f"{g.burst}\n", _store_burst),
    "cpu.weight": File("cpu", lambda _, g: f"{g.weight}\n", _store_weight),
    **_limit_files(),
}

#: Files of the root.
ROOT_FILES: Final = {
    **_CORE,
    "cpuset.cpus.effective": File("cpuset", lambda _, g: f"{g.cpus_now}\n"),
    "cpuset.cpus.isolated": File("cpuset", _show_isolated),
    "cpuset.mems.effective": File("cpuset", lambda _, g: f"{g.mems_now}\n"),
}
