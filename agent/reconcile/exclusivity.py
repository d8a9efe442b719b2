"""Whose CPUs are not exclusive: cgroups of others may use them.

In go the allocations, the differences that were found, each with the CPUs that the processes of its
cgroup may use and should not (`Difference.beyond`), and the tasks of others that were found on
exclusive CPUs (`agent.reconcile.tasks`). Out come, for each pod of whose exclusive CPUs that is
true, the cgroups and the CPUs. Whether another process widened a set, a repair waits, a partition
is invalid, or the kernel falls back to a wider set because a cgroup above is narrow or lost its
controller, is all the same here.

Always true: no cgroup should have exclusive CPUs of a pod to which it does not belong, so what
intrudes differs, and is known as long as the difference is. Nothing else has to be remembered.
Pure; where nothing differs this costs nothing.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.managers.quality import Intrusion
from agent.pods.model import full_name
from agent.reconcile.diff import Cause
from agent.reconcile.tasks import IntruderKind
from cgroupfs.settings import CPUS
from cgroupfs.tree import ancestors, is_within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.diff import Difference
    from agent.reconcile.tasks import IntrudingTask
    from sysfs.mask import Mask

_NONE: Final[Mapping[str, tuple[Intrusion, ...]]] = MappingProxyType({})


def intrusions(
    allocations: Mapping[str, PodAllocation],
    differences: Iterable[Difference],
    tasks: Collection[IntrudingTask] = (),
) -> Mapping[str, tuple[Intrusion, ...]]:
    """Return what intrudes on the exclusive CPUs of each pod, by its uid; pods without are absent.

    1. A pod's own cgroups never intrude on it, whichever of its containers has which of its CPUs.
    2. A cgroup has nothing that the one above does not have: of those inside each other the
       outermost is named, as what has to be narrowed.
    3. Of the `tasks` those count that are confined, once for each cgroup that is not named already.
    """
    wide = {each.cgroup: each for each in differences if each.beyond}
    placed = [each for each in tasks if each.kind is IntruderKind.CONFINED]
    if not (wide or placed):
        return _NONE
    outermost = [each for each in wide.values() if not _inside_another(each, wide)]
    found: dict[str, tuple[Intrusion, ...]] = {}
    for uid, pod in allocations.items():
        own = pod.exclusive_cpus
        named = {
            each.cgroup: _intrusion(allocations, each, own)
            for each in outermost
            if each.pod != uid and not each.beyond.isdisjoint(own)
        }
        known = frozenset(named)
        for each in placed:
            cgroup = each.task.cgroup or ""
            if uid in each.pods and each.cpus & own and not is_within(cgroup, known):
                named.setdefault(cgroup, _of_task(each, own))
        if named:
            found[uid] = tuple(named.values())
    return MappingProxyType(found)


def _inside_another(difference: Difference, wide: Mapping[str, Difference]) -> bool:
    """Return whether a wide cgroup above is of the same pod, or of none."""
    above = (wide.get(path) for path in ancestors(difference.cgroup))
    return any(each is not None and each.pod in ("", difference.pod) for each in above)


def _intrusion(
    allocations: Mapping[str, PodAllocation], difference: Difference, own: Mask
) -> Intrusion:
    pod = allocations.get(difference.pod)
    return Intrusion(
        difference.cgroup,
        difference.beyond & own,
        "" if pod is None else full_name(pod),
        str(difference.cause),
        f"{difference.detail}{_REMEDY if _can_be_narrowed(difference) else ''}",
    )


def _of_task(found: IntrudingTask, own: Mask) -> Intrusion:
    task = found.task
    why = (
        f"process {task.pid} ({task.name}) was placed on them; end it, or move it: "
        f"taskset -apc CPUS {task.pid}"
    )
    return Intrusion(task.cgroup or "", found.cpus & own, "", "intruding task", why)


#: The details of all other differences say what to do.
_REMEDY: Final = "; every comparison narrows it until its writer is stopped: 'numawarden history'"


def _can_be_narrowed(difference: Difference) -> bool:
    return difference.file == CPUS and difference.cause is not Cause.CONTROLLER_LOST
