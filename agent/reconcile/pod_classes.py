"""Pods by their QoS class, and what they request together.

The cgroup of a class has what follows from all pods in it: its CPUs, weight and reserved memory. In
go allocations; out come values (`PodClasses`) that are made again from the ones before, at a cost
in proportion to what changed.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.ledger import differences
from agent.pods.model import HUGEPAGES_PREFIX, MEMORY, QosClass
from cgroupfs.names import Tier
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.managers.allocation import PodAllocation


class Requested(Struct, frozen=True):
    """What some pods request together."""

    #: CPUs in millicores.
    millis: int = 0
    #: Bytes.
    memory: int = 0
    #: Bytes of all sizes.
    huge_pages: int = 0

    def changed(self, new: Iterable[PodAllocation], gone: Iterable[PodAllocation]) -> Requested:
        """Return the sum with `new` pods and without those that are `gone`."""
        millis, memory, pages = self.millis, self.memory, self.huge_pages
        for sign, pods in ((1, new), (-1, gone)):
            for pod in pods:
                millis += sign * (pod.cpu.request_millis or 0)
                memory += sign * pod.requests.get(MEMORY, 0)
                pages += sign * huge_pages_of(pod.requests)
        return Requested(millis, memory, pages)


def huge_pages_of(amounts: Mapping[str, int]) -> int:
    """Return the bytes of huge pages of all sizes among amounts by resource."""
    return sum(size for name, size in amounts.items() if name.startswith(HUGEPAGES_PREFIX))


class PodClasses(Struct, frozen=True):
    """Which pods are in which QoS class, as far as the cgroups of the classes depend on it."""

    allocations: Mapping[str, PodAllocation] = MappingProxyType({})
    #: The uids of Guaranteed pods.
    guaranteed: frozenset[str] = frozenset()
    #: The uids of pods of other classes with CPUs of their own.
    split: frozenset[str] = frozenset()
    #: What the Burstable pods request.
    burstable: Requested = Requested()
    #: What the Guaranteed pods request.
    all_guaranteed: Requested = Requested()
    #: What Guaranteed pods without CPUs of their own request.
    sharing: Requested = Requested()

    def of(self, allocations: Mapping[str, PodAllocation]) -> PodClasses:
        """Return the classes of other allocations."""
        old = self.allocations
        changed = differences(old, allocations)
        if not changed:
            return self
        gone = [old[uid] for uid in changed if uid in old]
        new = [allocations[uid] for uid in changed if uid in allocations]
        return PodClasses(
            allocations,
            (self.guaranteed - _uids(gone)) | {pod.uid for pod in new if _is_guaranteed(pod)},
            (self.split - _uids(gone))
            | {pod.uid for pod in new if pod.exclusive_cpus and not _is_guaranteed(pod)},
            self.burstable.changed(filter(_is_burstable, new), filter(_is_burstable, gone)),
            self.all_guaranteed.changed(filter(_is_guaranteed, new), filter(_is_guaranteed, gone)),
            self.sharing.changed(filter(_shares, new), filter(_shares, gone)),
        )

    def split_classes(self) -> dict[Tier, Mask]:
        """Return the CPUs that pods have of their own, by class: in these others cannot inherit."""
        found: dict[Tier, Mask] = {}
        for pod in map(self.allocations.__getitem__, self.split):
            tier = Tier(str(pod.qos))
            found[tier] = found.get(tier, EMPTY) | pod.exclusive_cpus - pod.idle
        return found

    def of_tier(self, tier: Tier) -> Requested:
        """Return what the pods of a class request, or the pods in the shared cgroup.

        BestEffort pods request nothing.
        """
        return {Tier.BURSTABLE: self.burstable, Tier.SHARED: self.sharing}.get(tier, Requested())


NO_PODS = PodClasses()


def _uids(pods: list[PodAllocation]) -> set[str]:
    return {pod.uid for pod in pods}


def _is_guaranteed(pod: PodAllocation) -> bool:
    return pod.qos is QosClass.GUARANTEED


def _is_burstable(pod: PodAllocation) -> bool:
    return pod.qos is QosClass.BURSTABLE


def _shares(pod: PodAllocation) -> bool:
    return _is_guaranteed(pod) and not pod.exclusive_cpus
