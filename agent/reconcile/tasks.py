"""Intruding tasks: tasks that may run on the exclusive CPUs of a pod they do not belong to.

A thread counts if its affinity (`sched_getaffinity(2)`) includes an exclusive CPU and its process
lives outside the cgroups of the pod that has the CPU. Kernel threads bound to a single CPU
(`ksoftirqd/3`, `migration/3`) do not count: no setting moves them. Other kernel threads are a kind
of their own: they live in the root cgroup, so only a partition, which takes its CPUs from the root,
or `agent.isolation.kernelThreads` keeps them off.

A task is unconfined if it may run on every online CPU that no partition has: nothing ever kept it
off the exclusive CPUs. Any other task was placed on them.
"""

from __future__ import annotations

import os
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.reconcile.binding import cgroup_of_pid
from agent.reconcile.report import BindingError
from agent.text import printable
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path


#: The pid of kthreadd, the parent of all kernel threads.
_KTHREADD: Final = 2
LONGEST_NAME: Final = 64


class Task(Struct, frozen=True):
    """The threads of one process that have the same affinity; `cgroup` is None when unknown."""

    pid: int
    name: str
    affinity: Mask
    cgroup: str | None = None
    threads: int = 1
    kernel: bool = False


class ExclusiveTerritory(Struct, frozen=True):
    """The exclusive CPUs of a pod, and the cgroups that may run on them."""

    pod: str
    cpus: Mask
    cgroups: tuple[str, ...]

    def holds(self, cgroup: str | None) -> bool:
        """Return whether a cgroup is one of the pod's or below one of them."""
        return cgroup is not None and any(
            cgroup == own or cgroup.startswith(f"{own}/") for own in self.cgroups
        )


class IntruderKind(StrEnum):
    """How a task came to be allowed on the CPUs of a pod."""

    #: The task was placed there.
    CONFINED = "confined"
    #: Nothing confines the task (the head of this module).
    UNCONFINED = "unconfined"
    KERNEL = "kernel"


class IntrudingTask(Struct, frozen=True):
    """A task, the exclusive CPUs of other pods that it may use, and the uids of these pods."""

    task: Task
    cpus: Mask
    pods: tuple[str, ...]
    confined: bool

    @property
    def kind(self) -> IntruderKind:
        """Whether it is confined; threads of the kernel are a kind of their own."""
        if self.task.kernel:
            return IntruderKind.KERNEL
        return IntruderKind.CONFINED if self.confined else IntruderKind.UNCONFINED


def intruding_tasks(
    tasks: Iterable[Task], territories: Iterable[ExclusiveTerritory], unconfined: Mask
) -> tuple[IntrudingTask, ...]:
    """Return the tasks that may run on CPUs of pods they do not belong to.

    `unconfined` are the online CPUs that no partition has.
    """
    every = tuple(territories)
    return tuple(
        found for task in tasks if (found := _intruding(task, every, unconfined)) is not None
    )


class Intruders(Struct, frozen=True):
    """What was found on exclusive CPUs: threads by `IntruderKind`, and tasks that are confined.

    Of the tasks of one cgroup with the same CPUs the first stands for all.
    """

    threads: Mapping[str, int]
    confined: tuple[IntrudingTask, ...] = ()

    @classmethod
    def of(cls, found: Collection[IntrudingTask]) -> Intruders:
        """Return what these tasks are together."""
        placed = [each for each in found if each.kind is IntruderKind.CONFINED]
        # Reversed: the last value of a key stays, and that is the first task.
        first = {(each.task.cgroup, each.cpus): each for each in reversed(placed)}
        return cls(count_threads(found), tuple(first.values()))


def count_threads(found: Iterable[IntrudingTask]) -> Mapping[str, int]:
    """Return the number of threads by `IntruderKind`, 0 for a kind without any."""
    counted = dict.fromkeys(map(str, IntruderKind), 0)
    for each in found:
        counted[each.kind] += each.task.threads
    return MappingProxyType(counted)


def _intruding(
    task: Task, territories: Iterable[ExclusiveTerritory], unconfined: Mask
) -> IntrudingTask | None:
    if task.kernel and len(task.affinity) == 1:
        return None
    entered = [
        territory
        for territory in territories
        if territory.cpus & task.affinity and not territory.holds(task.cgroup)
    ]
    cpus = EMPTY
    for territory in entered:
        cpus |= territory.cpus & task.affinity
    if not cpus:
        return None
    confined = not unconfined <= task.affinity
    return IntrudingTask(task, cpus, tuple(territory.pod for territory in entered), confined)


def read_tasks(proc: Path) -> Iterator[Task]:
    """Yield the tasks of all processes, without those that exit meanwhile.

    In a container this needs the host's processes (`hostPID`).
    """
    import psutil  # noqa: PLC0415  # costs memory, and is needed for this alone

    for process in psutil.process_iter(("name", "ppid")):
        pid = process.pid
        kernel = _KTHREADD in (pid, process.info["ppid"])
        affinities = _affinities(proc, pid)
        # After the affinities: a process that a runtime places meanwhile is in its pod by now.
        cgroup = None if kernel else _cgroup(proc, pid)
        if cgroup is None and not (proc / str(pid) / "cgroup").exists():  # the process has ended
            continue
        name = printable(process.info["name"] or "", LONGEST_NAME)
        for affinity, threads in affinities.items():
            yield Task(pid, name, affinity, cgroup, threads, kernel)


def _affinities(proc: Path, pid: int) -> Mapping[Mask, int]:
    found: dict[Mask, int] = {}
    try:
        threads = [int(name) for name in os.listdir(proc / str(pid) / "task")]  # noqa: PTH208  # names alone, for thousands of threads
    except OSError:  # it has ended
        return found
    for thread in threads:
        try:
            affinity = Mask.from_ids(os.sched_getaffinity(thread))
        except OSError:  # as above
            continue
        found[affinity] = found.get(affinity, 0) + 1
    return found


def _cgroup(proc: Path, pid: int) -> str | None:
    try:
        return cgroup_of_pid(proc, pid)
    except BindingError:  # the process has exited, or its cgroup is outside the visible hierarchy
        return None
