"""The ledger: all allocations of a host, which are the whole state of the agent."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocations.origin import Origin, Source
from agent.managers.allocations.shared_map import SharedMap
from agent.managers.topology.hints import NO_AFFINITY, Hint
from agent.pods.model import CPU
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.pods.model import ContainerKind, QosClass


_NO_IDS: Final[frozenset[str]] = frozenset()


class Isolation(StrEnum):
    """Which containers share the CPUs of a container (KEP-5526, ResourceIsolationLevel)."""

    HOST = "host"
    POD = "pod"
    CONTAINER = "container"


class MemoryBlock(Struct, frozen=True):
    """`size` bytes of one memory type (`memory`, `hugepages-2Mi`, ...) on the nodes of a mask."""

    type: str
    size: int
    nodes: Mask


class CpuLimits(Struct, frozen=True):
    """What the CFS quota of a cgroup follows, in millicores; None where none is set."""

    request_millis: int | None = None
    limit_millis: int | None = None


class ContainerAllocation(Struct, frozen=True):
    """The allocation of one container.

    `cpus` None: the container runs in the node's shared pool. With isolation POD, `cpus` is the pod
    shared pool (or, for a standard init container, the part of the budget that it may use).
    `memory` empty: the memory is not pinned, or the container is a standard init container whose
    memory was released when a later container started. `limits` are the specified limits in bytes
    by memory type. `why` is the reason why its CPUs are exclusive or not, "" without a known
    specification.
    """

    name: str
    kind: ContainerKind
    isolation: Isolation = Isolation.HOST
    cpus: Mask | None = None
    memory: tuple[MemoryBlock, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    hint: Hint = NO_AFFINITY
    cpu: CpuLimits = CpuLimits()
    quota_disabled: bool = False
    limits: Mapping[str, int] = MappingProxyType({})
    why: str = ""

    @property
    def mems(self) -> Mask:
        """The NUMA nodes that the memory is pinned to; empty when it is not pinned."""
        bits = 0
        for block in self.memory:
            bits |= block.nodes.bits
        return Mask(bits)


class PodAllocation(Struct, frozen=True, dict=True):
    """The allocation of one pod.

    `cpus` and `memory` are the pod-level budget (the NUMA-aligned "bubble" of pod scope); None and
    empty without a budget. `spec_digest` identifies the decided specification, so that admitting it
    again returns the same allocation. `requests` are the effective requests by resource (KEP-753,
    KEP-2837, overhead included): `cpu` in millicores, all others in whole units. `limits` are the
    limits of the pod's own cgroup in bytes by memory type. Without a known specification (`origin`
    imported or recovered) `spec_digest` is "", and so are `name` and `namespace` if only the uid is
    known. `source` is who asked for the pod, None if no source has: decisions neither set nor read
    it, the controller sets it with the admission (`Ledger.with_source`).
    """

    uid: str
    name: str
    namespace: str
    qos: QosClass
    spec_digest: str
    containers: tuple[ContainerAllocation, ...]
    cpus: Mask | None = None
    memory: tuple[MemoryBlock, ...] = ()
    cpu: CpuLimits = CpuLimits()
    quota_disabled: bool = False
    requests: Mapping[str, int] = MappingProxyType({})
    limits: Mapping[str, int] = MappingProxyType({})
    origin: Origin = Origin.DECIDED
    source: Source | None = None

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

        For a pod whose specification is unknown (imported, recovered, saved by an older version)
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

    def container(self, name: str) -> ContainerAllocation | None:
        """Return the allocation of the named container, None when the pod has no such container."""
        return next((allocation for allocation in self.containers if allocation.name == name), None)


class NodeMemory(Struct, frozen=True):
    """How much of one node's memory is charged.

    `reserved` is bytes by memory type; `assignments` counts the blocks that touch the node and
    `cells` is the group of nodes it currently serves together with (itself alone when unused).
    """

    assignments: int
    cells: Mask
    reserved: Mapping[str, int]


class Ledger(Struct, frozen=True):
    """Every allocation, in the order of admission, and values derived from them.

    `exclusive_cpus` and `devices` are always the union over `allocations`, `requests` is the sum of
    `PodAllocation.node_requests` (`total_requests`). `surplus_users` counts, for a CPU or device
    that several pods have, the pods after the first: no decision allocates a resource twice, but a
    checkpoint or an import may. `memory` is the charge by node: over a NUMA group it is the sum of
    the blocks, and how the charge is spread over its members depends on the order of releases (the
    kubelet's rule), so it is stored, not derived.
    """

    allocations: Mapping[str, PodAllocation] = MappingProxyType({})
    exclusive_cpus: Mask = EMPTY
    memory: Mapping[int, NodeMemory] = MappingProxyType({})
    devices: Mapping[str, frozenset[str]] = MappingProxyType({})
    requests: Mapping[str, int] = MappingProxyType({})
    surplus_users: Mapping[tuple[str, str], int] = MappingProxyType({})

    @classmethod
    def of(cls, allocations: Iterable[PodAllocation], memory: Mapping[int, NodeMemory]) -> Ledger:
        """Return the ledger of some allocations, in their order, with a charge of memory."""
        by_uid = MappingProxyType({allocation.uid: allocation for allocation in allocations})
        ledger = cls(by_uid, memory=memory, requests=total_requests(by_uid.values()))
        for allocation in by_uid.values():
            ledger = _with_resources(ledger, allocation)
        return ledger

    def with_allocation(self, allocation: PodAllocation) -> Ledger:
        """Return this ledger with an allocation added, or replaced if the pod has one.

        The memory charge is unchanged.
        """
        former = self.allocations.get(allocation.uid)
        rest = self if former is None else _without_resources(self, former)
        return replace(
            _with_resources(rest, allocation),
            allocations=SharedMap.of(self.allocations).with_entry(allocation.uid, allocation),
            requests=self.requests_after(removed=former, added=allocation),
        )

    def with_source(self, uid: str, source: Source) -> Ledger:
        """Return this ledger with another source of a pod; raises `KeyError` for an unknown uid."""
        allocation = replace(self.allocations[uid], source=source)
        return replace(self, allocations=SharedMap.of(self.allocations).with_entry(uid, allocation))

    def without_allocation(self, uid: str) -> Ledger:
        """Return this ledger without a pod; raises `KeyError` for an unknown uid.

        Resources that another pod has as well stay with that pod. The memory charge is unchanged.
        """
        allocation = self.allocations[uid]
        return replace(
            _without_resources(self, allocation),
            allocations=SharedMap.of(self.allocations).without(uid),
            requests=self.requests_after(removed=allocation),
        )

    def with_memory(self, memory: Mapping[int, NodeMemory]) -> Ledger:
        """Return this ledger with another memory charge."""
        return replace(self, memory=memory)

    def requests_after(
        self, *, added: PodAllocation | None = None, removed: PodAllocation | None = None
    ) -> Mapping[str, int]:
        """Return `requests` after an allocation is added, removed or replaced.

        The cost does not depend on the number of allocations.
        """
        sums = dict(self.requests)
        for allocation, sign in ((removed, -1), (added, 1)):
            for name, amount in allocation.node_requests.items() if allocation is not None else ():
                sums[name] = sums.get(name, 0) + sign * amount
        return MappingProxyType({name: amount for name, amount in sums.items() if amount > 0})


def _with_resources(ledger: Ledger, allocation: PodAllocation) -> Ledger:
    """Return a ledger with the CPUs and devices of an allocation; `allocations` is unchanged."""
    cpus, devices = allocation.exclusive_cpus, _devices_of(allocation)
    if not cpus and not devices:
        return ledger
    both = {name: ids & ledger.devices.get(name, _NO_IDS) for name, ids in devices.items()}
    again = dict(ledger.surplus_users)
    for key in _keys(cpus & ledger.exclusive_cpus, both):
        again[key] = again.get(key, 0) + 1
    joined = {name: ids | ledger.devices.get(name, _NO_IDS) for name, ids in devices.items()}
    return replace(
        ledger,
        exclusive_cpus=ledger.exclusive_cpus | cpus,
        devices=MappingProxyType({**ledger.devices, **joined}) if joined else ledger.devices,
        surplus_users=MappingProxyType(again) if again else ledger.surplus_users,
    )


def _without_resources(ledger: Ledger, allocation: PodAllocation) -> Ledger:
    """Return a ledger without the CPUs and devices that only this allocation has."""
    cpus, devices = allocation.exclusive_cpus, _devices_of(allocation)
    if not cpus and not devices:
        return ledger
    again = dict(ledger.surplus_users)
    for kind, name in [key for key in _keys(cpus, devices) if key in again] if again else ():
        again[kind, name] -= 1
        if kind == CPU:
            cpus -= Mask.of(int(name))
        else:
            devices[kind] -= {name}
    left = {name: ledger.devices.get(name, _NO_IDS) - ids for name, ids in devices.items()}
    remaining = {name: ids for name, ids in {**ledger.devices, **left}.items() if ids}
    return replace(
        ledger,
        exclusive_cpus=ledger.exclusive_cpus - cpus,
        devices=MappingProxyType(remaining) if devices else ledger.devices,
        surplus_users=MappingProxyType({key: number for key, number in again.items() if number}),
    )


def _devices_of(allocation: PodAllocation) -> dict[str, frozenset[str]]:
    """Return the ids of a pod's devices by resource; containers may use a device in turn."""
    devices: dict[str, frozenset[str]] = {}
    for container in allocation.containers:
        for resource, ids in container.devices.items():
            if ids:
                devices[resource] = devices.get(resource, _NO_IDS).union(ids)
    return devices


def _keys(cpus: Mask, devices: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, str]]:
    """Yield each CPU and device as in `Ledger.surplus_users`."""
    yield from ((CPU, str(cpu)) for cpu in cpus)
    yield from ((resource, device) for resource, ids in devices.items() for device in ids)


def total_requests(allocations: Iterable[PodAllocation]) -> Mapping[str, int]:
    """Return the sum of `PodAllocation.node_requests` by resource, without zeros."""
    sums: dict[str, int] = {}
    for allocation in allocations:
        for name, amount in allocation.node_requests.items():
            sums[name] = sums.get(name, 0) + amount
    return MappingProxyType({name: amount for name, amount in sums.items() if amount})
