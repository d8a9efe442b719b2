"""Which controllers the agent enforces on the cgroups of pods, and by which settings.

In: the configuration, the node's sizes of huge pages and the controllers of the kernel. Out: the
files that are read and written, and what counts as memory. Files of any other controller are
neither written nor compared.
"""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.pods.model import HUGEPAGES_PREFIX
from agent.pods.quantity import Quantity
from agent.reconcile.pod_classes import huge_pages_of
from cgroupfs.apply import HUGETLB, NEEDED
from cgroupfs.settings import (
    DEFAULT_PERIOD_US,
    VALUE_FILES,
    KernelController,
    controller_of,
    huge_pages,
    reserved_pages,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.reconcile.pod_classes import Requested

_NEEDED: Final = frozenset(NEEDED)
#: The settings of a size of huge pages. With the second, mmap of too many pages fails; with the
#: first alone, the process gets SIGBUS later.
PAGE_ROWS: Final = (huge_pages, reserved_pages)


class EnforcedControllers(Struct, frozen=True, dict=True):
    """The controllers whose files the agent writes, and the settings by which it writes them."""

    controllers: frozenset[str] = frozenset(each.value for each in KernelController)
    #: The sizes of huge pages in bytes; pages of other sizes are not limited.
    page_sizes: tuple[int, ...] = ()
    #: The period of quotas in microseconds, None for no quotas (`cpuCFSQuota`).
    period_us: int | None = DEFAULT_PERIOD_US
    #: Whether requested memory is reserved (`memoryReservationPolicy`).
    reserves_memory: bool = False
    #: The part of the memory between a container's request and its limit that the container may
    #: use before the kernel slows it down (`memoryThrottlingFactor`); None: all of it.
    throttling: float | None = None
    #: The part of the node that is not allocatable, without the thresholds of hard eviction: CPUs
    #: in millicores, memory types in bytes, processes (`PID`).
    reserved: Mapping[str, int] = MappingProxyType({})
    #: Whether all pods together are limited to what is allocatable (`enforceNodeAllocatable`); if
    #: not, to the node's capacity.
    limits_all_pods: bool = True
    #: Whether huge pages count as memory (`cgroupfs.tree.counts_huge_pages`): limits and
    #: reservations of memory then include them.
    counts_huge_pages: bool = False
    #: How many processes the kernel allows; 0: not known, and processes are not limited.
    most_processes: int = 0

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The controllers that every cgroup of a pod needs: the threaded ones."""
        return tuple(name for name in NEEDED if name in self.controllers)

    @cached_property
    def for_limits(self) -> tuple[str, ...]:
        """The controllers that limits need; a cgroup with processes cannot pass most of them on.

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
        """The files with one value that are read of a cgroup."""
        sizes = self.pages.values()
        return (*VALUE_FILES, *(row(size).file for size in sizes for row in PAGE_ROWS))

    def pages_as_memory(self, amounts: Mapping[str, int]) -> int:
        """Return the bytes of huge pages, among amounts by resource, that count as memory."""
        return huge_pages_of(amounts) if self.counts_huge_pages else 0

    def reserved_memory(self, requested: Requested) -> int:
        """Return the bytes of memory that are reserved for pods which request these amounts."""
        pages = requested.huge_pages if self.counts_huge_pages else 0
        return requested.memory + pages if self.reserves_memory else 0

    def enforceable(self, values: Mapping[str, str]) -> Mapping[str, str]:
        """Return the values whose controllers are enforced; `values` are texts by file."""
        return {f: text for f, text in values.items() if controller_of(f) in self.controllers}

    def available_in(self, kernel: Collection[str]) -> EnforcedControllers:
        """Return these settings without the controllers that a kernel lacks.

        `cpuset` and `cpu` stay in any case; the start checks report that they are missing.
        """
        return replace(self, controllers=self.controllers & (frozenset(kernel) | _NEEDED))


EVERYTHING: Final = EnforcedControllers()
