"""Allocations: what one container and one pod have."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # msgspec reads it at run time
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from agent.managers.allocations.delivery import NOTHING, Delivery
from agent.managers.allocations.origin import Origin, Source
from agent.managers.topology.hints import NO_AFFINITY, Hint
from agent.pods.lifetime import UNTIL_REMOVED, Lifetime
from agent.pods.model import CPU, MEMORY, ContainerKind, QosClass
from agent.values import Name, Saved, Size
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The name of the device manager.
DEVICES: Final = "devices"
#: The fields of a container's allocation that hold parts of managers.
_FIELDS: Final = {CPU: "cpus", MEMORY: "memory", DEVICES: "devices"}


class Isolation(StrEnum):
    """Which containers share the CPUs of a container (KEP-5526, ResourceIsolationLevel)."""

    HOST = "host"
    POD = "pod"
    CONTAINER = "container"


class MemoryBlock(Saved, frozen=True):
    """`size` bytes of one memory type (`memory`, `hugepages-2Mi`, ...) on the nodes of a mask."""

    type: Name
    size: Size
    nodes: Mask


class CpuLimits(Saved, frozen=True):
    """What the CFS quota of a cgroup follows, in millicores; None where none is set."""

    request_millis: Size | None = None
    limit_millis: Size | None = None


class ContainerAllocation(Saved, frozen=True):
    """The allocation of one container.

    `cpus` None: the container runs in the node's shared pool. With isolation POD, `cpus` is the pod
    shared pool (or, for a standard init container, the part of the budget that it may use).
    `memory` empty: the memory is not pinned, or the container is a standard init container whose
    memory was released when a later container started. `limits` are the specified limits in bytes
    by memory type. `why` is the reason why its CPUs are exclusive or not, "" without a known
    specification. `cpus`, `memory` and `devices` are the parts of the kubelet's managers, which
    enforcement reads; `others` are those of further managers by name, values as JSON has them.
    `delivery` is what the providers of its devices returned for it after the decision.
    `device_nodes` are the NUMA nodes that its devices had then, by id by resource; a device without
    a known node is left out.
    """

    name: Name
    kind: ContainerKind
    isolation: Isolation = Isolation.HOST
    cpus: Mask | None = None
    memory: tuple[MemoryBlock, ...] = ()
    devices: Mapping[Name, tuple[str, ...]] = MappingProxyType({})
    hint: Hint = NO_AFFINITY
    cpu: CpuLimits = CpuLimits()
    quota_disabled: bool = False
    limits: Mapping[Name, Size] = MappingProxyType({})
    why: str = ""
    others: Mapping[Name, Any] = MappingProxyType({})
    delivery: Delivery = NOTHING
    device_nodes: Mapping[Name, Mapping[str, Mask]] = MappingProxyType({})

    def part(self, manager: str) -> Any:  # noqa: ANN401  (the manager's own type)
        """Return what a resource manager has allocated to the container, None for nothing."""
        return _part(self, manager)

    def with_part(self, manager: str, part: Any) -> ContainerAllocation:  # noqa: ANN401
        """Return this allocation with another part of one manager, which has a part already."""
        if manager in _FIELDS:
            return replace(self, **{_FIELDS[manager]: part})
        return replace(self, others=MappingProxyType({**self.others, manager: part}))

    @property
    def mems(self) -> Mask:
        """The NUMA nodes that the memory is pinned to; empty when it is not pinned."""
        bits = 0
        for block in self.memory:
            bits |= block.nodes.bits
        return Mask(bits)


class PodAllocation(Saved, frozen=True, dict=True):
    """The allocation of one pod.

    `cpus` and `memory` are the pod-level budget (the NUMA-aligned "bubble" of pod scope); None and
    empty without a budget. `spec_digest` identifies the decided specification, so that admitting it
    again returns the same allocation. `requests` are the effective requests by resource (KEP-753,
    KEP-2837, overhead included): `cpu` in millicores, all others in whole units. `limits` are the
    limits of the pod's own cgroup in bytes by memory type. Without a known specification (`origin`
    imported or recovered) `spec_digest` is "", and so are `name` and `namespace` if only the uid is
    known. `source` is who asked for the pod, None if no source has: decisions neither set nor read
    it, the controller sets it with the admission (`Ledger.with_source`); so with `lifetime`, which
    says what ends the pod (`Ledger.with_lifetime`). `others` are what further
    managers have for the pod as a whole, by name.
    """

    uid: Name
    name: str
    namespace: str
    qos: QosClass
    spec_digest: str
    containers: tuple[ContainerAllocation, ...]
    cpus: Mask | None = None
    memory: tuple[MemoryBlock, ...] = ()
    cpu: CpuLimits = CpuLimits()
    quota_disabled: bool = False
    requests: Mapping[Name, Size] = MappingProxyType({})
    limits: Mapping[Name, Size] = MappingProxyType({})
    origin: Origin = Origin.DECIDED
    source: Source | None = None
    others: Mapping[Name, Any] = MappingProxyType({})
    lifetime: Lifetime = UNTIL_REMOVED

    def part(self, manager: str) -> Any:  # noqa: ANN401  (the manager's own type)
        """Return what a resource manager has allocated to the pod as a whole, None for nothing."""
        return _part(self, manager)

    def with_part(self, manager: str, part: Any) -> PodAllocation:  # noqa: ANN401
        """Return this allocation with another budget of one manager, which has one already."""
        if manager in _FIELDS:
            return replace(self, **{_FIELDS[manager]: part})
        return replace(self, others=MappingProxyType({**self.others, manager: part}))

    @property
    def has_budget(self) -> bool:
        """Whether the pod has something as a whole, which is divided among its containers."""
        return self.cpus is not None or bool(self.memory) or bool(self.others)

    @cached_property
    def exclusive_cpus(self) -> Mask:
        """All CPUs that this pod takes out of the node's shared pool."""
        bits = self.cpus.bits if self.cpus is not None else 0
        for container in self.containers:
            if container.cpus is not None:
                bits |= container.cpus.bits
        return Mask(bits)

    @cached_property
    def node_requests(self) -> Mapping[str, int]:
        """The pod's share of the node's allocatable, in the units of `requests`.

        For a pod whose specification is unknown (imported, recovered)
        this is what is allocated: the pod must have requested at least as much.
        """
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

    @property
    def lasting(self) -> tuple[ContainerAllocation, ...]:
        """The containers that live as long as the pod."""
        return tuple(c for c in self.containers if c.kind is not ContainerKind.INIT)

    def container(self, name: str) -> ContainerAllocation | None:
        """Return the allocation of the named container, None when the pod has no such container."""
        return next((allocation for allocation in self.containers if allocation.name == name), None)


def _part(allocation: ContainerAllocation | PodAllocation, manager: str) -> Any:  # noqa: ANN401
    """Return the part of a manager; an empty set of CPUs is a part, nothing else that is empty."""
    if manager not in _FIELDS:
        return allocation.others.get(manager)
    part = getattr(allocation, _FIELDS[manager], None)  # a pod as a whole has no devices
    return part if part or isinstance(part, Mask) else None
