"""What the container runtime is to give a container of an admitted pod at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.api.environment import allocation_variables
from agent.pods.identity import full_name
from agent.reconcile.desired.container import container_settings
from agent.reconcile.desired.quota import pod_quotas
from agent.reconcile.diff import Cause
from agent.runtimes.nri.values import Adjustment
from cgroupfs.state import CPUS, CPUS_EFFECTIVE
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.managers.allocations.allocation import PodAllocation
    from agent.reconcile.diff import Difference
    from agent.runtimes.nri.values import ContainerResources
    from cgroupfs.state import CpuMax

_UNLIMITED: Final = -1
_SETS: Final = (CPUS, CPUS_EFFECTIVE)


def adjustment_of(pod: PodAllocation, name: str, pool: Mask) -> Adjustment | None:
    """Return the settings of a container at its start, None if it has nothing of its own.

    `pool` is the node's shared pool. They are those that reconciling desires of the container's
    cgroup (`agent.reconcile.desired`), so that nothing differs afterwards. A container without CPUs
    and memory nodes of its own inherits the pool, and its quota is the kubelet's; beside exclusive
    CPUs of the same pod both are the agent's. None as well for a name that is not in the pod's
    specification, such as an ephemeral container's.
    """
    container = pod.container(name)
    if container is None or not (pod.exclusive_cpus or container.mems):
        return None
    settings = container_settings(container, pool, pod_quotas(pod))
    own = container.cpus is not None
    variables = {}
    if own or settings.mems is not None:
        cpus, mems = str(settings.cpus or EMPTY), str(settings.mems or EMPTY)
        variables = allocation_variables(full_name(pod), pod.uid, cpus, mems)
    if not pod.exclusive_cpus:
        return Adjustment(mems=settings.mems, environment=variables)
    quota, period = _quota(settings.cpu_max)
    return Adjustment(
        cpus=settings.cpus,
        mems=settings.mems,
        quota_us=quota,
        period_us=period,
        environment=variables,
    )


def _quota(cpu_max: CpuMax | None) -> tuple[int | None, int | None]:
    if cpu_max is None:
        return None, None
    quota = _UNLIMITED if cpu_max.quota_us is None else cpu_max.quota_us
    return quota, cpu_max.period_us


def agrees(shown: ContainerResources, desired: Adjustment) -> bool:
    """Return whether a running container has what it should have, as its runtime shows it."""
    return (
        _same(shown.cpus, desired.cpus)
        and _same(shown.mems, desired.mems)
        and desired.quota_us in (None, _UNLIMITED if shown.quota_us is None else shown.quota_us)
        and (desired.quota_us in (None, _UNLIMITED) or desired.period_us == shown.period_us)
    )


def _same(shown: str, desired: Mask | None) -> bool:
    if desired is None:
        return True
    try:
        return Mask.parse(shown) == desired
    except ValueError:
        return False


def still_shared(pod: PodAllocation, differences: Iterable[Difference]) -> tuple[str, ...]:
    """Return which cgroups of others may still use exclusive CPUs of a pod, a line each.

    `differences` are all that remain. A comparison that failed as a whole shows nothing, so that
    any cgroup may.
    """
    mine = pod.exclusive_cpus
    if not mine:
        return ()
    return tuple(
        difference.detail
        for difference in differences
        if difference.pod != pod.uid and _may_use(difference, mine)
    )


def _may_use(difference: Difference, cpus: Mask) -> bool:
    if not difference.cgroup:
        return difference.cause is Cause.UNKNOWN and not difference.pod
    if difference.file not in _SETS:
        return False
    # Without the file the cgroup has the CPUs of the one above.
    return difference.observed is None or bool(Mask.parse(difference.observed) & cpus)
