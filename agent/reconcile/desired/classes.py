"""The pods of a ledger by their QoS class, as far as the cgroups of the classes depend on them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.shared_map import differences
from agent.pods.model import QosClass
from agent.reconcile.desired.limits import cpu_weight
from cgroupfs.names import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.managers.allocations.allocation import PodAllocation


class PodClasses(Struct, frozen=True):
    """Which pods are Guaranteed, which of other classes have CPUs of their own, what they request.

    `guaranteed` and `split` are uids. The sums of CPU requests are in millicores: of the Burstable
    pods, and of the Guaranteed ones without CPUs of their own. Made again from the one before, a
    value costs as much as the ledger changed.
    """

    allocations: Mapping[str, PodAllocation] = MappingProxyType({})
    guaranteed: frozenset[str] = frozenset()
    split: frozenset[str] = frozenset()
    burstable_millis: int = 0
    sharing_millis: int = 0

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
            self.burstable_millis + _millis(new, _is_burstable) - _millis(gone, _is_burstable),
            self.sharing_millis + _millis(new, _shares) - _millis(gone, _shares),
        )

    def split_classes(self) -> frozenset[Tier]:
        """Return the classes in which a pod has CPUs of its own, so that others cannot inherit.

        No policy allocates them so; a recovered or imported allocation may be one.
        """
        return frozenset(Tier(str(self.allocations[uid].qos)) for uid in self.split)

    def weights(self) -> Mapping[Tier, str]:
        """Return the weight of the cgroup of each class: that of the requests of its pods.

        BestEffort pods request nothing, so theirs is the smallest. Source: the kubelet's
        qos_container_manager_linux.go.
        """
        return {
            Tier.BURSTABLE: str(cpu_weight(self.burstable_millis)),
            Tier.BEST_EFFORT: str(cpu_weight(0)),
            Tier.SHARED: str(cpu_weight(self.sharing_millis)),
        }


NO_PODS = PodClasses()


def _uids(pods: list[PodAllocation]) -> set[str]:
    return {pod.uid for pod in pods}


def _is_guaranteed(pod: PodAllocation) -> bool:
    return pod.qos is QosClass.GUARANTEED


def _is_burstable(pod: PodAllocation) -> bool:
    return pod.qos is QosClass.BURSTABLE


def _shares(pod: PodAllocation) -> bool:
    return _is_guaranteed(pod) and not pod.exclusive_cpus


def _millis(pods: list[PodAllocation], counts: Callable[[PodAllocation], bool]) -> int:
    return sum(pod.cpu.request_millis or 0 for pod in pods if counts(pod))
