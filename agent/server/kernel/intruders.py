"""Counts intruding tasks beside the comparisons, for the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.reconcile.intruding_tasks import count_threads, intruding_tasks
from agent.server.kernel.verification import territories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.reconcile.desired.state import Desired
    from agent.reconcile.intruding_tasks import Task
    from agent.reconcile.report import EnforcementReport
    from sysfs.mask import Mask

#: The shortest time between two counts, in seconds.
COUNT_SECONDS: Final = 60.0
#: A count may take this share of the time: reading 5,000 threads takes about 0.35 s, in which an
#: admission waits.
COUNT_SHARE: Final = 0.005


class IntruderCount:
    """Counts intruding tasks, once a minute at most and less often where that takes long.

    `tasks` reads the tasks of the host, `monotonic` is a clock in seconds.
    """

    def __init__(self, tasks: Callable[[], Iterable[Task]], monotonic: Callable[[], float]) -> None:
        self._tasks = tasks
        self._monotonic = monotonic
        self._next = float("-inf")

    def count(
        self, target: Desired, report: EnforcementReport, online: Mask
    ) -> Mapping[str, int] | None:
        """Return the number of threads by `IntruderKind`, None where it is too early to count.

        `report` is a comparison of all pods. Without exclusive CPUs no task is read.
        """
        started = self._monotonic()
        if started < self._next:
            return None
        owned = tuple(territories(target, report))
        tasks = self._tasks() if owned else ()
        counted = count_threads(intruding_tasks(tasks, owned, online))
        ended = self._monotonic()
        self._next = ended + max(COUNT_SECONDS, (ended - started) / COUNT_SHARE)
        return counted
