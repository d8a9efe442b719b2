"""The weights and limits of cgroups: the texts of all files with one value but `cpu.max`.

In: a pod's allocation, the requests of a QoS class or the node's amounts, and the enforced
controllers. Out: texts by file name; a file that is not named is left as it is.

All pods, whose cgroup stands above the QoS classes:
- cpu.weight, memory.max, hugetlb: what is allocatable (getNodeAllocatableInternalAbsolute: without
  the thresholds of hard eviction), or the node's capacity;
- pids.max: what the kernel allows, less what is reserved;
- memory.min, memory.low: what the cgroups below reserve.

A QoS class, and the cgroup of Guaranteed pods without CPUs of their own:
- cpu.weight: the CPU requests of its pods;
- memory.low of Burstable pods, memory.min of Guaranteed ones: what its pods reserve.

A pod:
- cpu.weight: its CPU request;
- memory.max: its limit, which is the stated one, else the sum where each container states one;
- hugetlb: its limit, and 0 for each size without a limit;
- memory.min of a Guaranteed pod, memory.low of a Burstable one: its memory request.

A container:
- memory.max, hugetlb: its limits, where its runtime set none;
- memory.min, memory.low: its memory request, in the file of its pod's class;
- memory.high: a point between request and limit; no limit in a Guaranteed pod.

The rules are the kubelet's (pkg/kubelet/cm, ResourceConfigForPod, qos_container_manager_linux.go);
those of memory.min, memory.low and memory.high are KEP-2570's ("Mapping Rules"). Without a kubelet
no other process sets these files. Where huge pages count as memory (cgroup-v2.rst,
memory_hugetlb_accounting), each value of memory includes them: a process that touches a huge page
beyond memory.max is not killed, and does not run on.
"""

from __future__ import annotations

from mmap import PAGESIZE
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.managers.allocation import Origin
from agent.pods.model import CPU, MEMORY, PID, QosClass
from agent.reconcile.enforced import PAGE_ROWS
from agent.reconcile.pod_classes import huge_pages_of
from cgroupfs.names import Tier
from cgroupfs.settings import (
    CPU_MAX,
    CPU_WEIGHT,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MAX,
    MEMORY_MIN,
    NO_LIMIT,
    PIDS_MAX,
    limit_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.reconcile.enforced import EnforcedControllers
    from agent.reconcile.pod_classes import PodClasses
    from cgroupfs.settings import CpuMax

#: cgroup v1's shares and the weights of v2: the kubelet still computes in shares
#: (MilliCPUToShares and getCPUWeight in pkg/kubelet/cm).
_MIN_SHARES: Final = 2
_MAX_SHARES: Final = 262_144
SHARES_PER_CPU: Final = 1024
_MILLIS_PER_CPU: Final = 1000
_MAX_WEIGHT: Final = 10_000
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_RESERVED_BY: Final = {QosClass.GUARANTEED: MEMORY_MIN, QosClass.BURSTABLE: MEMORY_LOW}
_CLASS_RESERVED_BY: Final = {Tier.BURSTABLE: MEMORY_LOW, Tier.SHARED: MEMORY_MIN}


def cpu_weight(request_millis: int) -> int:
    """Return the weight of a CPU request, from 1 to 10,000."""
    shares = cpu_shares(request_millis)
    return 1 + (shares - _MIN_SHARES) * (_MAX_WEIGHT - 1) // (_MAX_SHARES - _MIN_SHARES)


def cpu_shares(request_millis: int) -> int:
    """Return the shares of a CPU request."""
    shares = request_millis * SHARES_PER_CPU // _MILLIS_PER_CPU
    return min(max(shares, _MIN_SHARES), _MAX_SHARES)


def quota_value(quota: CpuMax | None) -> dict[str, str]:
    """Return the value of `cpu.max`, nothing where the file is left as it is."""
    return {} if quota is None else {CPU_MAX: str(quota)}


def node_values(
    classes: PodClasses, amounts: Mapping[str, int], enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the values of the cgroup of all pods; `amounts` are `allocatable_amounts`."""
    burstable = enforced.reserved_memory(classes.burstable)
    guaranteed = enforced.reserved_memory(classes.all_guaranteed)
    # The kubelet reserves the requests of Burstable pods here by memory.min alone. No cgroup has
    # more of memory.low than its parent (cgroup-v2.rst), so that would not reach these pods.
    values = {
        MEMORY_MIN: limit_text(guaranteed + burstable),
        MEMORY_LOW: limit_text(burstable),
    }
    if CPU in amounts:
        values[CPU_WEIGHT] = str(cpu_weight(amounts[CPU]))
    if enforced.most_processes:
        kept = enforced.reserved.get(PID, 0) if enforced.limits_all_pods else 0
        values[PIDS_MAX] = str(max(enforced.most_processes - kept, 0))
    # The node's capacity of memory includes its huge pages; what is allocatable does not.
    pages = enforced.pages_as_memory(amounts) if enforced.limits_all_pods else 0
    return enforced.enforceable(values | _limits(amounts, enforced, pages))


def allocatable_amounts(
    capacity: Mapping[str, int], enforced: EnforcedControllers
) -> dict[str, int]:
    """Return what pods may use of the node's capacity; memory without that of huge pages."""
    left = {name: max(size - enforced.reserved.get(name, 0), 0) for name, size in capacity.items()}
    if MEMORY in left:
        left[MEMORY] = max(left[MEMORY] - huge_pages_of(left), 0)
    return left


def class_values(
    classes: PodClasses, tier: Tier, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the values of the cgroup of a QoS class."""
    requested = classes.of_tier(tier)
    values = {CPU_WEIGHT: str(cpu_weight(requested.millis))}
    if tier in _CLASS_RESERVED_BY:
        # Without reservations this is 0, which ends those of all cgroups below.
        values[_CLASS_RESERVED_BY[tier]] = limit_text(enforced.reserved_memory(requested))
    return enforced.enforceable(values)


def pod_values(
    pod: PodAllocation, quota: CpuMax | None, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the values of a pod's own cgroup.

    An imported pod without a specification gets its `quota` alone.
    """
    values = quota_value(quota)
    if pod.origin is Origin.DECIDED:
        request = 0 if pod.qos is QosClass.BEST_EFFORT else pod.cpu.request_millis or 0
        values |= {CPU_WEIGHT: str(cpu_weight(request))}
        unstated = dict.fromkeys(enforced.pages, 0)
        pages = enforced.pages_as_memory(pod.limits)
        values |= _limits({**unstated, **pod.limits}, enforced, pages)
        memory = pod.requests.get(MEMORY, 0) + enforced.pages_as_memory(pod.requests)
        values |= _reservation(pod, memory, enforced)
    return enforced.enforceable(values)


def container_defaults(
    pod: PodAllocation, container: ContainerAllocation, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the limits that a container states, for where its runtime set none."""
    unstated = dict.fromkeys(_denied_pages(pod, container, enforced), 0)
    if not (container.limits or unstated):
        return _NOTHING
    pages = enforced.pages_as_memory(_usable_pages(pod, container, enforced))
    return enforced.enforceable(_limits({**unstated, **container.limits}, enforced, pages))


def container_memory(
    pod: PodAllocation,
    container: ContainerAllocation,
    enforced: EnforcedControllers,
    allocatable: int,
) -> Mapping[str, str]:
    """Return what Memory QoS writes for a container; nothing without a known specification.

    `allocatable` is the node's memory in bytes, which stands for a limit that is not stated.
    """
    if pod.origin is not Origin.DECIDED:
        return _NOTHING
    request = container.memory_request
    pages = enforced.pages_as_memory(container.limits)
    values = _reservation(pod, request + pages, enforced)
    if enforced.throttling is not None:
        high = None
        if pod.qos is not QosClass.GUARANTEED:
            high = _throttled_from(request, container.limits.get(MEMORY, 0), enforced, allocatable)
        pages = enforced.pages_as_memory(_usable_pages(pod, container, enforced))
        values[MEMORY_HIGH] = NO_LIMIT if high is None else limit_text(high + pages)
    return enforced.enforceable(values)


def ephemeral_memory(enforced: EnforcedControllers, allocatable: int) -> Mapping[str, str]:
    """Return what Memory QoS writes for an ephemeral container, which cannot state resources.

    The kubelet ignores the class of the pod: it reserves no memory, and slows the container down
    as one that states nothing.
    """
    if enforced.throttling is None:
        return _NOTHING
    high = _throttled_from(0, 0, enforced, allocatable)
    return enforced.enforceable({MEMORY_HIGH: NO_LIMIT if high is None else limit_text(high)})


def _reservation(pod: PodAllocation, size: int, enforced: EnforcedControllers) -> dict[str, str]:
    """Return the file that reserves memory for a pod or its container, none for BestEffort."""
    if not enforced.reserves_memory or pod.qos not in _RESERVED_BY:
        return {}
    return {_RESERVED_BY[pod.qos]: limit_text(size)}


def _throttled_from(
    request: int, limit: int, enforced: EnforcedControllers, allocatable: int
) -> int | None:
    """Return the bytes from which on a container is slowed down, None where it never is.

    Source: KEP-2570, "Alpha v1.27", with the fix of kubernetes/kubernetes#138139: a container
    without a memory request and limit is treated as any other.
    """
    if request == limit and request:
        return None
    high = int(request + ((limit or allocatable) - request) * (enforced.throttling or 0))
    return high if high - high % PAGESIZE > request else None


def _denied_pages(
    pod: PodAllocation, container: ContainerAllocation, enforced: EnforcedControllers
) -> Iterator[str]:
    """Yield the huge pages of a pod that a container must not use.

    It does not state them, and other containers state all that the pod has. Where the pod has more,
    it states a budget, which each container may use.
    """
    for name in enforced.pages.keys() - container.limits.keys():
        if 0 < pod.limits.get(name, 0) <= sum(c.limits.get(name, 0) for c in pod.containers):
            yield name


def _usable_pages(
    pod: PodAllocation, container: ContainerAllocation, enforced: EnforcedControllers
) -> Mapping[str, int]:
    """Return the limits that bind a container: its own, else the pod's."""
    denied = frozenset(_denied_pages(pod, container, enforced))
    pod_limits = {name: size for name, size in pod.limits.items() if name not in denied}
    return {**pod_limits, **container.limits}


def _limits(stated: Mapping[str, int], enforced: EnforcedControllers, pages: int) -> dict[str, str]:
    """Return the files of limits in bytes by memory type.

    `pages` are the bytes of huge pages that count as memory.
    """
    limits = {MEMORY_MAX: limit_text(stated[MEMORY] + pages)} if MEMORY in stated else {}
    for resource, size in enforced.pages.items():
        if resource in stated:
            text = limit_text(stated[resource], size)
            limits |= {row(size).file: text for row in PAGE_ROWS}
    return limits
