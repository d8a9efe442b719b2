"""The demand of a pod, computed once before the first resource manager is called.

What a pod demands of each resource manager, and whether its containers may have it, is decided by
that manager; here it is put together. So is, out of what the managers gave, the allocation of the
pod: resources, limits, isolation levels and quotas (KEP-5526, "ResourceIsolationLevel" and "CPU
Quota Management").
"""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct, field

from agent.managers.allocation import (
    DEVICES,
    ContainerAllocation,
    CpuLimits,
    Isolation,
    PodAllocation,
)
from agent.managers.topology.hint import NO_AFFINITY, Hint
from agent.pods.changes import with_whole_cores
from agent.pods.model import (
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    ContainerKind,
    QosClass,
    asked_by,
    digest_of,
    own_annotations,
    spec_text,
)
from agent.pods.quantity import ZERO
from agent.pods.requests import (
    cgroup_limits,
    has_pod_level_resources,
    is_container_guaranteed,
    is_memory_type,
    pod_requests,
    qos_class,
    with_pod_level_limits,
)
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.managers.policy import Policy
    from agent.pods.model import Asked, Container, Pod
    from agent.pods.quantity import Quantity


#: Why a container of a pod with a budget has neither exclusive CPUs nor exclusive memory.
NOT_GUARANTEED: Final = "its requests do not equal its limits for both cpu and memory"


class PodRequest(Struct, frozen=True):
    """A pod under a policy, as a resource manager is asked what the pod demands.

    `pod_level`: its pod-level resources are managed (KEP-5526). `unmanaged`: it has pod-level
    resources but the gates are off, so it is admitted without alignment or exclusive resources.
    `containers` are in the order of admission. `named` are those that an annotation gives exclusive
    CPUs in a pod of any QoS class; none in a pod with pod-level resources.
    """

    policy: Policy
    pod: Pod
    qos: QosClass
    pod_level: bool
    unmanaged: bool
    containers: tuple[Container, ...]
    named: frozenset[str] = frozenset()

    @property
    def from_budget(self) -> bool:
        """Whether the pod's budget is allocated as a whole and divided among the containers."""
        return self.pod_level and self.policy.topology.is_pod_scope

    def lacks_guarantee(self, container: Container) -> bool:
        """Return whether a container shares a budget since it is not Guaranteed itself (KEP-5526).

        Its requests would have to equal its limits for cpu and memory.
        """
        return self.pod_level and not is_container_guaranteed(container)

    def why_none(self) -> str | None:
        """Return why no container may have exclusive CPUs or memory, None when some may."""
        if self.unmanaged:
            return "the pod has pod-level resources and the gate PodLevelResourceManagers is off"
        if self.qos is not QosClass.GUARANTEED:
            return f"the pod's QoS class is {self.qos}; exclusive resources need Guaranteed"
        return None


class Reasons(Protocol):
    """The reason of each container, by its place: a tuple, or text that is made when it is read."""

    def __getitem__(self, place: int, /) -> str:
        """Return the reason of the container at a place."""
        ...


class ResourceDemand(Struct, frozen=True):
    """What a pod demands of one resource manager, in the manager's own types.

    `pod` is the demand of the pod, its budget if `PodDemand.pod_level`; `containers` are the
    demands of the containers, in their order. `active`: the manager allocates to this pod.
    `exclusive` says of each container whether it may have resources of its own, and `why` gives
    the reason.
    """

    pod: Any
    containers: tuple[Any, ...]
    active: bool
    exclusive: tuple[bool, ...]
    why: Reasons


class Demanding(Protocol):
    """What computing a demand needs of a resource manager."""

    @property
    def name(self) -> str:
        """The name of the manager."""
        ...

    def demand(self, request: PodRequest) -> ResourceDemand:
        """Return what a pod demands of the manager."""
        ...


class ContainerDemand(Struct, frozen=True):
    """The demand of one container: what the demands of its pod have at its `place`."""

    container: Container
    of_pod: Mapping[str, ResourceDemand]
    place: int

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

    def part(self, manager: str) -> Any:  # noqa: ANN401  (the manager's own type)
        """Return what the container demands of a resource manager."""
        return self.of_pod[manager].containers[self.place]

    def may_have(self, manager: str) -> bool:
        """Return whether a resource manager may give the container resources of its own."""
        return self.of_pod[manager].exclusive[self.place]

    def why(self, manager: str) -> str:
        """Return why a resource manager may or may not do so, "" without the manager."""
        part = self.of_pod.get(manager)
        return "" if part is None else part.why[self.place]

    @property
    def cpus(self) -> int:
        """The whole CPUs that the container requests; 0: it shares CPUs."""
        cpus: int = self.of_pod[CPU].containers[self.place]
        return cpus

    @property
    def memory(self) -> Mapping[str, int]:
        """The bytes by memory type that the container requests; empty: its memory is shared."""
        memory: Mapping[str, int] = self.of_pod[MEMORY].containers[self.place]
        return memory


class Eligibility(Struct, frozen=True):
    """Which managers may give one container resources of its own."""

    container: str
    #: The demand for exclusive resources, by manager and in the manager's own type; managers that
    #: give the container none are left out.
    exclusive: Mapping[str, Any]
    #: By manager, every one: why it may or may not.
    why: Mapping[str, str]


class PodDemand(Struct, frozen=True, dict=True):
    """The demand of one pod under a policy: all that a decision asks about the pod.

    Each answer is worked out once, when it is first read: a pod for which the node has no room, or
    which is admitted already, needs few of them.
    """

    policy: Policy
    #: The managers that `parts` are of.
    managers: Sequence[Demanding]
    #: As the manifest has it.
    pod: Pod
    #: The host's (`CpuTopology.cpus_per_core`), for pods that ask for whole cores.
    cpus_per_core: int = 1

    @cached_property
    def effective(self) -> Pod:
        """The pod with the amounts that count.

        Those of the manifest, with what the policy's version defaults, then rounded up to cores.
        """
        # Not by the manifest's reader: the digest of a specification is the same under every
        # version.
        by_version = self._has_budget and self.policy.gates.pod_level_resources_fix_defaulting
        pod = with_pod_level_limits(self.pod) if by_version else self.pod
        return with_whole_cores(pod, self.cpus_per_core) if self.asked.round_up else pod

    @property
    def _has_budget(self) -> bool:
        return self.policy.gates.pod_level_resources and has_pod_level_resources(self.pod)

    @cached_property
    def request(self) -> PodRequest:
        """The pod as each resource manager is asked."""
        managed, has_budget = self.policy.pod_level_managers, self._has_budget
        of_pod = self.policy.gates.pod_level_resources
        return PodRequest(
            policy=self.policy,
            pod=self.effective,
            qos=qos_class(self.effective, pod_level_resources=of_pod),
            pod_level=has_budget and managed,
            unmanaged=has_budget and not managed,
            containers=self.effective.all_containers(),
            named=frozenset() if has_budget else self.asked.named,
        )

    @property
    def pod_level(self) -> bool:
        """Whether the pod's pod-level resources are managed (KEP-5526)."""
        return self.request.pod_level

    @cached_property
    def parts(self) -> Mapping[str, ResourceDemand]:
        """What the pod demands of each resource manager, by name."""
        return {manager.name: manager.demand(self.request) for manager in self.managers}

    @cached_property
    def containers(self) -> tuple[ContainerDemand, ...]:
        """The demands of the containers in the order of admission: init containers first."""
        parts, containers = self.parts, self.request.containers
        return tuple(
            [ContainerDemand(container, parts, place) for place, container in enumerate(containers)]
        )

    @cached_property
    def requests(self) -> Mapping[str, int]:
        """What counts against the node's allocatable, by resource, at most 2^63-1 each.

        Effective requests with overhead, `cpu` in millicores and all others in whole units.
        """
        of_pod = self.policy.gates.pod_level_resources
        return {
            name: amount.milli_value if name == CPU else amount.value
            for name, amount in pod_requests(self.effective, pod_level_resources=of_pod).items()
        }

    @cached_property
    def spec(self) -> str:
        """The specification as a text, equal for pods that request the same."""
        return spec_text(self.pod)

    @property
    def spec_digest(self) -> str:
        """The digest of `spec`."""
        return digest_of(self.spec)

    @cached_property
    def asked(self) -> Asked:
        """What the pod's annotations ask for."""
        return asked_by(self.pod.annotations)

    @property
    def memory_classes(self) -> str:
        """The classes of memory that the pod may use, "" for any."""
        return self.policy.memory.classes_for(self.asked.isolation)

    @property
    def dropped(self) -> tuple[str, ...]:
        """A warning for each field that counts for nothing, as the API server drops it."""
        if self.pod.resources is None:
            return ()
        if not has_pod_level_resources(self.pod):
            return ("spec.resources: it states no amount, so it is as if it were left out",)
        if self.policy.gates.pod_level_resources:
            return ()
        return ("spec.resources: the feature gate PodLevelResources is off, so it is left out",)

    @property
    def cpus(self) -> int:
        """The whole CPUs that the pod requests, its budget if `pod_level`."""
        cpus: int = self.parts[CPU].pod
        return cpus

    @property
    def memory(self) -> Mapping[str, int]:
        """The bytes by memory type that the pod requests, its budget if `pod_level`."""
        memory: Mapping[str, int] = self.parts[MEMORY].pod
        return memory

    def active(self, manager: str) -> bool:
        """Return whether a resource manager allocates to this pod."""
        return self.parts[manager].active

    def eligibility(self) -> tuple[Eligibility, ...]:
        """Return which containers may have exclusive resources, and why."""
        return tuple(
            Eligibility(
                each.name,
                {name: each.part(name) for name in self.parts if each.may_have(name)},
                {name: part.why[each.place] for name, part in self.parts.items()},
            )
            for each in self.containers
        )

    @property
    def has_standard_init(self) -> bool:
        """Whether containers end before others start, which may reuse what they had."""
        return any(container.is_standard_init for container in self.containers)

    @cached_property
    def init_containers(self) -> tuple[ContainerDemand, ...]:
        """Standard init containers and sidecars, in order."""
        return tuple([c for c in self.containers if c.kind is not ContainerKind.APP])

    @cached_property
    def apps(self) -> tuple[ContainerDemand, ...]:
        """App containers, in order."""
        return tuple([c for c in self.containers if c.kind is ContainerKind.APP])


class PodPart(Struct):
    """What one resource manager has allocated to a pod, in the manager's own types.

    `containers` are by name, and lack those without a part; `pod` is the budget, None without one.
    `idle` are CPUs that stay idle for the sake of the pod.
    """

    containers: dict[str, Any] = field(default_factory=dict)
    pod: Any = None
    idle: Mask = EMPTY


_NO_HINTS: Final[Mapping[str, Hint]] = MappingProxyType({})
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def make_allocation(
    demand: PodDemand,
    parts: Mapping[str, PodPart],
    hints: Mapping[str, Hint] = _NO_HINTS,
) -> PodAllocation:
    """Return the allocation of the pod of `demand`: the `parts` of the managers, by their names.

    `hints` are the alignments of the containers, by name.
    """
    pod, request, policy = demand.pod, demand.request, demand.policy
    classes, of_pod_resources = demand.memory_classes, policy.gates.pod_level_resources
    nodes = policy.memory.nodes_of(classes) if classes else EMPTY
    containers = tuple(
        [
            _container(demand, each, parts, hints.get(each.name, NO_AFFINITY), nodes)
            for each in demand.containers
        ]
    )
    of_pod = {name: part.pod for name, part in parts.items() if part.pod is not None}
    limits = cgroup_limits(request.pod, pod_level_resources=of_pod_resources)
    return PodAllocation(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        qos=request.qos,
        spec_digest=demand.spec_digest,
        containers=containers,
        spec=demand.spec,
        annotations=own_annotations(pod.annotations),
        cpus=of_pod.pop(CPU, None),
        memory=of_pod.pop(MEMORY, ()),
        cpu=CpuLimits(
            request_millis=demand.requests.get(CPU),
            limit_millis=limits[CPU].milli_value if CPU in limits else None,
        ),
        quota_disabled=_pod_quota_disabled(demand, containers),
        requests=MappingProxyType(dict(demand.requests)),
        limits=MappingProxyType({**_memory_limits(limits), **_hugepages(demand.requests)}),
        others=MappingProxyType(of_pod) if of_pod else _NONE,
        idle=parts[CPU].idle if CPU in parts else EMPTY,
    )


def _container(
    demand: PodDemand,
    container: ContainerDemand,
    parts: Mapping[str, PodPart],
    hint: Hint,
    memory_nodes: Mask,
) -> ContainerAllocation:
    name = container.name
    own = {key: part.containers[name] for key, part in parts.items() if name in part.containers}
    cpus: Mask | None = own.pop(CPU, None)
    isolation = _isolation(demand, container, cpus)
    devices = dict(own.pop(DEVICES, {}))
    resources = container.container.resources
    lifted = demand.policy.gates.disable_cpu_quota_with_exclusive_cpus
    return ContainerAllocation(
        name=name,
        kind=container.kind,
        isolation=isolation,
        cpus=cpus,
        memory=own.pop(MEMORY, ()),
        devices=MappingProxyType(devices),
        device_nodes=_device_nodes(demand.policy, devices) if devices else _NONE,
        hint=hint,
        cpu=_cpu_limits(resources.requests, resources.limits),
        quota_disabled=isolation is Isolation.CONTAINER and lifted,
        limits=_memory_limits(resources.limits),
        memory_request=resources.requests.get(MEMORY, ZERO).value,
        why=container.why(CPU),
        memory_nodes=memory_nodes,
        others=MappingProxyType(own) if own else _NONE,
    )


def _device_nodes(
    policy: Policy, devices: Mapping[str, tuple[str, ...]]
) -> Mapping[str, Mapping[str, Mask]]:
    """Return the NUMA nodes of allocated devices, as far as they are known."""
    places = {
        resource: {
            device.id: device.nodes
            for device in policy.devices.get(resource, ())
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


def _pod_quota_disabled(demand: PodDemand, containers: tuple[ContainerAllocation, ...]) -> bool:
    """Return whether the kubelet removes the pod's CPU quota.

    It does so if any container has exclusive CPUs; with pod-level resources only if all have.
    """
    exclusive = [allocation.isolation is Isolation.CONTAINER for allocation in containers]
    lifted = all(exclusive) if demand.pod_level else any(exclusive)
    return lifted and demand.policy.gates.disable_cpu_quota_with_exclusive_cpus


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
