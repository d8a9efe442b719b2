"""Building the allocation of a pod: resources, isolation levels, limits and quotas.

Isolation levels and quotas: KEP-5526, "ResourceIsolationLevel" and "CPU Quota Management".
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from agent.managers.allocations.allocation import (
    DEVICES,
    ContainerAllocation,
    CpuLimits,
    Isolation,
    PodAllocation,
)
from agent.managers.topology.hints import NO_AFFINITY, Hint
from agent.pods.model import CPU, HUGEPAGES_PREFIX, MEMORY, spec_digest
from agent.pods.quantity import ZERO
from agent.pods.requests import is_memory_type, pod_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocations.demand import ContainerDemand, PodDemand
    from agent.managers.policy import Policy
    from agent.pods.model import Pod
    from agent.pods.quantity import Quantity
    from sysfs.mask import Mask

#: Without a pod-level limit, the pod has a limit of these only if every container has.
_SUMMED: Final = (CPU, MEMORY)


class PodPart(Struct):
    """What one resource manager has allocated to a pod, in the manager's own types.

    `containers` are by name, and lack those without a part; `pod` is the budget, None without one.
    """

    containers: dict[str, Any] = field(default_factory=dict)
    pod: Any = None


_NO_HINTS: Final[Mapping[str, Hint]] = MappingProxyType({})
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def make_allocation(
    policy: Policy,
    demand: PodDemand,
    parts: Mapping[str, PodPart],
    hints: Mapping[str, Hint] = _NO_HINTS,
) -> PodAllocation:
    """Return the allocation of the pod of `demand`: the `parts` of the managers, by their names.

    `hints` are the alignments of the containers, by name.
    """
    pod, gates = demand.pod, policy.gates
    containers = tuple(
        [
            _container(policy, demand, each, parts, hints.get(each.name, NO_AFFINITY))
            for each in demand.containers
        ]
    )
    of_pod = {name: part.pod for name, part in parts.items() if part.pod is not None}
    limits = _pod_limits(pod, pod_level=gates.pod_level_resources)
    return PodAllocation(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        qos=demand.qos,
        spec_digest=spec_digest(pod),
        containers=containers,
        cpus=of_pod.pop(CPU, None),
        memory=of_pod.pop(MEMORY, ()),
        cpu=CpuLimits(
            request_millis=demand.requests.get(CPU),
            limit_millis=limits[CPU].milli_value if CPU in limits else None,
        ),
        quota_disabled=_pod_quota_disabled(policy, demand, containers),
        requests=MappingProxyType(dict(demand.requests)),
        limits=MappingProxyType({**_memory_limits(limits), **_hugepages(demand.requests)}),
        others=MappingProxyType(of_pod) if of_pod else _NONE,
    )


def _container(
    policy: Policy,
    demand: PodDemand,
    container: ContainerDemand,
    parts: Mapping[str, PodPart],
    hint: Hint,
) -> ContainerAllocation:
    name = container.name
    own = {key: part.containers[name] for key, part in parts.items() if name in part.containers}
    cpus: Mask | None = own.pop(CPU, None)
    isolation = _isolation(demand, container, cpus)
    devices = dict(own.pop(DEVICES, {}))
    resources = container.container.resources
    lifted = policy.gates.disable_cpu_quota_with_exclusive_cpus
    return ContainerAllocation(
        name=name,
        kind=container.kind,
        isolation=isolation,
        cpus=cpus,
        memory=own.pop(MEMORY, ()),
        devices=MappingProxyType(devices),
        device_nodes=_device_nodes(policy, devices) if devices else _NONE,
        hint=hint,
        cpu=_cpu_limits(resources.requests, resources.limits),
        quota_disabled=isolation is Isolation.CONTAINER and lifted,
        limits=_memory_limits(resources.limits),
        why=container.why(CPU),
        others=MappingProxyType(own) if own else _NONE,
    )


def _device_nodes(
    policy: Policy, devices: Mapping[str, tuple[str, ...]]
) -> Mapping[str, Mapping[str, Mask]]:
    """Return the NUMA nodes of allocated devices, as far as they are known."""
    places = {
        resource: {
            device.id: device.nodes
            for device in policy.devices[resource]
            if device.nodes and device.id in ids
        }
        for resource, ids in devices.items()
    }
    return MappingProxyType({resource: nodes for resource, nodes in places.items() if nodes})


def _isolation(demand: PodDemand, container: ContainerDemand, cpus: Mask | None) -> Isolation:
    """Return which containers share the CPUs of a container (KEP-5526, ResourceIsolationLevel)."""
    if cpus is None:
        return Isolation.HOST
    if demand.pod_level and not container.cpus:
        return Isolation.POD
    return Isolation.CONTAINER


def _pod_quota_disabled(
    policy: Policy, demand: PodDemand, containers: tuple[ContainerAllocation, ...]
) -> bool:
    """Return whether the kubelet removes the pod's CPU quota.

    It does so if any container has exclusive CPUs; with pod-level resources only if all have.
    """
    exclusive = [allocation.isolation is Isolation.CONTAINER for allocation in containers]
    lifted = all(exclusive) if demand.pod_level else any(exclusive)
    return lifted and policy.gates.disable_cpu_quota_with_exclusive_cpus


def _pod_limits(pod: Pod, *, pod_level: bool) -> dict[str, Quantity]:
    """Return the limits of the pod's own cgroup (kubelet, ResourceConfigForPod).

    For cpu and memory: the pod-level limit, else the sum over its containers. If any container has
    no limit, the pod has none.
    """
    limits = pod_limits(pod, pod_level_resources=pod_level)
    stated = pod.resources.limits if pod_level and pod.resources is not None else {}
    for name in _SUMMED:
        if not stated.get(name, ZERO) and not all(
            container.resources.limits.get(name, ZERO) for container in pod.all_containers()
        ):
            limits.pop(name, None)
    return limits


def _hugepages(requests: Mapping[str, int]) -> dict[str, int]:
    """Return the limit of each huge page size, which equals the request (HugePageLimits)."""
    return {name: size for name, size in requests.items() if name.startswith(HUGEPAGES_PREFIX)}


def _memory_limits(limits: Mapping[str, Quantity]) -> Mapping[str, int]:
    """Return the bytes by memory type; a limit of zero bytes means no limit."""
    sizes = {name: size.value for name, size in limits.items() if is_memory_type(name)}
    if not sizes.get(MEMORY):
        sizes.pop(MEMORY, None)
    return MappingProxyType(sizes)


def _cpu_limits(requests: Mapping[str, Quantity], limits: Mapping[str, Quantity]) -> CpuLimits:
    return CpuLimits(
        request_millis=requests[CPU].milli_value if CPU in requests else None,
        limit_millis=limits[CPU].milli_value if CPU in limits else None,
    )
