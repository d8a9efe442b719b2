"""The demand of a pod, computed once before the first resource manager is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.decision import Eligibility
from agent.managers.policy import CpuManagerPolicy, MemoryManagerPolicy
from agent.pods.model import CPU, ContainerKind, QosClass
from agent.pods.qos import is_container_guaranteed, qos_class
from agent.pods.quantity import MAX_INT64, ZERO
from agent.pods.requests import (
    aggregate,
    exclusive_cpus,
    has_pod_level_resources,
    memory_requests,
    pod_exclusive_cpus,
    pod_memory_requests,
    pod_requests,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.managers.policy import Policy
    from agent.pods.model import Container, Pod
    from agent.pods.quantity import Quantity


#: Why a container of a pod with a budget has neither exclusive CPUs nor exclusive memory.
NOT_GUARANTEED: Final = "its requests do not equal its limits for both cpu and memory"


class ContainerDemand(Struct, frozen=True):
    """The demand of one container: exclusive CPUs, bytes by memory type, devices.

    `cpus` 0: the container shares CPUs. `memory` empty: its memory is not pinned.
    `guaranteed` is whether requests equal limits for cpu and memory (KEP-5526).
    """

    container: Container
    cpus: int
    memory: Mapping[str, int]
    devices: Mapping[str, int]
    guaranteed: bool

    @property
    def name(self) -> str:
        """The container's name."""
        return self.container.name

    @property
    def kind(self) -> ContainerKind:
        """Standard init container, sidecar or app."""
        return self.container.kind

    @property
    def is_standard_init(self) -> bool:
        """Whether the container ends before the next one starts and its resources are reused."""
        return self.container.kind is ContainerKind.INIT


class PodDemand(Struct, frozen=True):
    """The demand of one pod.

    `pod_level`: its pod-level resources are managed (KEP-5526). `unmanaged`: the pod has pod-level
    resources but the gates are off, so it is admitted without alignment or exclusive resources.
    `cpus`, `memory` and `devices` are the pod's totals, its budget if `pod_level`. `requests`
    counts against the node's allocatable: effective requests by resource, with overhead, `cpu` in
    millicores and all others in whole units.
    `containers` are in the order of admission: init containers first.
    """

    pod: Pod
    qos: QosClass
    pod_level: bool
    unmanaged: bool
    cpus: int
    memory: Mapping[str, int]
    devices: Mapping[str, int]
    containers: tuple[ContainerDemand, ...]
    requests: Mapping[str, int]

    @property
    def guaranteed(self) -> bool:
        """Whether the pod is of the class Guaranteed."""
        return self.qos is QosClass.GUARANTEED

    def init_containers(self) -> Iterator[ContainerDemand]:
        """Yield standard init containers and sidecars, in order."""
        return (c for c in self.containers if c.kind is not ContainerKind.APP)

    def apps(self) -> Iterator[ContainerDemand]:
        """Yield app containers, in order."""
        return (c for c in self.containers if c.kind is ContainerKind.APP)


def demand_of(policy: Policy, pod: Pod) -> PodDemand:
    """Return the demand of a pod under a policy; no total is above 2^63-1."""
    managed = policy.pod_level_managers
    qos = qos_class(pod, pod_level_resources=policy.gates.pod_level_resources)
    has_budget = has_pod_level_resources(pod)
    return PodDemand(
        pod=pod,
        qos=qos,
        pod_level=has_budget and managed,
        unmanaged=has_budget and not managed,
        cpus=min(pod_exclusive_cpus(pod, qos, pod_level_managers=managed), MAX_INT64),
        memory=_pod_memory(pod, pod_level=has_budget and managed, managed=managed),
        devices=_pod_devices(pod, policy.devices),
        containers=tuple(
            _container_demand(policy, pod, container, qos) for container in pod.all_containers()
        ),
        requests=_node_requests(policy, pod),
    )


class DemandUnder(Struct, frozen=True):
    """A demand under a policy, of which eligibility follows when it is asked for."""

    policy: Policy
    demand: PodDemand

    def eligibility(self) -> tuple[Eligibility, ...]:
        """Return which containers may have exclusive resources, and why."""
        return explain_eligibility(self.policy, self.demand)


def explain_eligibility(policy: Policy, demand: PodDemand) -> tuple[Eligibility, ...]:
    """Return for every container whether it may have exclusive resources, and why.

    `why` is about CPUs. In pod scope, the containers of a pod-level budget that the managers do not
    divide (for CPUs: not a whole number) get no exclusive resources (KEP-5526).
    """
    from_budget = demand.pod_level and policy.topology.is_pod_scope
    cpus = _gives_cpus(policy, demand) and not (from_budget and not demand.cpus)
    memory = _gives_memory(policy, demand) and not (from_budget and not demand.memory)
    return tuple(
        Eligibility(
            container=c.name,
            exclusive_cpus=c.cpus if cpus else 0,
            exclusive_memory=memory and bool(c.memory),
            why=_why(policy, demand, c),
        )
        for c in demand.containers
    )


def _gives_cpus(policy: Policy, demand: PodDemand) -> bool:
    return policy.cpu.policy is CpuManagerPolicy.STATIC and not demand.unmanaged


def _gives_memory(policy: Policy, demand: PodDemand) -> bool:
    static = policy.memory.policy is MemoryManagerPolicy.STATIC
    return static and demand.guaranteed and not demand.unmanaged


def _container_demand(
    policy: Policy, pod: Pod, container: Container, qos: QosClass
) -> ContainerDemand:
    managed = policy.pod_level_managers
    return ContainerDemand(
        container=container,
        cpus=exclusive_cpus(pod, container, qos, pod_level_managers=managed),
        memory=memory_requests(pod, container, pod_level_managers=managed),
        devices=_device_requests(container.resources.limits, policy.devices),
        guaranteed=is_container_guaranteed(container),
    )


def _node_requests(policy: Policy, pod: Pod) -> dict[str, int]:
    """Return the effective requests as plain numbers, at most 2^63-1."""
    requests = pod_requests(pod, pod_level_resources=policy.gates.pod_level_resources)
    return {
        name: amount.milli_value if name == CPU else amount.value
        for name, amount in requests.items()
    }


def _pod_devices(pod: Pod, inventory: Collection[str]) -> dict[str, int]:
    """Return the most devices that the containers of a pod have at any one time."""
    if not inventory:
        return {}

    def devices(container: Container) -> dict[str, Quantity]:
        limits = container.resources.limits
        return {name: limits[name] for name in inventory if name in limits}

    return _device_requests(aggregate(pod, devices), inventory)


def _device_requests(limits: Mapping[str, Quantity], inventory: Iterable[str]) -> dict[str, int]:
    """Return the number of devices by resource; for these, requests equal limits."""
    return {name: limits[name].value for name in inventory if name in limits}


def _pod_memory(pod: Pod, *, pod_level: bool, managed: bool) -> dict[str, int]:
    """Return the pod's memory; a budget of zero bytes counts as absent, a request does not."""
    amounts = pod_memory_requests(pod, pod_level_managers=managed)
    return {
        name: min(size, MAX_INT64) for name, size in amounts.items() if size > 0 or not pod_level
    }


def _why(policy: Policy, demand: PodDemand, container: ContainerDemand) -> str:
    none_of_the_pod = _why_none(policy, demand)
    if none_of_the_pod is not None:
        return none_of_the_pod
    if demand.pod_level and not container.guaranteed:
        return NOT_GUARANTEED
    if demand.pod_level and policy.topology.is_pod_scope and not demand.cpus:
        return "the pod's cpu budget is not a positive whole number; pod scope divides no other"
    if container.cpus:
        return f"Guaranteed with a whole number of CPUs ({container.cpus})"
    asked = container.container.resources.requests.get(CPU, ZERO)
    return f"its cpu request {asked} is not a positive whole number"


def _why_none(policy: Policy, demand: PodDemand) -> str | None:
    """Return why no container of the pod may have exclusive CPUs, None when some may."""
    if policy.cpu.policy is not CpuManagerPolicy.STATIC:
        return f"cpuManagerPolicy is {policy.cpu.policy}; exclusive CPUs need static"
    if demand.unmanaged:
        return "the pod has pod-level resources and the gate PodLevelResourceManagers is off"
    if not demand.guaranteed:
        return f"the pod's QoS class is {demand.qos}; exclusive resources need Guaranteed"
    return None
