"""What `cpu.max` a pod or container gets.

The arithmetic is the kubelet's (pkg/kubelet/cm/helpers_linux.go, MilliCPUToQuota): a limit of m
millicores is m * 100 microseconds in each 100,000, at least 1,000. Which cgroup is limited follows
KEP-5526, "Interaction with CPU Quota Management".

The limit of a pod (`PodGrant.cpu`) is the kubelet's (ResourceConfigForPod): the one stated for the
pod, else the sum over its containers, and none as soon as one of these has no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.ledger import Isolation
from cgroupfs.values import DEFAULT_PERIOD_US, MAX_QUOTA_US, MIN_QUOTA_US, UNLIMITED, CpuMax

if TYPE_CHECKING:
    from agent.ledger import ContainerGrant, PodGrant

_MILLIS_PER_CPU: Final = 1000


def cpu_max(limit_millis: int) -> CpuMax:
    """Return the quota of a limit in millicores; 0 is no limit, as in the kubelet."""
    if not limit_millis:
        return UNLIMITED
    quota = limit_millis * DEFAULT_PERIOD_US // _MILLIS_PER_CPU
    # More than the kernel can count is more than any machine has: no limit.
    return UNLIMITED if quota > MAX_QUOTA_US else CpuMax(max(quota, MIN_QUOTA_US))


def container_cpu_max(pod: PodGrant, container: ContainerGrant) -> CpuMax | None:
    """Return the quota of one container, None to leave what its runtime set.

    Exclusive CPUs: none, unless the gate DisableCPUQuotaWithExclusiveCPUs is off. Otherwise the
    container's own limit; where it has none, the pod's (kubelet, getCPULimit), which is what keeps
    the members of a pod's shared pool, and the rest of a pod whose own quota was lifted, within
    the pod's budget.
    """
    if container.isolation is Isolation.CONTAINER and container.quota_disabled:
        return UNLIMITED
    limit = container.cpu.limit_millis or pod.cpu.limit_millis
    return None if limit is None else cpu_max(limit)


def pod_cpu_max(pod: PodGrant) -> CpuMax | None:
    """Return the quota of a pod's own cgroup: its limit, none without one.

    None where the limit is not known, for a pod that was imported and not yet asked for: the
    quota stays as it is.

    None either as soon as any member runs on exclusive CPUs without a quota. The kubelet keeps the
    quota of a pod with pod-level resources unless all members are exclusive, and so throttles the
    exclusive ones together with the others; here a pod's quota never throttles them (a deliberate
    difference). The other members have quotas of their own.
    """
    if any(c.isolation is Isolation.CONTAINER and c.quota_disabled for c in pod.containers):
        return UNLIMITED
    if pod.cpu.limit_millis is None and not pod.spec_digest:
        return None
    return cpu_max(pod.cpu.limit_millis or 0)
