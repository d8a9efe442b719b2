"""Why a resize of a running pod or container is rejected.

In: a pod's allocation and the CPUs that an update asks for. Out: the reason in a user's words, ""
if the pod has these CPUs. The agent sets the cpusets and quotas of a pod with exclusive CPUs, so
such a pod keeps its CPUs; of any other pod nothing is rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.cluster.nri.messages import ContainerResources
from agent.managers.allocation import Isolation
from agent.reconcile.quota import cpu_max
from agent.reconcile.values import SHARES_PER_CPU, cpu_shares
from cgroupfs.settings import DEFAULT_PERIOD_US

if TYPE_CHECKING:
    from agent.cluster.nri.messages import PodSandbox
    from agent.managers.allocation import PodAllocation

#: The most shares by which the kubelet reads back another number than it wrote: in cgroup v2 one
#: of `cpu.weight` stands for 26.2 shares.
_ROUNDED: Final = 27


def resize_rejected(pod: PodAllocation, name: str, asked: ContainerResources) -> str:
    """Return why a container does not get the CPUs that an update asks for, "" if it has them."""
    container = pod.container(name)
    if container is None or not pod.exclusive_cpus:
        return ""
    if container.isolation is Isolation.CONTAINER and container.cpus:
        subject, millis = f"container {name} keeps its exclusive CPUs", 1000 * len(container.cpus)
        return _not_resized(f"{subject} {container.cpus}", millis, millis, asked)
    # The request of this container is a weight alone, which the runtime changes.
    limit = container.cpu.limit_millis or pod.cpu.limit_millis
    return _not_resized(f"container {name} keeps its CPU limit", limit, None, asked)


def pod_resize_rejected(pod: PodAllocation, overhead: int, asked: PodSandbox) -> str:
    """Return why a pod does not get the CPUs that an update of its sandbox asks for, "" if it has.

    `overhead` is the pod's in millicores: the allocation includes it, the update does not.
    """
    if not pod.exclusive_cpus:
        return ""
    limit, request = (
        None if millis is None else millis - overhead
        for millis in (pod.cpu.limit_millis, pod.cpu.request_millis)
    )
    resources = ContainerResources(
        quota_us=asked.cpu_quota, period_us=asked.cpu_period, shares=asked.cpu_shares
    )
    return _not_resized(f"the pod keeps its CPUs {pod.exclusive_cpus}", limit, request, resources)


def _not_resized(
    subject: str, limit: int | None, request: int | None, asked: ContainerResources
) -> str:
    """Return why other CPUs than those of a limit and a request (millicores) are not given.

    An update without a quota comes from a kubelet with `cpuCFSQuota: false`, or resizes memory
    alone, and repeats what the cgroup has; its shares are compared.
    """
    quota, shares = max(0, asked.quota_us or 0), asked.shares or 0
    period = asked.period_us or DEFAULT_PERIOD_US
    if quota:
        same = limit is None or cpu_max(limit, period).quota_us == quota
    else:
        same = request is None or not shares or abs(cpu_shares(request) - shares) <= _ROUNDED
    if same:
        return ""
    cpus = quota / period if quota else round(shares / SHARES_PER_CPU, 2)
    return (
        f"{subject}: CPUs of a running pod are not resized, and {cpus:g} are asked for; delete and "
        "create the pod to have it decided again"
    )
