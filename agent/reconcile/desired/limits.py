"""What `cpu.weight`, `memory.max` and huge page limits the cgroups of pods get.

Without a kubelet no other process sets them on the cgroups of pods. The rules are the kubelet's
(pkg/kubelet/cm, ResourceConfigForPod and qos_container_manager_linux.go): a weight follows the CPU
request, that of the cgroup of a QoS class the requests of its pods; memory is limited where the pod
or all of its containers state a limit; and huge pages are limited to what the pod requests, to 0
for every other size. A container's own limit is written where its runtime set none.
"""

from __future__ import annotations

from functools import cached_property
from mmap import PAGESIZE
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocations.origin import Origin
from agent.pods.model import CPU, HUGEPAGES_PREFIX, MEMORY, QosClass
from agent.pods.quantity import Quantity
from cgroupfs.controllers import HUGETLB, NEEDED
from cgroupfs.state import CPU_WEIGHT, MEMORY_MAX, hugetlb_max, limit_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation

#: cgroup v1's shares and what they become in v2: the kubelet still computes in shares
#: (MilliCPUToShares and getCPUWeight in pkg/kubelet/cm).
_MIN_SHARES: Final = 2
_MAX_SHARES: Final = 262_144
_SHARES_PER_CPU: Final = 1024
_MILLIS_PER_CPU: Final = 1000
_MAX_WEIGHT: Final = 10_000
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
#: What is enforced, by the controllers of the kernel, in the order of the configuration.
CONTROLLERS: Final = (*NEEDED, MEMORY, HUGETLB)


class EnforcedControllers(Struct, frozen=True, dict=True):
    """The controllers whose files the agent writes, and the sizes of huge pages it limits.

    Files of controllers that are not in `controllers` are neither written nor compared.
    `page_sizes` are bytes; without any, huge pages are not limited.
    """

    controllers: frozenset[str] = frozenset(CONTROLLERS)
    page_sizes: tuple[int, ...] = ()

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The controllers that every cgroup of a pod needs: the threaded ones."""
        return tuple(name for name in NEEDED if name in self.controllers)

    @cached_property
    def further(self) -> tuple[str, ...]:
        """The controllers that memory limits need; a cgroup with processes cannot pass them on.

        Source: cgroup-v2.rst, "No Internal Process Constraint".
        """
        return tuple(name for name in (MEMORY, HUGETLB) if name in self.controllers)

    @cached_property
    def pages(self) -> Mapping[str, int]:
        """The sizes of huge pages that are limited, by the name of their resource."""
        if HUGETLB not in self.controllers:
            return MappingProxyType({})
        return MappingProxyType(
            {f"{HUGEPAGES_PREFIX}{Quantity.of_bytes(size)}": size for size in self.page_sizes}
        )

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The files of huge page limits that are compared."""
        return tuple(hugetlb_max(size) for size in self.pages.values())

    def among(self, available: Collection[str]) -> EnforcedControllers:
        """Return what of this a kernel with these controllers can enforce.

        `cpuset` and `cpu` are kept in any case; the start checks report when they are missing.
        """
        there = frozenset(available) | frozenset(NEEDED)
        return EnforcedControllers(self.controllers & there, self.page_sizes)


EVERYTHING: Final = EnforcedControllers()


def cpu_weight(request_millis: int) -> int:
    """Return the weight of a CPU request, from 1 to 10,000."""
    shares = request_millis * _SHARES_PER_CPU // _MILLIS_PER_CPU
    shares = min(max(shares, _MIN_SHARES), _MAX_SHARES)
    return 1 + (shares - _MIN_SHARES) * (_MAX_WEIGHT - 1) // (_MAX_SHARES - _MIN_SHARES)


def pod_values(pod: PodAllocation, enforced: EnforcedControllers) -> Mapping[str, str]:
    """Return the single-value files of a pod's own cgroup with their texts.

    For an imported pod without a specification nothing is set; memory without a limit is left as
    it is.
    """
    if pod.origin is not Origin.DECIDED:
        return _NOTHING
    values: dict[str, str] = {}
    if CPU in enforced.controllers:
        request = 0 if pod.qos is QosClass.BEST_EFFORT else pod.cpu.request_millis or 0
        values[CPU_WEIGHT] = str(cpu_weight(request))
    if MEMORY in enforced.controllers and MEMORY in pod.limits:
        values[MEMORY_MAX] = limit_text(pod.limits[MEMORY], PAGESIZE)
    for resource, size in enforced.pages.items():
        values[hugetlb_max(size)] = limit_text(pod.limits.get(resource, 0), size)
    return values


def container_defaults(
    container: ContainerAllocation, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the limits that a container states, for where its runtime set none."""
    if not container.limits:
        return _NOTHING
    stated, defaults = container.limits, dict[str, str]()
    if MEMORY in enforced.controllers and MEMORY in stated:
        defaults[MEMORY_MAX] = limit_text(stated[MEMORY], PAGESIZE)
    for resource, size in enforced.pages.items():
        if resource in stated:
            defaults[hugetlb_max(size)] = limit_text(stated[resource], size)
    return defaults
