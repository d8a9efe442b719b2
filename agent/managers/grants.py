"""The grant of a pod: what its containers hold, and what follows from that and its specification.

Isolation levels and quotas: KEP-5526, "ResourceIsolationLevel" and "CPU Quota Management".
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.ledger import ContainerGrant, CpuLimits, Isolation, PodGrant
from agent.managers.hints import NO_AFFINITY, Hint
from agent.pods.digest import spec_digest
from agent.pods.model import CPU
from agent.pods.quantity import ZERO
from agent.pods.requests import pod_limits, pod_requests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.ledger import MemoryBlock
    from agent.managers.demand import ContainerDemand, PodDemand
    from agent.managers.policy import Policy
    from agent.pods.model import Pod
    from agent.pods.quantity import Quantity
    from sysfs.mask import Mask

_CPU_ALONE: Final = (CPU,)


class Held(Struct, frozen=True):
    """The CPUs, memory blocks and devices of a pod by container name, and those of its budget."""

    cpus: Mapping[str, Mask]
    memory: Mapping[str, tuple[MemoryBlock, ...]]
    devices: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    hints: Mapping[str, Hint] = MappingProxyType({})
    pod_cpus: Mask | None = None
    pod_memory: tuple[MemoryBlock, ...] = ()


def make_grant(policy: Policy, demand: PodDemand, held: Held) -> PodGrant:
    """Return the grant of a pod that holds this and asks for that."""
    pod, gates = demand.pod, policy.gates
    containers = tuple(_container(policy, demand, each, held) for each in demand.containers)
    return PodGrant(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        qos=demand.qos,
        spec_digest=spec_digest(pod),
        containers=containers,
        cpus=held.pod_cpus,
        memory=held.pod_memory,
        cpu=_pod_cpu_limits(pod, pod_level=gates.pod_level_resources),
        quota_disabled=_pod_quota_disabled(policy, demand, containers),
    )


def _container(
    policy: Policy, demand: PodDemand, container: ContainerDemand, held: Held
) -> ContainerGrant:
    name = container.name
    isolation = _isolation(demand, container, held.cpus.get(name))
    resources = container.container.resources
    lifted = policy.gates.disable_cpu_quota_with_exclusive_cpus
    return ContainerGrant(
        name=name,
        kind=container.kind,
        isolation=isolation,
        cpus=held.cpus.get(name),
        memory=held.memory.get(name, ()),
        devices=MappingProxyType(dict(held.devices.get(name, {}))),
        hint=held.hints.get(name, NO_AFFINITY),
        cpu=_cpu_limits(resources.requests, resources.limits),
        quota_disabled=isolation is Isolation.CONTAINER and lifted,
    )


def _isolation(demand: PodDemand, container: ContainerDemand, cpus: Mask | None) -> Isolation:
    """Tell with whom a container shares its CPUs (KEP-5526, ResourceIsolationLevel)."""
    if cpus is None:
        return Isolation.HOST
    if demand.pod_level and not container.cpus:
        return Isolation.POD
    return Isolation.CONTAINER


def _pod_quota_disabled(
    policy: Policy, demand: PodDemand, containers: tuple[ContainerGrant, ...]
) -> bool:
    """Tell whether the kubelet lifts the pod's quota.

    It does when any container is exclusive, with pod-level resources only when all are.
    """
    exclusive = [grant.isolation is Isolation.CONTAINER for grant in containers]
    lifted = all(exclusive) if demand.pod_level else any(exclusive)
    return lifted and policy.gates.disable_cpu_quota_with_exclusive_cpus


def _pod_cpu_limits(pod: Pod, *, pod_level: bool) -> CpuLimits:
    """Return what the quota of the pod's own cgroup follows (kubelet, ResourceConfigForPod).

    The limit stated for the pod, else the sum over its containers, and none as soon as one of them
    has no limit: that one may use what the node has.
    """
    requests = pod_requests(pod, pod_level_resources=pod_level, only=_CPU_ALONE)
    limits = pod_limits(pod, pod_level_resources=pod_level, only=_CPU_ALONE)
    stated = pod_level and pod.resources is not None and pod.resources.limits.get(CPU, ZERO)
    if not stated and not all(c.resources.limits.get(CPU, ZERO) for c in pod.all_containers()):
        limits = {}
    return _cpu_limits(requests, limits)


def _cpu_limits(requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]) -> CpuLimits:
    return CpuLimits(
        request_millis=requests[CPU].milli_value if CPU in requests else None,
        limit_millis=limits[CPU].milli_value if CPU in limits else None,
    )
