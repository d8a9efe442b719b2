"""The intruding tasks of the host: read now, or counted once in a while for the metrics.

In go a comparison of the kernel with the ledger, which says where each pod's own tasks live, and
the tasks of the host. A task is *confined* if it was placed on CPUs of a pod; one that may use
every CPU is not, and intrudes only since nothing keeps it off (`agent.reconcile.tasks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.reconcile.tasks import ExclusiveTerritory, Intruders, intruding_tasks
from cgroupfs.state import CPUS_EFFECTIVE
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.reconcile.report import EnforcementReport
    from agent.reconcile.target import Desired
    from agent.reconcile.tasks import Task
    from cgroupfs.tree import CgroupTree

#: The shortest time between two counts, in seconds.
COUNT_SECONDS: Final = 60.0
#: The largest share of the time that counting may take: reading 5,000 threads takes about 0.35 s,
#: in which an admission waits.
COUNT_SHARE: Final = 0.005


def read_tasks(
    tree: CgroupTree, tasks: Callable[[], Iterable[Task]], online: Mask
) -> tuple[tuple[Task, ...], Mask]:
    """Return the tasks of the host, and the CPUs that a task may use which nothing confines.

    The CPUs are read before and after the tasks, and only those count that were there both times: a
    partition that comes or goes meanwhile changes the CPUs of every task, and none of these was
    placed. Raises `OSError` where the tree cannot be read.
    """
    before = _unconfined(tree, online)
    found = tuple(tasks())
    return found, before & _unconfined(tree, online)


def _unconfined(tree: CgroupTree, online: Mask) -> Mask:
    """Return the CPUs of a task that nothing confines: those online that no partition has."""
    (shown,) = tree.read_many("", (CPUS_EFFECTIVE,))
    return online if shown is None else online & Mask.parse(shown)


def territories(target: Desired, report: EnforcementReport) -> Iterator[ExclusiveTerritory]:
    """Yield the exclusive CPUs of each pod, with the cgroups of the pod that were observed."""
    cgroups: dict[str, list[str]] = {
        uid: [] for uid, pod in target.ledger.allocations.items() if pod.exclusive_cpus
    }
    for cgroup in report.cgroups:
        if cgroup.desired.pod in cgroups:
            cgroups[cgroup.desired.pod].append(cgroup.desired.setting.cgroup)
    for uid, own in cgroups.items():
        yield ExclusiveTerritory(uid, target.ledger.allocations[uid].exclusive_cpus, tuple(own))


class IntruderCount:
    """Counts intruding tasks, once a minute and less often where that takes long.

    After a count that found confined ones, the next need not wait for the minute, so that their end
    is seen soon. A count that failed postpones the next as any other. `monotonic` is a clock in
    seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._next = float("-inf")

    def count(
        self,
        target: Desired,
        report: EnforcementReport,
        read: Callable[[], tuple[Iterable[Task], Mask]],
    ) -> Intruders | None:
        """Return what intrudes, None where it is too early to count.

        `report` is a comparison of all pods. `read` returns what `read_tasks` does; without
        exclusive CPUs it is not called.
        """
        started = self._monotonic()
        if started < self._next:
            return None
        owned = tuple(territories(target, report))
        least = COUNT_SECONDS
        try:
            tasks, unconfined = read() if owned else ((), EMPTY)
            found = Intruders.of(intruding_tasks(tasks, owned, unconfined))
            least = 0.0 if found.confined else COUNT_SECONDS
        finally:
            ended = self._monotonic()
            self._next = ended + max(least, (ended - started) / COUNT_SHARE)
        return found
