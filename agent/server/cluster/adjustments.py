"""What the container runtime is to give a container of an admitted pod at its start, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.api.environment import allocation_variables
from agent.managers.allocations.allocation import Isolation
from agent.managers.allocations.origin import Origin
from agent.pods.identity import full_name
from agent.reconcile.desired.container import container_settings, default_settings
from agent.reconcile.desired.quota import pod_quotas
from agent.reconcile.diff import Cause
from agent.runtimes.nri.values import Adjustment
from cgroupfs.settings import CPUS, DEFAULT_PERIOD_US
from cgroupfs.state import CPUS_EFFECTIVE
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.managers.allocations.allocation import PodAllocation
    from agent.reconcile.diff import Difference
    from agent.runtimes.nri.values import ContainerResources
    from cgroupfs.settings import CpuMax

_UNLIMITED: Final = -1
#: So many pods are named in a message.
_NAMED: Final = 4
_SETS: Final = (CPUS, CPUS_EFFECTIVE)


def adjustment_of(pod: PodAllocation, name: str, pool: Mask) -> Adjustment | None:
    """Return the settings of a container at its start, None if it has nothing of its own.

    `pool` is the node's shared pool. They are those that reconciling desires of the container's
    cgroup (`agent.reconcile.desired`), so that nothing differs afterwards. A container without CPUs
    and memory nodes of its own inherits the pool, and its quota is the kubelet's; beside exclusive
    CPUs of the same pod both are the agent's. So they are of an ephemeral container, which is not
    in the specification that was decided.
    """
    container, quotas = pod.container(name), pod_quotas(pod)
    if container is None:
        if not pod.exclusive_cpus or pod.origin is not Origin.DECIDED:
            return None
        settings = default_settings(pod, pool, quotas.unidentified)
    elif pod.exclusive_cpus or container.mems:
        settings = container_settings(container, pool, quotas)
    else:
        return None
    own = container is not None and container.cpus is not None
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


def resize_rejected(pod: PodAllocation, name: str, asked: ContainerResources) -> str:
    """Return why a container does not get the CPUs that an update asks for, "" if it has them.

    A quota is asked for in microseconds of a period; without one nothing is asked of CPUs.
    """
    container = pod.container(name)
    own = container is not None and container.isolation is Isolation.CONTAINER
    if container is None or not own or not container.cpus or (asked.quota_us or 0) <= 0:
        return ""
    cpus = (asked.quota_us or 0) / (asked.period_us or DEFAULT_PERIOD_US)
    if cpus == len(container.cpus):
        return ""
    return (
        f"container {name} keeps its exclusive CPUs {container.cpus}: CPUs of a running pod are "
        f"not resized, and {cpus:g} are asked for; delete and create the pod to have it decided "
        "again"
    )


def _same(shown: str, desired: Mask | None) -> bool:
    if desired is None:
        return True
    try:
        return Mask.parse(shown) == desired
    except ValueError:
        return False


def still_allocated(allocations: Mapping[str, PodAllocation], ending: frozenset[str]) -> str:
    """Return which pods that may have ended have an allocation still, "" if none has."""
    shown = [_having(allocations[uid]) for uid in sorted(ending & allocations.keys())]
    if not shown:
        return ""
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return (
        f"pods that may have ended still have their allocation: {', '.join(shown[:_NAMED])}{more}; "
        "this pod is decided again once that is certain"
    )


def _having(pod: PodAllocation) -> str:
    cpus = pod.exclusive_cpus
    return f"{full_name(pod)} (CPUs {cpus})" if cpus else full_name(pod)


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
