"""Where the cgroup of a pod stands in the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.pods.model import QosClass
from cgroupfs.errors import CgroupNameError
from cgroupfs.names import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocation import PodAllocation
    from cgroupfs.names import Layout
    from cgroupfs.tree import CgroupTree

_TIERS: Final = {qos: Tier(str(qos)) for qos in QosClass}


def pod_cgroup(tree: CgroupTree, layout: Layout, pod: PodAllocation) -> str:
    """Return the path of a pod's cgroup; raises `CgroupNameError` on an unusable uid.

    A Guaranteed pod stands in the shared cgroup, where the layout has one, or among the pods with
    CPUs of their own. A cgroup that exists counts: whether the pod has CPUs of its own may change,
    and the layout may have been another. Without one, what the pod has decides.
    """
    path = layout.pod(pod.uid, _TIERS[pod.qos])
    if not layout.shares or pod.qos is not QosClass.GUARANTEED:
        return path
    shared = layout.pod(pod.uid, Tier.SHARED)
    if tree.exists(shared) or not (pod.exclusive_cpus or tree.exists(path)):
        return shared
    return path


def pod_cgroups(
    tree: CgroupTree, layout: Layout, allocations: Mapping[str, PodAllocation]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the pods' cgroups by uid, and by uid why a pod cannot have one."""
    paths: dict[str, str] = {}
    unnamed: dict[str, str] = {}
    for uid, pod in allocations.items():
        try:
            paths[uid] = pod_cgroup(tree, layout, pod)
        except CgroupNameError as error:
            unnamed[uid] = str(error)
    return paths, unnamed
