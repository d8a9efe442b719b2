"""What a container gets at its start, and whether a running container has it.

In: a pod's allocation and the node's shared pool. Out: an `Adjustment` for the runtime. Its values
are those that reconciling desires of the container's cgroup (`agent.reconcile.desired`), so nothing
differs after the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.api.variables import allocation_variables
from agent.cluster.nri.messages import Adjustment
from agent.managers.allocation import Origin
from agent.pods.model import full_name
from agent.reconcile.container_settings import container_settings, ephemeral_settings
from agent.reconcile.quota import pod_quotas
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from agent.cluster.nri.messages import ContainerResources
    from agent.managers.allocation import PodAllocation
    from agent.managers.numa_policy import NumaPolicy
    from cgroupfs.settings import CpuMax

_UNLIMITED: Final = -1


def adjustment_of(
    pod: PodAllocation, name: str, pool: Mask, policy: NumaPolicy | None = None
) -> Adjustment | None:
    """Return the settings of a container at its start, None if the agent sets none.

    `policy` is the NUMA policy of the pod, `pool` are the CPUs of its containers without CPUs of
    their own. The agent sets the CPUs and the quota of each container of a pod with exclusive CPUs,
    also of ephemeral ones, which are not in the specification. In any other pod a container
    inherits the pool and has the kubelet's quota; the agent sets its memory nodes, if it has some.
    """
    adjustment = _cgroup_adjustment(pod, name, pool)
    return adjustment if policy is None else replace(adjustment or Adjustment(), numa_policy=policy)


def _cgroup_adjustment(pod: PodAllocation, name: str, pool: Mask) -> Adjustment | None:
    container, quotas = pod.container(name), pod_quotas(pod)
    if container is None:
        if not pod.exclusive_cpus or pod.origin is not Origin.DECIDED:
            return None
        settings = ephemeral_settings(pool, quotas)
    elif pod.exclusive_cpus or container.mems:
        settings = container_settings(container, pool, quotas)
    else:
        return None
    has_cpus = container is not None and container.cpus is not None
    variables = {}
    if has_cpus or settings.mems is not None:
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


def agrees(shown: ContainerResources, desired: Adjustment) -> bool:
    """Return whether a running container has what it should have, as its runtime shows it."""
    return (
        _same(shown.cpus, desired.cpus)
        and _same(shown.mems, desired.mems)
        and desired.quota_us in (None, _UNLIMITED if shown.quota_us is None else shown.quota_us)
        and (desired.quota_us in (None, _UNLIMITED) or desired.period_us == shown.period_us)
    )


def _quota(cpu_max: CpuMax | None) -> tuple[int | None, int | None]:
    if cpu_max is None:
        return None, None
    quota = _UNLIMITED if cpu_max.quota_us is None else cpu_max.quota_us
    return quota, cpu_max.period_us


def _same(shown: str, desired: Mask | None) -> bool:
    if desired is None:
        return True
    try:
        return Mask.parse(shown) == desired
    except ValueError:
        return False
