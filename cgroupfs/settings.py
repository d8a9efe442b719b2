"""The settings of a cgroup that the agent writes: one row for each file.

What follows from the rows: what is read of every cgroup (`cgroupfs.state`), compared and planned
(`cgroupfs.plan`), recorded in systemd (`agent.reconcile.drivers`), shown by the API
(`agent.api.documents.kernel.KernelDocument`), listed by `agent.enforce`, and what the emulated
kernel accepts. What a pod is to have of a file follows from the ledger (`agent.reconcile.desired`).

A file of one value is a row of `VALUES`; the files of huge pages are rows of their own kinds, one
for each size (`huge_pages`, `reserved_pages`). The sets of a cgroup, `cpuset.cpus` and
`cpuset.mems`, have an order of writes and a parent's set to inherit, so that they are more than a
text: theirs are the rows of `SETS`. So have the files of a partition (`PARTITIONS`), which are read
only where they are desired.
"""

from __future__ import annotations

import errno
import re
from enum import StrEnum
from functools import lru_cache
from mmap import PAGESIZE
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from cgroupfs.errors import CgroupValueError, rejection
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable

#: What an unset limit shows (cgroup-v2.rst, "Interface Files").
NO_LIMIT: Final = "max"


class KernelController(StrEnum):
    """A controller of the kernel whose files the agent writes: an item of `agent.enforce`."""

    #: What the agent sets with the controller's files.
    sets: str
    #: What does not happen where the controller is left to others.
    without: str
    #: Whether every cgroup of a pod needs it; a cgroup with processes may pass such controllers on
    #: to its children (cgroup-v2.rst, "No Internal Process Constraint").
    needed: bool

    CPUSET = (
        "cpuset",
        "cpuset.cpus and cpuset.mems of pods and containers",
        "exclusive CPUs and memory nodes are decided but not written",
        True,
    )
    CPU = (
        "cpu",
        "cpu.max of pods and containers, cpu.weight of pods and of the cgroups above them",
        "neither quotas nor weights of pods are written",
        True,
    )
    MEMORY = (
        "memory",
        "memory.max of pods, of containers where their runtime set none, of kubepods; Memory QoS",
        "neither limits nor reservations of memory are written",
        False,
    )
    HUGETLB = (
        "hugetlb",
        "hugetlb.*.max, .rsvd.max of pods, of containers where their runtime set none, of kubepods",
        "limits of huge pages of pods are not written",
        False,
    )
    PIDS = (
        "pids",
        "pids.max of kubepods",
        "how many processes all pods together may have is not limited",
        False,
    )

    def __new__(cls, name: str, sets: str, without: str, needed: bool) -> Self:  # noqa: FBT001  # a row
        """Make the row of a controller."""
        row = str.__new__(cls, name)
        row._value_ = name
        row.sets, row.without, row.needed = sets, without, needed
        return row


class SetFile(Struct, frozen=True):
    """A set of CPUs or memory nodes: its file, that of the set in effect, systemd's property."""

    file: str
    effective: str
    unit_property: str


CPUS: Final = "cpuset.cpus"
MEMS: Final = "cpuset.mems"
SETS: Final = (
    SetFile(CPUS, "cpuset.cpus.effective", "AllowedCPUs"),
    SetFile(MEMS, "cpuset.mems.effective", "AllowedMemoryNodes"),
)
#: The file of the set in effect, by the file of the set.
EFFECTIVE: Final = {row.file: row.effective for row in SETS}


class ValueFile(Struct, frozen=True):
    """A file of one value."""

    file: str
    #: What the kernel shows of a value that was never set.
    unset: str
    #: What the kernel shows after a text was written where it showed another; raises `OSError` as
    #: the kernel does.
    taken: Callable[[str, str], str]
    #: The property from which systemd writes the file, "" where systemd has none.
    unit_property: str = ""
    #: Whether the property is set for a value that shows as unset, too.
    always_recorded: bool = False
    #: The file that shows how much of a limit is in use, "" where nothing does. A limit below that
    #: is not written: the kernel would kill processes for it.
    use: str = ""
    #: Whether one text allows all that another does: of the values that have this, those that allow
    #: less are written last. None: written with those that allow more.
    allows: Callable[[str, str], bool] | None = None

    @property
    def controller(self) -> str:
        """The controller that the file belongs to."""
        return controller_of(self.file)

    @property
    def field(self) -> str:
        """The field of the API's document."""
        return self.file.replace(".", "_")


def controller_of(file: str) -> str:
    """Return the controller that a file belongs to."""
    return file.partition(".")[0]


# cpu.max

#: Bounds of `cpu.max` in microseconds (kernel/sched/core.c: min_cfs_quota_period and
#: max_cfs_quota_period; Documentation/admin-guide/cgroup-v2.rst, CPU).
MIN_QUOTA_US: Final = 1_000
MIN_PERIOD_US: Final = 1_000
MAX_PERIOD_US: Final = 1_000_000
DEFAULT_PERIOD_US: Final = 100_000
#: The scheduler's arithmetic keeps 44 bits of microseconds (kernel/sched/core.c: max_cfs_runtime).
MAX_QUOTA_US: Final = (1 << 44) - 1


class CpuMax(Struct, frozen=True):
    """CPU bandwidth: at most `quota_us` microseconds of CPU time in each `period_us`.

    `quota_us` None means unlimited (`max`). Raises `CgroupValueError` outside the kernel's bounds.
    """

    quota_us: int | None
    period_us: int = DEFAULT_PERIOD_US

    def __post_init__(self) -> None:
        if not MIN_PERIOD_US <= self.period_us <= MAX_PERIOD_US:
            why = f"the period is between {MIN_PERIOD_US} and {MAX_PERIOD_US} microseconds"
            raise CgroupValueError(CPU_MAX, str(self), why)
        if self.quota_us is not None and not MIN_QUOTA_US <= self.quota_us <= MAX_QUOTA_US:
            why = f"the quota is 'max' or between {MIN_QUOTA_US} and {MAX_QUOTA_US} microseconds"
            raise CgroupValueError(CPU_MAX, str(self), why)

    @staticmethod
    @lru_cache(maxsize=256)  # thousands of cgroups show few different quotas, again and again
    def parse(text: str) -> CpuMax:
        """Parse what the kernel shows, such as `max 100000` or `150000 100000`."""
        quota, _, period = text.strip().partition(" ")
        if not (period.isdigit() and (quota == NO_LIMIT or quota.isdigit())):
            raise CgroupValueError(CPU_MAX, text.strip(), "expected 'QUOTA PERIOD'")
        return CpuMax(None if quota == NO_LIMIT else int(quota), int(period))

    def __str__(self) -> str:
        quota = NO_LIMIT if self.quota_us is None else str(self.quota_us)
        return f"{quota} {self.period_us}"

    def allows(self, other: CpuMax) -> bool:
        """Return whether this limit is at least as wide as `other`, in CPUs per unit of time."""
        if self.quota_us is None:
            return True
        if other.quota_us is None:
            return False
        return self.quota_us * other.period_us >= other.quota_us * self.period_us


CPU_MAX: Final = "cpu.max"
UNLIMITED: Final = CpuMax(None)
_LEADING_NUMBER: Final = re.compile(r"\+?(\d+)")


def _bandwidth_taken(text: str, shown: str) -> str:
    """Take `QUOTA [PERIOD]`; without a period the one that is shown stays."""
    words = text.split()
    quota = _LEADING_NUMBER.match(words[0]) if words else None
    if quota is None and words[:1] != [NO_LIMIT]:
        raise rejection(errno.EINVAL)
    period = _LEADING_NUMBER.match(words[1]) if len(words) > 1 else None
    try:
        return str(
            CpuMax(
                None if quota is None else int(quota[1]),
                CpuMax.parse(shown).period_us if period is None else int(period[1]),
            )
        )
    except CgroupValueError as error:
        raise rejection(errno.EINVAL) from error


# numbers and limits


def number_taken(low: int, high: int, outside: int) -> Callable[[str, str], str]:
    """Return how the kernel takes a decimal number; errno `outside` out of the bounds."""

    def taken(text: str, _shown: str) -> str:
        return str(read_number(text, low, high, outside))

    return taken


def read_number(text: str, low: int, high: int, outside: int) -> int:
    """Parse a decimal number; EINVAL for anything else, errno `outside` out of the bounds."""
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()):
        raise rejection(errno.EINVAL)
    number = int(stripped)
    if not low <= number <= high:
        raise rejection(outside)
    return number


#: A limit in bytes from here on means unlimited (include/linux/page_counter.h, PAGE_COUNTER_MAX).
_NO_LIMIT_FROM: Final = (1 << 63) - PAGESIZE
_MAX_BYTES: Final = (1 << 64) - 1


def limit_text(size: int, unit: int = PAGESIZE) -> str:
    """Return how the kernel shows a limit of `size` bytes: in whole pages of `unit` bytes."""
    return NO_LIMIT if size >= _NO_LIMIT_FROM else str(size - size % unit)


def _bytes_taken(unit: int) -> Callable[[str, str], str]:
    def taken(text: str, _shown: str) -> str:
        if text.strip() == NO_LIMIT:
            return NO_LIMIT
        return limit_text(read_number(text, 0, _MAX_BYTES, errno.EINVAL), unit)

    return taken


def _pids_taken(text: str, _shown: str) -> str:
    if text.strip() == NO_LIMIT:
        return NO_LIMIT
    return str(read_number(text, 0, _MOST_PIDS, errno.EINVAL))


# the rows

CPU_WEIGHT: Final = "cpu.weight"
DEFAULT_WEIGHT: Final = "100"
MEMORY_MAX: Final = "memory.max"
#: What is never taken from a cgroup, what is taken only where nothing else is left, and from where
#: on its processes are slowed down while memory is taken. Of the first two a cgroup has no more
#: than its parent (cgroup-v2.rst, "Memory Interface Files").
MEMORY_MIN: Final = "memory.min"
MEMORY_LOW: Final = "memory.low"
MEMORY_HIGH: Final = "memory.high"
NOTHING_RESERVED: Final = "0"
PIDS_MAX: Final = "pids.max"
#: The most processes that the kernel can number (include/linux/threads.h, PID_MAX_LIMIT).
_MOST_PIDS: Final = 1 << 22
VALUES: Final = (
    ValueFile(
        CPU_MAX,
        unset=str(UNLIMITED),
        taken=_bandwidth_taken,
        # One of the two: `agent.reconcile.drivers` knows the period.
        unit_property="CPUQuotaPerSecUSec",
        always_recorded=True,
        allows=lambda new, old: CpuMax.parse(new).allows(CpuMax.parse(old)),
    ),
    ValueFile(
        CPU_WEIGHT,
        unset=DEFAULT_WEIGHT,
        taken=number_taken(1, 10_000, errno.ERANGE),
        unit_property="CPUWeight",
    ),
    ValueFile(
        MEMORY_MAX,
        unset=NO_LIMIT,
        taken=_bytes_taken(PAGESIZE),
        unit_property="MemoryMax",
        use="memory.current",
    ),
    ValueFile(MEMORY_MIN, NOTHING_RESERVED, _bytes_taken(PAGESIZE), unit_property="MemoryMin"),
    ValueFile(MEMORY_LOW, NOTHING_RESERVED, _bytes_taken(PAGESIZE), unit_property="MemoryLow"),
    ValueFile(MEMORY_HIGH, NO_LIMIT, _bytes_taken(PAGESIZE), unit_property="MemoryHigh"),
    ValueFile(PIDS_MAX, NO_LIMIT, _pids_taken, unit_property="TasksMax"),
)


# partitions

EXCLUSIVE: Final = "cpuset.cpus.exclusive"
EXCLUSIVE_EFFECTIVE: Final = "cpuset.cpus.exclusive.effective"
PARTITION: Final = "cpuset.cpus.partition"
MEMBER: Final = "member"
#: What is a partition; an `isolated` one has no load balancing and no unbound workqueues either.
PARTITION_WORDS: Final = ("root", "isolated")


def _partition_taken(text: str, _shown: str) -> str:
    word = text.strip()
    if word not in (MEMBER, *PARTITION_WORDS):
        raise rejection(errno.EINVAL)
    return word


def _exclusive_taken(text: str, _shown: str) -> str:
    try:
        return str(Mask.parse(text))
    except ValueError as error:
        raise rejection(errno.EINVAL) from error


#: The kernel has the first since 6.7, with partitions below cgroups that are none (remote ones).
PARTITIONS: Final = (
    ValueFile(EXCLUSIVE, unset="", taken=_exclusive_taken),
    ValueFile(PARTITION, unset=MEMBER, taken=_partition_taken),
)
PARTITION_FILES: Final = tuple(row.file for row in PARTITIONS)


def partition_fault(shown: str) -> str | None:
    """Return the kernel's reason why a partition is invalid, "" without one, None if it is not."""
    _, invalid, reason = shown.partition(" invalid")
    return reason.strip(" ()") if invalid else None


# huge pages

_PAGE_UNITS: Final = {"GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10}
_OF_HUGE_PAGES: Final = re.compile(r"hugetlb\.(\d+)([GMK]B)(\.rsvd)?\.max")


@lru_cache
def huge_pages(size: int) -> ValueFile:
    """Return the row of huge pages of so many bytes; a process that touches more gets SIGBUS."""
    return _page_limit(_page_stem(size), size)


@lru_cache
def reserved_pages(size: int) -> ValueFile:
    """Return the row of what mmap may reserve of huge pages of so many bytes, else it fails."""
    return _page_limit(f"{_page_stem(size)}.rsvd", size)


def _page_stem(size: int) -> str:
    """Return how the names of the files begin (mm/hugetlb_cgroup.c, mem_fmt)."""
    unit = next((name for name, unit in _PAGE_UNITS.items() if size >= unit), "KB")
    return f"hugetlb.{size // _PAGE_UNITS[unit]}{unit}"


def _page_limit(stem: str, size: int) -> ValueFile:
    return ValueFile(f"{stem}.max", NO_LIMIT, _bytes_taken(size), use=f"{stem}.current")


#: The files of one value that are read of every cgroup; others are where they are desired.
VALUE_FILES: Final = (CPU_MAX, CPU_WEIGHT, MEMORY_MAX)


@lru_cache
def row_of(file: str) -> ValueFile:
    """Return the row of a file."""
    pages = _OF_HUGE_PAGES.fullmatch(file)
    if pages is not None:
        row = reserved_pages if pages[3] else huge_pages
        return row(int(pages[1]) * _PAGE_UNITS[pages[2]])
    return next(row for row in (*VALUES, *PARTITIONS) if row.file == file)
