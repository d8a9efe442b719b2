"""What keeps CPUs from passing from one pod to the next.

Two things do: a pod that may have ended still has its allocation (`still_allocated`), or a cgroup
of another pod still uses the CPUs (`still_shared`). Both functions are pure, and return texts for
users; an empty result means that nothing keeps the CPUs back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.pods.model import full_name
from agent.reconcile.diff import Cause
from agent.text import some_of
from cgroupfs.settings import CPUS
from cgroupfs.state import CPUS_EFFECTIVE
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.diff import Difference

#: The most pods that a message names.
_NAMED: Final = 4
_SETS: Final = (CPUS, CPUS_EFFECTIVE)


def still_allocated(allocations: Mapping[str, PodAllocation], ending: frozenset[str]) -> str:
    """Return which of the pods that may have ended (uids) have an allocation, "" if none has."""
    pods = [_shown(allocations[uid]) for uid in sorted(ending & allocations.keys())]
    if not pods:
        return ""
    return (
        f"pods that may have ended still have their allocation: {some_of(pods, _NAMED)}; "
        "this pod is decided again once that is certain"
    )


def still_shared(pod: PodAllocation, differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return which cgroups of others may still use exclusive CPUs of a pod, a line each.

    `differences` are all that remain after the last comparison.
    """
    cpus = pod.exclusive_cpus
    if not cpus:
        return ()
    return tuple(
        difference.detail
        for difference in differences
        if difference.pod != pod.uid and _may_use(difference, cpus)
    )


def _shown(pod: PodAllocation) -> str:
    cpus = pod.exclusive_cpus
    return f"{full_name(pod)} (CPUs {cpus})" if cpus else full_name(pod)


def _may_use(difference: Difference, cpus: Mask) -> bool:
    if not difference.cgroup:
        # A comparison that failed as a whole says nothing of any cgroup.
        return difference.cause is Cause.UNKNOWN and not difference.pod
    if difference.file not in _SETS:
        return False
    # A cgroup without the file has the CPUs of its parent.
    return difference.observed is None or bool(Mask.parse(difference.observed) & cpus)
