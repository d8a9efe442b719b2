"""Resizes of a kubelet's running pods: which the agent decides, and why others are rejected.

In: a pod's allocation and what an update asks for. Out: the amounts that a container is to be
resized to, or the reason in a user's words why it is not, "" if it has these CPUs. The agent sets
the cpusets and quotas of a pod with exclusive CPUs. So it decides other amounts of a container with
CPUs of its own (`agent.managers.resize`); all else of such a pod keeps its CPUs: pod-level
resources, since the kubelet resizes their budget and its parts one after the other, and containers
without CPUs of their own. Of any other pod nothing is rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.cluster.nri.messages import ContainerResources
from agent.managers.allocation import Isolation
from agent.managers.resize import OtherAmounts
from agent.managers.specification import specification_of
from agent.pods.changes import amount_of
from agent.pods.model import CPU, MEMORY
from agent.reconcile.quota import cpu_max
from agent.reconcile.values import SHARES_PER_CPU, cpu_shares
from cgroupfs.settings import (
    DEFAULT_PERIOD_US,
    MAX_PERIOD_US,
    MAX_QUOTA_US,
    MIN_PERIOD_US,
)

if TYPE_CHECKING:
    from agent.cluster.nri.messages import PodSandbox
    from agent.managers.allocation import ContainerAllocation, PodAllocation

#: The most shares by which the kubelet reads back another number than it wrote: in cgroup v2 one
#: of `cpu.weight` stands for 26.2 shares.
_ROUNDED: Final = 27


def resized_to(pod: PodAllocation, name: str, asked: ContainerResources) -> OtherAmounts | None:
    """Return the amounts to which an update resizes a container with CPUs of its own.

    None where it has these amounts, or is of a pod with pod-level resources, which is not resized.
    """
    container = pod.container(name)
    if container is None or container.isolation is not Isolation.CONTAINER or _pod_level(pod):
        return None
    millis = _own_millis(pod, container)
    cpu, memory = _other_millis(millis, millis, asked), asked.memory
    if cpu is None and memory in (None, container.limits.get(MEMORY)):
        return None
    return OtherAmounts(pod.uid, name, cpu, memory)


def resize_rejected(pod: PodAllocation, name: str, asked: ContainerResources) -> str:
    """Return why a container does not get the CPUs that an update asks for, "" if it has them.

    Not asked where the resize is decided (`resized_to`).
    """
    container = pod.container(name)
    if container is None or not pod.exclusive_cpus:
        return ""
    if container.isolation is Isolation.CONTAINER and container.cpus:
        subject, millis = f"container {name} keeps its exclusive CPUs", _own_millis(pod, container)
        return _not_resized(f"{subject} {container.cpus}", millis, millis, asked)
    # The request of this container is a weight alone, which the runtime changes.
    own = container.cpu.limit_millis
    stated = _stated_millis(pod, name if own else None)
    limit = stated or own or pod.cpu.limit_millis
    return _not_resized(f"container {name} keeps its CPU limit", limit, None, asked)


def pod_resize_rejected(pod: PodAllocation, overhead: int, asked: PodSandbox) -> str:
    """Return why a pod does not get the CPUs that an update of its sandbox asks for, "" if it has.

    `overhead` is the pod's in millicores: the allocation includes it, the update does not. The sum
    of a pod without pod-level resources is decided by the updates of its containers.
    """
    if not pod.exclusive_cpus or not _pod_level(pod):
        return ""
    limit, request = (
        None if millis is None else millis - overhead
        for millis in (pod.cpu.limit_millis, pod.cpu.request_millis)
    )
    stated = _stated_millis(pod, None)
    if stated is not None:  # of a pod with exclusive CPUs it is both
        limit = request = stated
    resources = ContainerResources(
        quota_us=asked.cpu_quota, period_us=asked.cpu_period, shares=asked.cpu_shares
    )
    return _not_resized(f"the pod keeps its CPUs {pod.exclusive_cpus}", limit, request, resources)


def _own_millis(pod: PodAllocation, container: ContainerAllocation) -> int:
    """Return the millicores that a container with CPUs of its own states."""
    stated = _stated_millis(pod, container.name)
    return 1000 * len(container.cpus or ()) if stated is None else stated


def _stated_millis(pod: PodAllocation, container: str | None) -> int | None:
    """Return the millicores that a container (None: the pod level) states, None if not known.

    They may have been rounded up to whole cores (`agent.pods.model.ROUND_UP`).
    """
    specification = specification_of(pod)
    return None if specification is None else amount_of(specification, container, CPU)


def _pod_level(pod: PodAllocation) -> bool:
    """Return whether a pod has pod-level resources; a specification that is not known may."""
    specification = specification_of(pod)
    return specification is None or specification.resources is not None


def _not_resized(
    subject: str, limit: int | None, request: int | None, asked: ContainerResources
) -> str:
    """Return why other CPUs than those of a limit and a request (millicores) are not given."""
    millis = _other_millis(limit, request, asked)
    if millis is None:
        return ""
    return (
        f"{subject}: CPUs do not change while the pod runs, and {millis / 1000:g} are asked for; "
        "delete and create the pod to have it decided again"
    )


def _other_millis(limit: int | None, request: int | None, asked: ContainerResources) -> int | None:
    """Return the millicores that an update asks for, None if they are the limit and the request.

    An update without a quota comes from a kubelet with `cpuCFSQuota: false`, or resizes memory
    alone, and repeats what the cgroup has; its shares are compared. What the kernel does not take
    changes nothing.
    """
    quota, shares = max(0, asked.quota_us or 0), asked.shares or 0
    period = asked.period_us or DEFAULT_PERIOD_US
    if quota > MAX_QUOTA_US or not MIN_PERIOD_US <= period <= MAX_PERIOD_US:
        return None
    if quota:
        same = limit is None or cpu_max(limit, period).quota_us == quota
        return None if same else round(1000 * quota / period)
    if request is None or not shares or abs(cpu_shares(request) - shares) <= _ROUNDED:
        return None
    whole = round(shares / SHARES_PER_CPU)
    if abs(whole * SHARES_PER_CPU - shares) <= _ROUNDED:
        return 1000 * whole
    return 10 * round(100 * shares / SHARES_PER_CPU)
