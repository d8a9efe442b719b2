"""What is left to the kubelet, where it makes the cgroups of the pods.

The kubelet with its own managers off writes no cpuset of a pod or container. It writes weights and
memory limits, the quotas of pods, and, at its start, all CPUs into the cgroup of all pods; the
container runtime writes the quotas of containers (tried with kubelet v1.36.2). So the agent writes
sets everywhere but there. Quotas are the agent's in pods with exclusive CPUs, which KEP-5526 frees
from throttling ("Interaction with CPU Quota Management"), and the kubelet's in all others.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.reconcile.desired.settings import Role
from cgroupfs.settings import CPU_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.managers.allocations.allocation import PodAllocation
    from agent.reconcile.desired.settings import DesiredCgroup
    from agent.reconcile.identify.containers import LocatedPod

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def without_the_kubelets(
    desired: Iterable[DesiredCgroup],
    allocations: Mapping[str, PodAllocation],
    pods: Mapping[str, LocatedPod],
) -> tuple[DesiredCgroup, ...]:
    """Return what is desired without what the kubelet decides.

    `pods` are the located pods by uid. The cgroup of all pods is left out, and so are pods whose
    cgroup the kubelet has not made yet or has removed already.
    """
    return tuple(
        _ours(item, allocations)
        for item in desired
        if item.role is not Role.ALL_PODS and (not item.pod or pods[item.pod].exists)
    )


def _ours(item: DesiredCgroup, allocations: Mapping[str, PodAllocation]) -> DesiredCgroup:
    pod = allocations.get(item.pod)
    quota = item.setting.values.get(CPU_MAX) if pod is not None and pod.exclusive_cpus else None
    values = _NOTHING if quota is None else {CPU_MAX: quota}
    setting = replace(item.setting, values=values, defaults=_NOTHING)
    return replace(item, setting=setting)
