"""One emulated cgroup: what was written to it and what is in effect.

The cpuset rules are those of kernel/cgroup/cpuset.c: effective sets and partitions, and the
kernel's errors for lists that it rejects. The root group describes the host: `cpus` are the online
CPUs, `exclusive` all possible ones, `mems` the nodes with memory.
"""

from __future__ import annotations

import errno
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from cgroupfs.errors import rejection
from cgroupfs.settings import MEMBER, controller_of
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cgroupfs.emulated.rules import Rules


#: In the kernel's order (include/linux/cgroup_subsys.h).
CONTROLLERS: Final = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc")
#: Controllers that can work on threads, so a cgroup with processes may pass them on.
THREADED: Final = frozenset({"cpuset", "cpu", "pids"})


class Group(Struct, eq=False):
    """The state of one cgroup; empty sets are unset. Times are microseconds."""

    name: str
    parent: Group | None
    children: dict[str, Group] = field(default_factory=dict)
    subtree: set[str] = field(default_factory=set)
    procs: set[int] = field(default_factory=set)
    cpus: Mask = EMPTY
    mems: Mask = EMPTY
    exclusive: Mask = EMPTY
    partition: str = MEMBER
    #: Why the partition is invalid, empty while it is valid.
    invalid: str = ""
    #: A sibling took one of its CPUs: invalid without a reason, until it is written again.
    broken: bool = False
    #: That sibling took them from `exclusive`, too, until that is written again (seen on 6.12).
    stale: bool = False
    #: The partition above ended: there is none until this is written again. Under one that was made
    #: again it is called valid and has its parent's CPUs (seen on 6.12, where in other orders of
    #: writes it has its own; here it always is the worse of both).
    detached: bool = False
    #: It was made a partition below the root while a partition underneath had some of its CPUs
    #: (Linux 6.15, and 6.12.118): invalid until it is written again.
    over_remote: bool = False
    #: What those beside had when this partition was written (`Rules.keeps_partitions`).
    yielded: Mask = EMPTY
    #: Of the root: what partitions without one above took along that were removed while a sibling
    #: had made them invalid (seen on 6.12).
    lost: Mask = EMPTY
    #: Of the root: what `isolcpus=` isolates (`Rules.isolates_isolcpus`).
    isolcpus: Mask = EMPTY
    #: What was in effect at the `version` below; read it as `cpus_now`, `mems_now` ...
    cpus_then: Mask = EMPTY
    mems_then: Mask = EMPTY
    exclusive_then: Mask = EMPTY
    #: Of the root: how often a setting changed. Of all others: for which count the above was found.
    version: int = 0
    burst: int = 0
    #: What the files of one value show that were written.
    values: dict[str, str] = field(default_factory=dict)
    #: Bytes that the processes of this very cgroup use, by the file of their limit.
    used: dict[str, int] = field(default_factory=dict)

    def _settle(self) -> None:
        """Find what is in effect, from the cgroup above, if a setting changed meanwhile."""
        above, root = self.parent, self
        while root.parent is not None:
            root = root.parent
        if above is None or self.version == root.version:
            return
        self.exclusive_then = self.exclusive & above.exclusive_now
        self.cpus_then = (self.cpus & above.cpus_now) or above.cpus_now
        self.mems_then = (self.mems & above.mems_now) or above.mems_now
        self.version = root.version

    @property
    def cpus_now(self) -> Mask:
        """The CPUs in effect; of the root those that are online and in no partition."""
        self._settle()
        return self.cpus_then

    @cpus_now.setter
    def cpus_now(self, cpus: Mask) -> None:
        self._settle()
        self.cpus_then = cpus

    @property
    def mems_now(self) -> Mask:
        """The memory nodes in effect."""
        self._settle()
        return self.mems_then

    @property
    def exclusive_now(self) -> Mask:
        """The CPUs in effect of `cpuset.cpus.exclusive`."""
        self._settle()
        return self.exclusive_then

    @exclusive_now.setter
    def exclusive_now(self, cpus: Mask) -> None:
        self._settle()
        self.exclusive_then = cpus

    @property
    def path(self) -> str:
        """The path relative to the root, `""` for the root."""
        if self.parent is None:
            return ""
        above = self.parent.path
        return f"{above}/{self.name}" if above else self.name

    def walk(self) -> Iterator[Group]:
        """Yield this cgroup and everything below, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def in_use(self, limit: str) -> int:
        """Return the bytes that count for a limit: those in use here and below."""
        return sum(group.used.get(limit, 0) for group in self.walk())

    @property
    def is_partition(self) -> bool:
        """Whether it is a partition root and a valid one."""
        return self.partition != MEMBER and not self.invalid and not self.broken

    @property
    def populated(self) -> bool:
        """Whether a process lives here or below."""
        return bool(self.procs) or any(child.populated for child in self.children.values())

    def has(self, controller: str) -> bool:
        """Return whether the controller is enabled for this cgroup (never for the root's files)."""
        return self.parent is not None and controller in self.parent.subtree

    def reset(self, controller: str) -> None:
        """Forget the controller's settings, as when it is disabled and its state freed."""
        if controller == "cpuset":
            self.cpus = self.mems = self.exclusive = self.yielded = EMPTY
            self.partition, self.invalid = MEMBER, ""
            self.broken = self.stale = self.detached = self.over_remote = False
        if controller == "cpu":
            self.burst = 0
        self.values = {f: text for f, text in self.values.items() if controller_of(f) != controller}

    @property
    def thread_root(self) -> bool:
        """Whether processes and threaded controllers meet here (kernel/cgroup/cgroup.c)."""
        return self.parent is not None and bool(self.procs) and bool(self.subtree & THREADED)

    @property
    def valid_domain(self) -> bool:
        """Whether processes may live here: no ancestor is a thread root."""
        above = self.parent
        while above is not None:
            if above.thread_root:
                return False
            above = above.parent
        return True

    @property
    def may_be_thread_root(self) -> bool:
        """Whether processes may live here beside enabled threaded controllers."""
        if self.parent is None:
            return True
        busy_below = any(child.populated for child in self.children.values())
        return self.valid_domain and not busy_below and self.subtree <= THREADED


ISOLATED: Final = "isolated"
_NOT_EXCLUSIVE: Final = "Cpu list in cpuset.cpus not exclusive"
_NOT_PARTITION: Final = "Parent is not a partition root"
_NO_CPUS: Final = "Parent unable to distribute cpu downstream"
_INVALID_LIST: Final = "Invalid cpu list in cpuset.cpus.exclusive"
_OVER_REMOTE: Final = "Have remote partition underneath"
_HOUSEKEEPING: Final = "partition config conflicts with housekeeping setup"


def settle(root: Group) -> None:
    """Have what is in effect found again where it is read next, where there are no partitions.

    Not at once: one setting above thousands of cgroups changes what is in effect in all of them.
    """
    root.version += 1
    root.exclusive_then, root.mems_then = root.exclusive, root.mems
    root.cpus_then = root.cpus - root.lost


def settle_partitions(root: Group, partitions: Iterable[Group], rules: Rules) -> None:
    """Bring everything up to date where `partitions` (member groups left out) exist."""
    by_depth = sorted(partitions, key=lambda group: group.path.count("/"))
    settle(root)
    for group in root.walk():
        _ = group.exclusive_now  # before any of them changes, which does not concern those below
    for group in by_depth:
        group.invalid = ""
    for group in by_depth:
        group.exclusive_now = _own(group) & _above(group).exclusive_now
        group.invalid = _why_invalid(group, root, rules)
        if group.invalid:
            group.exclusive_now = group.exclusive & _above(group).exclusive_now
    valid = [group for group in by_depth if group.is_partition]
    _share(root, root.cpus - root.lost, frozenset(valid))
    for group in valid:
        if group.detached:
            group.cpus_now = _above(group).cpus_now


def overlaps_sibling(group: Group, exclusive: Mask) -> bool:
    """Return whether exclusive CPUs would collide with those of a sibling (EINVAL).

    A partition without exclusive CPUs has those that it lists. Nor may they be all that a sibling
    lists (cgroup-v2.rst, "cpuset.cpus.exclusive").
    """
    return any(
        not exclusive.isdisjoint(_own(sibling) if sibling.is_partition else sibling.exclusive)
        or bool(sibling.cpus and sibling.cpus <= exclusive)
        for sibling in _siblings(group)
    )


def break_siblings(group: Group) -> None:
    """Invalidate the partitions beside `group` whose CPUs it now names in `cpuset.cpus`."""
    for sibling in _siblings(group):
        if sibling.is_partition and not sibling.exclusive_now.isdisjoint(group.cpus):
            sibling.broken = sibling.stale = True


def yield_to_siblings(group: Group) -> None:
    """Note, as a partition is written, which CPUs of its list those beside have already."""
    group.yielded = Mask.union(
        sibling.exclusive | (sibling.exclusive_now if sibling.is_partition else EMPTY)
        for sibling in _siblings(group)
    )


def _share(group: Group, cpus: Mask, valid: frozenset[Group]) -> None:
    given = EMPTY
    for below in _nearest(group, valid):
        _share(below, below.exclusive_now & cpus, valid)
        given |= below.exclusive_now
    group.cpus_now = cpus - given
    for child in group.children.values():
        _inherit(child, valid)


def _inherit(group: Group, valid: frozenset[Group]) -> None:
    if group in valid:
        return
    above = _above(group)
    group.cpus_now = (group.cpus & above.cpus_now) or above.cpus_now
    for child in group.children.values():
        _inherit(child, valid)


def _nearest(group: Group, valid: frozenset[Group]) -> list[Group]:
    found: list[Group] = []
    for child in group.children.values():
        found.extend([child] if child in valid else _nearest(child, valid))
    return found


def _own(group: Group) -> Mask:
    return group.exclusive or group.cpus - group.yielded


def _above(group: Group) -> Group:
    if group.parent is None:
        raise ValueError("the root has no parent")
    return group.parent


def _siblings(group: Group) -> list[Group]:
    return [other for other in _above(group).children.values() if other is not group]


def _why_invalid(group: Group, root: Group, rules: Rules) -> str:
    above = _above(group)
    if group.over_remote:
        return _OVER_REMOTE
    is_root = above.parent is None or above.is_partition
    if (group.detached or not group.exclusive) and not is_root:
        return _NOT_PARTITION
    lost = EMPTY if is_root else root.lost
    if group.stale or not group.exclusive_now or not group.exclusive_now.isdisjoint(lost):
        return _INVALID_LIST
    listed = Mask.union(_own(other) for other in _siblings(group))
    if not rules.keeps_partitions and not listed.isdisjoint(group.exclusive_now):
        return _NOT_EXCLUSIVE
    barred = group.partition != ISOLATED if rules.isolates_isolcpus else is_root
    if barred and not group.exclusive_now.isdisjoint(root.isolcpus):
        return _HOUSEKEEPING
    over = _partition_above(group, root)
    beside = (each for each in over.walk() if each.is_partition and each not in (group, over))
    taken = Mask.union(each.exclusive_now for each in (group, *beside))
    there = root.cpus if over is root else over.exclusive_now & root.cpus
    return _NO_CPUS if there <= taken else ""


def _partition_above(group: Group, root: Group) -> Group:
    above = _above(group)
    while above is not root and not above.is_partition:
        above = _above(above)
    return above


#: CONFIG_NODES_SHIFT=10: what a list of nodes may name before it is out of range.
MAX_NODES: Final = 1024
_REGION: Final = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?::(?P<used>\d+)/(?P<group>\d+))?)?")
_BETWEEN: Final = re.compile(r"[\s,]+")


@lru_cache(maxsize=256)
def parse_list(text: str, limit: int) -> Mask:
    """Parse a list of ids below `limit` as bitmap_parselist() does.

    Raises `OSError`: EINVAL for a malformed list, ERANGE for an id of `limit` or more.
    """
    found = EMPTY
    for region in _BETWEEN.split(text.strip()):
        if region:
            found |= _parse_region(region, limit)
    return found


def _parse_region(region: str, limit: int) -> Mask:
    if region == "all":
        return Mask((1 << limit) - 1)
    match = _REGION.fullmatch(region.replace("N", str(limit - 1)))
    if match is None:
        raise rejection(errno.EINVAL)
    first, last = int(match["first"]), int(match["last"] or match["first"])
    used, group = int(match["used"] or 1), int(match["group"] or 1)
    if first > last or group == 0 or used > group:
        raise rejection(errno.EINVAL)
    if last >= limit:
        raise rejection(errno.ERANGE)
    return Mask.from_ids(n for n in range(first, last + 1) if (n - first) % group < used)
