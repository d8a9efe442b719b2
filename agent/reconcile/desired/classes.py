"""The pods of a ledger by their QoS class, as far as the cgroups of the classes depend on them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.shared_map import differences
from agent.pods.model import QosClass
from agent.reconcile.desired.limits import cpu_weight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocations.allocation import PodAllocation


class PodClasses(Struct, frozen=True):
    """Which pods are Guaranteed, which of other classes have CPUs of their own, what they request.

    `guaranteed` and `split` are uids; `burstable_millis` is the sum of the CPU requests of the
    Burstable pods, in millicores. Made again from the one before, a value costs as much as the
    ledger changed.
    """

    allocations: Mapping[str, PodAllocation] = MappingProxyType({})
    guaranteed: frozenset[str] = frozenset()
    split: frozenset[str] = frozenset()
    burstable_millis: int = 0

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
            self.burstable_millis + sum(map(_millis, new)) - sum(map(_millis, gone)),
        )

    def split_classes(self) -> frozenset[QosClass]:
        """Return the classes in which a pod has CPUs of its own, so that others cannot inherit.

        No policy allocates them so; a recovered or imported allocation may be one.
        """
        return frozenset(self.allocations[uid].qos for uid in self.split)

    def weights(self) -> Mapping[QosClass, str]:
        """Return the weight of the cgroup of each class: that of the requests of its pods.

        BestEffort pods request nothing, so theirs is the smallest. Source: the kubelet's
        qos_container_manager_linux.go.
        """
        return {
            QosClass.BURSTABLE: str(cpu_weight(self.burstable_millis)),
            QosClass.BEST_EFFORT: str(cpu_weight(0)),
        }


NO_PODS = PodClasses()


def _uids(pods: list[PodAllocation]) -> set[str]:
    return {pod.uid for pod in pods}


def _is_guaranteed(pod: PodAllocation) -> bool:
    return pod.qos is QosClass.GUARANTEED


def _millis(pod: PodAllocation) -> int:
    return (pod.cpu.request_millis or 0) if pod.qos is QosClass.BURSTABLE else 0
