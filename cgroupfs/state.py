"""What the kernel shows of a cgroup: its settings, their values, and how they are written."""

from __future__ import annotations

from functools import lru_cache
from mmap import PAGESIZE
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from cgroupfs.errors import CgroupValueError
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cgroupfs.tree import CgroupTree

#: Bounds of `cpu.max` in microseconds (kernel/sched/core.c: min_cfs_quota_period and
#: max_cfs_quota_period; Documentation/admin-guide/cgroup-v2.rst, CPU).
MIN_QUOTA_US: Final = 1_000

MIN_PERIOD_US: Final = 1_000

MAX_PERIOD_US: Final = 1_000_000

DEFAULT_PERIOD_US: Final = 100_000
#: The scheduler's arithmetic keeps 44 bits of microseconds (kernel/sched/core.c: max_cfs_runtime).
MAX_QUOTA_US: Final = (1 << 44) - 1

CPU_WEIGHT: Final = "cpu.weight"

MEMORY_MAX: Final = "memory.max"
#: What an unset limit and an unset weight show (cgroup-v2.rst, "Interface Files").
NO_LIMIT: Final = "max"

DEFAULT_WEIGHT: Final = "100"
#: A limit in bytes from here on means unlimited (include/linux/page_counter.h, PAGE_COUNTER_MAX).
_NO_LIMIT_FROM: Final = (1 << 63) - PAGESIZE

_KIB: Final = 1 << 10

_MIB: Final = 1 << 20

_GIB: Final = 1 << 30
#: Thousands of cgroups show few different limits, and are read again and again.
_REMEMBERED: Final = 256
#: So many different cgroups are remembered by all of their texts.
_STATES: Final = 1024


class CpuMax(Struct, frozen=True):
    """CPU bandwidth: at most `quota_us` microseconds of CPU time in each `period_us`.

    `quota_us` None means unlimited (`max`). Raises `CgroupValueError` outside the kernel's bounds.
    """

    quota_us: int | None
    period_us: int = DEFAULT_PERIOD_US

    def __post_init__(self) -> None:
        if not MIN_PERIOD_US <= self.period_us <= MAX_PERIOD_US:
            why = f"the period is between {MIN_PERIOD_US} and {MAX_PERIOD_US} microseconds"
            raise CgroupValueError("cpu.max", str(self), why)
        if self.quota_us is not None and not MIN_QUOTA_US <= self.quota_us <= MAX_QUOTA_US:
            why = f"the quota is 'max' or between {MIN_QUOTA_US} and {MAX_QUOTA_US} microseconds"
            raise CgroupValueError("cpu.max", str(self), why)

    @staticmethod
    def parse(text: str) -> CpuMax:
        """Parse what the kernel shows, such as `max 100000` or `150000 100000`."""
        return _parsed(text)

    def __str__(self) -> str:
        quota = "max" if self.quota_us is None else str(self.quota_us)
        return f"{quota} {self.period_us}"

    def allows(self, other: CpuMax) -> bool:
        """Return whether this limit is at least as wide as `other`, in CPUs per unit of time."""
        if self.quota_us is None:
            return True
        if other.quota_us is None:
            return False
        return self.quota_us * other.period_us >= other.quota_us * self.period_us


UNLIMITED: Final = CpuMax(None)


def limit_text(size: int, unit: int = PAGESIZE) -> str:
    """Return how the kernel shows a limit of `size` bytes: in whole pages of `unit` bytes."""
    return NO_LIMIT if size >= _NO_LIMIT_FROM else str(size - size % unit)


def hugetlb_max(page_size: int) -> str:
    """Return the file that limits huge pages of so many bytes (mm/hugetlb_cgroup.c, mem_fmt)."""
    for unit, name in ((_GIB, "GB"), (_MIB, "MB")):
        if page_size >= unit:
            return f"hugetlb.{page_size // unit}{name}.max"
    return f"hugetlb.{page_size // _KIB}KB.max"


def use_of(file: str) -> str | None:
    """Return the file that shows how much of a limit is in use, None where nothing does."""
    if file == MEMORY_MAX or (file.startswith("hugetlb.") and file.endswith(".max")):
        return f"{file.removesuffix('max')}current"
    return None


@lru_cache(maxsize=_REMEMBERED)
def _parsed(text: str) -> CpuMax:
    quota, _, period = text.strip().partition(" ")
    if not (period.isdigit() and (quota == "max" or quota.isdigit())):
        raise CgroupValueError("cpu.max", text.strip(), "expected 'QUOTA PERIOD'")
    return CpuMax(None if quota == "max" else int(quota), int(period))


CPUS: Final = "cpuset.cpus"

CPUS_EFFECTIVE: Final = "cpuset.cpus.effective"

MEMS: Final = "cpuset.mems"

MEMS_EFFECTIVE: Final = "cpuset.mems.effective"

CPU_MAX: Final = "cpu.max"

EVENTS: Final = "cgroup.events"

_FILES: Final = (CPUS, CPUS_EFFECTIVE, CPU_MAX, EVENTS)

_NODES: Final = (MEMS, MEMS_EFFECTIVE)
#: The files of one value each that are always read.
VALUES: Final = (CPU_WEIGHT, MEMORY_MAX)


class CgroupState(Struct, frozen=True):
    """One cgroup as read: empty `cpus`/`mems` is unset, that is the parent's.

    None stands for a file that is not there because the controller is not enabled, and for memory
    nodes that were not asked for. `values` holds the texts of files of one value (`cpu.weight`,
    `memory.max`, `hugetlb.2MB.max`) as far as they are there, `in_use` the bytes in use of those
    limits of which that was asked (`with_use`).
    """

    cpus: Mask | None
    cpus_effective: Mask | None
    mems: Mask | None
    mems_effective: Mask | None
    cpu_max: CpuMax | None
    populated: bool
    values: Mapping[str, str] = MappingProxyType({})
    in_use: Mapping[str, int] = MappingProxyType({})


class Writer(Struct, frozen=True):
    """The process that wrote a cgroup file last, as it was when the write was noticed.

    `command` and `cgroup` are "" and `uid` is null where the process had ended by then.
    """

    pid: int
    #: The text of `/proc/PID/comm`.
    command: str
    uid: int | None
    cgroup: str

    def line(self) -> str:
        """Return who wrote, in a few words."""
        user = "" if self.uid is None else f", uid {self.uid}"
        where = f", in {self.cgroup}" if self.cgroup else ""
        return f"written by {self.command or 'process'}[{self.pid}]{user}{where}"


class WriterRecord(Struct, frozen=True):
    """What systemd or a runtime would write into a cgroup; None for files it would not write."""

    cpus: Mask | None = None
    mems: Mask | None = None
    cpu_max: CpuMax | None = None
    values: Mapping[str, str] = MappingProxyType({})

    def has(self, file: str, text: str) -> bool:
        """Return whether `text` of `file` is what this record would write."""
        value = {CPUS: self.cpus, MEMS: self.mems, CPU_MAX: self.cpu_max, **self.values}.get(file)
        return value is not None and str(value) == text


def read_state(
    tree: CgroupTree, path: str, values: tuple[str, ...] = VALUES, *, nodes: bool = True
) -> CgroupState | None:
    """Read one cgroup, None when it is gone. Raises `OSError` for anything but its absence.

    `values` are the files of one value that are read as well, with `nodes` also the memory nodes.
    """
    files = (*_FILES, *_NODES, *values) if nodes else (*_FILES, *values)
    try:
        texts = tree.read_many(path, files)
    except FileNotFoundError:
        return None
    return _state_of(files, texts)


@lru_cache(maxsize=_STATES)
def _state_of(files: tuple[str, ...], texts: tuple[str | None, ...]) -> CgroupState:
    """Return the state that these files show. Most cgroups of a host show the same texts."""
    shown = {file: text for file, text in zip(files, texts, strict=True) if text is not None}
    cpu_max = shown.get(CPU_MAX)
    values = {f: text.strip() for f, text in shown.items() if f not in _FILES and f not in _NODES}
    return CgroupState(
        cpus=_mask(shown.get(CPUS)),
        cpus_effective=_mask(shown.get(CPUS_EFFECTIVE)),
        mems=_mask(shown.get(MEMS)),
        mems_effective=_mask(shown.get(MEMS_EFFECTIVE)),
        cpu_max=None if cpu_max is None else CpuMax.parse(cpu_max),
        populated="populated 1" in shown.get(EVENTS, ""),
        values=MappingProxyType(values),
    )


def fresh_state(tree: CgroupTree, files: Iterable[str]) -> CgroupState:
    """Return what the kernel shows of a cgroup just made in which `files` have no limit."""
    cpus, mems = effective_sets(tree, "")
    values = {MEMORY_MAX: NO_LIMIT, CPU_WEIGHT: DEFAULT_WEIGHT, **dict.fromkeys(files, NO_LIMIT)}
    return CgroupState(EMPTY, cpus, EMPTY, mems, UNLIMITED, populated=False, values=values)


def effective_sets(tree: CgroupTree, path: str) -> tuple[Mask, Mask]:
    """Return the CPUs and memory nodes that a cgroup has, empty when the kernel shows none.

    Raises `OSError` as the tree does, but not for a missing cgroup.
    """
    try:
        cpus, mems = tree.read_many(path, (CPUS_EFFECTIVE, MEMS_EFFECTIVE))
    except FileNotFoundError:
        return EMPTY, EMPTY
    return Mask.parse(cpus or ""), Mask.parse(mems or "")


def with_use(tree: CgroupTree, path: str, state: CgroupState, limits: Iterable[str]) -> CgroupState:
    """Return the state with how many bytes of these limits are in use; see `read_state`."""
    return replace(state, in_use=read_use(tree, path, limits))


def read_use(tree: CgroupTree, path: str, limits: Iterable[str]) -> dict[str, int]:
    """Return how many bytes of these limits (files) are in use, 0 where the kernel does not say."""
    files = {limit: use for limit in limits if (use := use_of(limit)) is not None}
    try:
        texts = tree.read_many(path, tuple(files.values()))
    except FileNotFoundError:
        return {}
    return {
        limit: int(text) if text is not None and text.strip().isdecimal() else 0
        for limit, text in zip(files, texts, strict=True)
    }


def _mask(text: str | None) -> Mask | None:
    return None if text is None else Mask.parse(text)
