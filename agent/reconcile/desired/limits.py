"""What the files of one value of the cgroups of pods get.

Without a kubelet no other process sets them on the cgroups of pods. The rules are the kubelet's
(pkg/kubelet/cm, ResourceConfigForPod and qos_container_manager_linux.go): a weight follows the CPU
request, that of the cgroup of a QoS class the requests of its pods; memory is limited where the pod
or all of its containers state a limit; and huge pages are limited to what the pod requests, to 0
for every other size. A container's own limit is written where its runtime set none.
"""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocations.origin import Origin
from agent.pods.model import HUGEPAGES_PREFIX, MEMORY, QosClass
from agent.pods.quantity import Quantity
from cgroupfs.controllers import HUGETLB, NEEDED
from cgroupfs.settings import (
    CPU_MAX,
    CPU_WEIGHT,
    MEMORY_MAX,
    VALUE_FILES,
    KernelController,
    controller_of,
    huge_pages,
    limit_text,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation
    from cgroupfs.settings import CpuMax

#: cgroup v1's shares and what they become in v2: the kubelet still computes in shares
#: (MilliCPUToShares and getCPUWeight in pkg/kubelet/cm).
_MIN_SHARES: Final = 2
_MAX_SHARES: Final = 262_144
_SHARES_PER_CPU: Final = 1024
_MILLIS_PER_CPU: Final = 1000
_MAX_WEIGHT: Final = 10_000
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NEEDED: Final = frozenset(NEEDED)


class EnforcedControllers(Struct, frozen=True, dict=True):
    """The controllers whose files the agent writes, and the sizes of huge pages it limits.

    Files of controllers that are not in `controllers` are neither written nor compared.
    `page_sizes` are bytes; without any, huge pages are not limited.
    """

    controllers: frozenset[str] = frozenset(each.value for each in KernelController)
    page_sizes: tuple[int, ...] = ()

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The controllers that every cgroup of a pod needs: the threaded ones."""
        return tuple(name for name in NEEDED if name in self.controllers)

    @cached_property
    def further(self) -> tuple[str, ...]:
        """The controllers that limits need; a cgroup with processes cannot pass them on.

        Source: cgroup-v2.rst, "No Internal Process Constraint".
        """
        return tuple(each for each in KernelController if each in self.controllers - _NEEDED)

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
        """The files of one value that are read of a cgroup."""
        return (*VALUE_FILES, *(huge_pages(size).file for size in self.pages.values()))

    def only(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Return the values of files whose controllers are enforced."""
        return {f: text for f, text in values.items() if controller_of(f) in self.controllers}

    def among(self, available: Collection[str]) -> EnforcedControllers:
        """Return what of this a kernel with these controllers can enforce.

        `cpuset` and `cpu` are kept in any case; the start checks report when they are missing.
        """
        return EnforcedControllers(
            self.controllers & (frozenset(available) | _NEEDED), self.page_sizes
        )


EVERYTHING: Final = EnforcedControllers()


def cpu_weight(request_millis: int) -> int:
    """Return the weight of a CPU request, from 1 to 10,000."""
    shares = request_millis * _SHARES_PER_CPU // _MILLIS_PER_CPU
    shares = min(max(shares, _MIN_SHARES), _MAX_SHARES)
    return 1 + (shares - _MIN_SHARES) * (_MAX_WEIGHT - 1) // (_MAX_SHARES - _MIN_SHARES)


def pod_values(
    pod: PodAllocation, quota: CpuMax | None, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the files of one value of a pod's own cgroup with their texts.

    For an imported pod without a specification only the `quota` is set, where it is known; memory
    without a limit is left as it is.
    """
    values = quota_value(quota)
    if pod.origin is Origin.DECIDED:
        request = 0 if pod.qos is QosClass.BEST_EFFORT else pod.cpu.request_millis or 0
        unstated = dict.fromkeys(enforced.pages, 0)
        values |= {CPU_WEIGHT: str(cpu_weight(request))}
        values |= _limits({**unstated, **pod.limits}, enforced)
    return enforced.only(values)


def quota_value(quota: CpuMax | None) -> dict[str, str]:
    """Return the value of `cpu.max`, nothing where the file is left as it is."""
    return {} if quota is None else {CPU_MAX: str(quota)}


def container_defaults(
    container: ContainerAllocation, enforced: EnforcedControllers
) -> Mapping[str, str]:
    """Return the limits that a container states, for where its runtime set none."""
    if not container.limits:
        return _NOTHING
    return enforced.only(_limits(container.limits, enforced))


def _limits(stated: Mapping[str, int], enforced: EnforcedControllers) -> dict[str, str]:
    """Return the texts of limits in bytes, which are stated by memory type."""
    limits = {MEMORY_MAX: limit_text(stated[MEMORY])} if MEMORY in stated else {}
    for resource, size in enforced.pages.items():
        if resource in stated:
            limits[huge_pages(size).file] = limit_text(stated[resource], size)
    return limits
