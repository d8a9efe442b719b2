"""The demand of a pod, computed once before the first resource manager is called.

What a pod demands of each resource manager, and whether its containers may have it, is decided by
that manager; here it is put together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from agent.managers.decision import Eligibility
from agent.pods.model import CPU, MEMORY, ContainerKind, QosClass
from agent.pods.requests import (
    has_pod_level_resources,
    is_container_guaranteed,
    pod_requests,
    qos_class,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.policy import Policy
    from agent.pods.model import Container, Pod


#: Why a container of a pod with a budget has neither exclusive CPUs nor exclusive memory.
NOT_GUARANTEED: Final = "its requests do not equal its limits for both cpu and memory"


class PodRequest(Struct, frozen=True):
    """A pod under a policy, as a resource manager is asked what the pod demands.

    `pod_level`: its pod-level resources are managed (KEP-5526). `unmanaged`: it has pod-level
    resources but the gates are off, so it is admitted without alignment or exclusive resources.
    `containers` are in the order of admission.
    """

    policy: Policy
    pod: Pod
    qos: QosClass
    pod_level: bool
    unmanaged: bool
    containers: tuple[Container, ...]

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


class PodDemand(Struct, frozen=True):
    """The demand of one pod, by the name of the resource manager.

    `pod_level`: its pod-level resources are managed (KEP-5526). `requests` counts against the
    node's allocatable: effective requests by resource, with overhead, `cpu` in millicores and all
    others in whole units. `containers` are in the order of admission: init containers first.
    """

    pod: Pod
    qos: QosClass
    pod_level: bool
    parts: Mapping[str, ResourceDemand]
    containers: tuple[ContainerDemand, ...]
    requests: Mapping[str, int]
    #: Warnings of fields of the pod that the policy's feature gates leave out.
    dropped: tuple[str, ...] = ()

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

    def init_containers(self) -> Iterator[ContainerDemand]:
        """Yield standard init containers and sidecars, in order."""
        return (c for c in self.containers if c.kind is not ContainerKind.APP)

    def apps(self) -> Iterator[ContainerDemand]:
        """Yield app containers, in order."""
        return (c for c in self.containers if c.kind is ContainerKind.APP)


def demand_of(
    policy: Policy,
    managers: Iterable[Demanding],
    pod: Pod,
    requests: Mapping[str, int] | None = None,
) -> PodDemand:
    """Return the demand of a pod under a policy; no total is above 2^63-1.

    `requests` are the pod's `node_requests` where they are known already.
    """
    managed, gates = policy.pod_level_managers, policy.gates
    has_budget = gates.pod_level_resources and has_pod_level_resources(pod)
    containers = pod.all_containers()
    request = PodRequest(
        policy=policy,
        pod=pod,
        qos=qos_class(pod, pod_level_resources=gates.pod_level_resources),
        pod_level=has_budget and managed,
        unmanaged=has_budget and not managed,
        containers=containers,
    )
    parts = {manager.name: manager.demand(request) for manager in managers}
    return PodDemand(
        pod=pod,
        qos=request.qos,
        pod_level=request.pod_level,
        parts=parts,
        containers=tuple(
            [ContainerDemand(container, parts, place) for place, container in enumerate(containers)]
        ),
        requests=node_requests(policy, pod) if requests is None else requests,
        dropped=_dropped(policy, pod),
    )


def _dropped(policy: Policy, pod: Pod) -> tuple[str, ...]:
    """Return a warning for each field that counts for nothing, as the API server drops it."""
    if policy.gates.pod_level_resources or not has_pod_level_resources(pod):
        return ()
    return ("spec.resources: the feature gate PodLevelResources is off, so it is left out",)


def node_requests(policy: Policy, pod: Pod) -> dict[str, int]:
    """Return the effective requests as in `PodDemand.requests`, at most 2^63-1 each."""
    requests = pod_requests(pod, pod_level_resources=policy.gates.pod_level_resources)
    return {
        name: amount.milli_value if name == CPU else amount.value
        for name, amount in requests.items()
    }
