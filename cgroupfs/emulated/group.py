"""One emulated cgroup: what was written to it and what is in effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from cgroupfs.settings import controller_of
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

#: In the kernel's order (include/linux/cgroup_subsys.h).
CONTROLLERS: Final = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc")
#: Controllers that can work on threads, so a cgroup with processes may pass them on.
THREADED: Final = frozenset({"cpuset", "cpu", "pids"})
MEMBER: Final = "member"


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
            self.cpus = self.mems = self.exclusive = EMPTY
            self.partition, self.invalid, self.broken = MEMBER, "", False
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
