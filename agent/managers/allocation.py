"""Allocations: what a pod and its containers have, who asked for the pod, and how it was decided.

A decision, an import or a recovery makes an allocation (`Origin`). The ledger and the checkpoint
keep it, and enforcement reads it. Each resource manager has a part of it (`part`): the kubelet's
managers have fields of their own, other managers have their parts in `others`.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # msgspec reads it at run time
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.delivery import NOTHING, Delivery
from agent.managers.topology.hint import NO_AFFINITY, Hint
from agent.pods.model import CPU, MEMORY, UNTIL_REMOVED, ContainerKind, Lifetime, QosClass
from agent.values import Name, Saved, Size
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator


class Origin(StrEnum):
    """How the resources of an allocation were determined.

    No specification is known of an imported or recovered pod. The first specification that fits
    makes its allocation `DECIDED` (`agent.managers.readmission`).
    """

    #: For a specification, or matched with one later.
    DECIDED = "decided"
    #: Taken over from the kubelet's state files.
    IMPORTED = "imported"
    #: Taken from what the cgroups of the running pod show.
    RECOVERED = "recovered"


class Source(Saved, frozen=True):
    """Who asked for a pod."""

    #: The name of the source of pods (`agent.sources.source.PodSource`).
    name: Name
    #: What the pod belongs to and ends with, as the path of its file; "" where only a request
    #: removes the pod, as for pods of the API.
    key: str = ""

    def __str__(self) -> str:
        return self.key or self.name


#: The source of pods that requests to the API admit.
API: Final = Source("api")
#: The name of the source of the pods of a kubelet beside the agent.
KUBELET: Final = "kubelet"


#: The budget of a pod in mappings by container, whose names are never empty.
BUDGET: Final = ""
#: The name of the device manager.
DEVICES: Final = "devices"
#: By manager: the field of an allocation that has its part.
_FIELDS: Final = {CPU: "cpus", MEMORY: "memory", DEVICES: "devices"}


class Isolation(StrEnum):
    """Who shares the CPUs of a container (KEP-5526, ResourceIsolationLevel)."""

    #: All containers in the node's shared pool.
    HOST = "host"
    #: The containers of the pod that share its budget.
    POD = "pod"
    #: No other container.
    CONTAINER = "container"


class MemoryBlock(Saved, frozen=True):
    """Memory of one type on a set of nodes."""

    #: `memory`, `hugepages-2Mi`, ...
    type: Name
    #: In bytes.
    size: Size
    nodes: Mask


class CpuLimits(Saved, frozen=True):
    """From what the CFS quota of a cgroup follows, in millicores; None where the pod sets none."""

    request_millis: Size | None = None
    limit_millis: Size | None = None


class ContainerAllocation(Saved, frozen=True):
    """The allocation of one container."""

    name: Name
    kind: ContainerKind
    isolation: Isolation = Isolation.HOST
    #: None: the container runs in the node's shared pool. With isolation `POD` these are the CPUs
    #: of the pod shared pool; of a standard init container, the part of the budget that it may use.
    cpus: Mask | None = None
    #: Empty: memory is not pinned, or was released: of a standard init container, when a later
    #: container started.
    memory: tuple[MemoryBlock, ...] = ()
    #: Ids by resource.
    devices: Mapping[Name, tuple[str, ...]] = MappingProxyType({})
    #: The alignment with which the managers allocated.
    hint: Hint = NO_AFFINITY
    cpu: CpuLimits = CpuLimits()
    quota_disabled: bool = False
    #: The specified limits in bytes, by memory type.
    limits: Mapping[Name, Size] = MappingProxyType({})
    #: The requested memory in bytes.
    memory_request: Size = 0
    #: Why its CPUs are exclusive or not; "" without a known specification.
    why: str = ""
    #: By manager: what managers other than the kubelet's allocated, as JSON has it.
    others: Mapping[Name, Any] = MappingProxyType({})
    #: What the providers of its devices returned after the decision.
    delivery: Delivery = NOTHING
    #: By resource and id: the NUMA nodes that a device had at the delivery. Devices of which no
    #: node is known are left out.
    device_nodes: Mapping[Name, Mapping[str, Mask]] = MappingProxyType({})
    #: The nodes with memory of the classes that the pod asks for; empty where any class will do.
    memory_nodes: Mask = EMPTY

    def part(self, manager: str) -> Any:  # noqa: ANN401  (the manager's own type)
        """Return what a resource manager has allocated to the container, None for nothing."""
        return _part(self, manager)

    def with_part(self, manager: str, part: Any) -> ContainerAllocation:  # noqa: ANN401
        """Return this allocation with another part of a manager that has a part in it."""
        if manager in _FIELDS:
            return replace(self, **{_FIELDS[manager]: part})
        return replace(self, others=MappingProxyType({**self.others, manager: part}))

    @property
    def mems(self) -> Mask:
        """The NUMA nodes to which memory is pinned, else those that are allowed; empty for all."""
        if not self.memory:
            return self.memory_nodes
        bits = 0
        for block in self.memory:
            bits |= block.nodes.bits
        return Mask(bits)


class PodSets(Struct, frozen=True):
    """What a pod has of CPUs and NUMA nodes for itself, or is to have."""

    #: Its exclusive CPUs, idle siblings included.
    cpus: Mask = EMPTY
    #: Those of its pinned memory.
    nodes: Mask = EMPTY

    def __bool__(self) -> bool:
        """Return whether the pod has any of these."""
        return bool(self.cpus or self.nodes)


class PodAllocation(Saved, frozen=True, dict=True):
    """The allocation of one pod."""

    uid: Name
    #: "" where only the uid is known, of an imported or recovered pod; so with the namespace.
    name: str
    namespace: str
    qos: QosClass
    #: Of the decided specification: admitting it again returns this allocation. "" where no
    #: specification is known.
    spec_digest: str
    containers: tuple[ContainerAllocation, ...]
    #: The pod-level budget of CPUs (KEP-5526); None without one.
    cpus: Mask | None = None
    #: The pod-level budget of memory; empty without one.
    memory: tuple[MemoryBlock, ...] = ()
    cpu: CpuLimits = CpuLimits()
    quota_disabled: bool = False
    #: The effective requests by resource (KEP-753, KEP-2837, overhead included): `cpu` in
    #: millicores, all others in whole units.
    requests: Mapping[Name, Size] = MappingProxyType({})
    #: The limits of the pod's own cgroup in bytes, by memory type.
    limits: Mapping[Name, Size] = MappingProxyType({})
    origin: Origin = Origin.DECIDED
    #: None where no source asked for the pod. Decisions neither set nor read it: the controller
    #: sets it with the admission (`Ledger.with_source`).
    source: Source | None = None
    #: By manager: the budgets of managers other than the kubelet's, as JSON has them.
    others: Mapping[Name, Any] = MappingProxyType({})
    #: What ends the pod; the controller sets it (`Ledger.with_lifetime`).
    lifetime: Lifetime = UNTIL_REMOVED
    #: What the pod asks for its exclusive CPUs, by item of isolation.
    isolation: Mapping[Name, str] = MappingProxyType({})
    #: Sibling threads of its exclusive CPUs that stay idle: no container of the pod has them.
    idle: Mask = EMPTY
    #: Why its devices are not prepared for its containers (PreStartContainer); "" if they are, or
    #: need not be.
    unprepared: str = ""
    #: What it was decided for (`agent.pods.saved`); "" where that is not known.
    spec: str = ""
    #: The annotations of the specification that the agent reads.
    annotations: Mapping[Name, str] = MappingProxyType({})
    #: Of what a resize changed: the CPUs that were given at the admission, as far as they are still
    #: there, by container, and under `BUDGET` those of the budget.
    originals: Mapping[str, Mask] = MappingProxyType({})

    def part(self, manager: str) -> Any:  # noqa: ANN401  (the manager's own type)
        """Return what a resource manager has allocated to the pod as a whole, None for nothing."""
        return _part(self, manager)

    def with_part(self, manager: str, part: Any) -> PodAllocation:  # noqa: ANN401
        """Return this allocation with another budget of a manager that has a budget in it."""
        if manager in _FIELDS:
            return replace(self, **{_FIELDS[manager]: part})
        return replace(self, others=MappingProxyType({**self.others, manager: part}))

    @property
    def has_budget(self) -> bool:
        """Whether the pod as a whole has a budget, which its containers divide."""
        return self.cpus is not None or bool(self.memory) or bool(self.others)

    @property
    def has_devices(self) -> bool:
        """Whether any container has devices."""
        return any(container.devices for container in self.containers)

    @cached_property
    def exclusive_cpus(self) -> Mask:
        """All CPUs that this pod takes out of the node's shared pool, idle siblings included."""
        bits = self.idle.bits | (self.cpus.bits if self.cpus is not None else 0)
        for container in self.containers:
            if container.cpus is not None:
                bits |= container.cpus.bits
        return Mask(bits)

    @cached_property
    def node_requests(self) -> Mapping[str, int]:
        """The pod's share of the node's allocatable, in the units of `requests`.

        Idle siblings count as requested, since no other pod may use them. Where no specification is
        known, what is allocated counts: the pod must have requested at least as much.
        """
        if self.requests and self.idle:
            cpus = self.requests.get(CPU, 0) + 1000 * len(self.idle)
            return MappingProxyType({**self.requests, CPU: cpus})
        return self.requests or self._allocated_amounts()

    def _allocated_amounts(self) -> Mapping[str, int]:
        amounts = {CPU: 1000 * len(self.exclusive_cpus)}
        containers = (block for container in self.containers for block in container.memory)
        for block in self.memory or containers:
            amounts[block.type] = amounts.get(block.type, 0) + block.size
        for resource, _ in {(resource, device) for _, resource, device in self.allocated_devices()}:
            amounts[resource] = amounts.get(resource, 0) + 1
        return MappingProxyType({name: amount for name, amount in amounts.items() if amount})

    def allocated_devices(self) -> Iterator[tuple[str, str, str]]:
        """Yield container, resource and id of every device."""
        for container in self.containers:
            for resource, ids in sorted(container.devices.items()):
                for device in ids:
                    yield container.name, resource, device

    @cached_property
    def lasting(self) -> tuple[ContainerAllocation, ...]:
        """The containers that live as long as the pod."""
        return tuple([c for c in self.containers if c.kind is not ContainerKind.INIT])

    @cached_property
    def delivered(self) -> tuple[ContainerAllocation, ...]:
        """The containers with a delivery for their devices."""
        return tuple([c for c in self.containers if c.delivery != NOTHING])

    def container(self, name: str) -> ContainerAllocation | None:
        """Return the allocation of the named container, None when the pod has no such container."""
        for allocation in self.containers:  # next() is slower, and each pass calls this
            if allocation.name == name:
                return allocation
        return None


def _part(allocation: ContainerAllocation | PodAllocation, manager: str) -> Any:  # noqa: ANN401
    """Return the part of a manager; of empty parts only an empty set of CPUs counts as one."""
    if manager not in _FIELDS:
        return allocation.others.get(manager)
    part = getattr(allocation, _FIELDS[manager], None)  # a pod as a whole has no devices
    return part if part or isinstance(part, Mask) else None
