"""Allocations: what one container and one pod have, where it comes from, and what goes with it.

An allocation says who asked for its pod and how its resources were determined (`Origin`). With its
devices a container gets a `Delivery`, the values that providers of devices return: the fields of
`ContainerAllocateResponse` of the device plugin API (v1beta1), and the PCI addresses of the host's
own devices. What an operator set outlives the process as well: cordons with their reasons
(`CordonEntry`), and the cgroups of containers by name (`Binding`).
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # msgspec reads it at run time
from enum import StrEnum
from functools import cached_property, reduce
from operator import or_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from agent.managers.policy import NO_CORDON, Cordon
from agent.managers.topology.hint import NO_AFFINITY, Hint
from agent.pods.model import CPU, MEMORY, UNTIL_REMOVED, ContainerKind, Lifetime, QosClass
from agent.values import Name, Saved, Size
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator


class CordonEntry(Saved, frozen=True):
    """What was cordoned at one time; `since` is the Unix time, `reason` is "" if none was given."""

    cordon: Cordon
    reason: str = ""
    since: float = 0.0


class Cordons(Saved, frozen=True):
    """All cordons, in the order in which they were set; a CPU or node is in one at most."""

    entries: tuple[CordonEntry, ...] = ()

    def __iter__(self) -> Iterator[CordonEntry]:
        return iter(self.entries)

    @property
    def total(self) -> Cordon:
        """All that is cordoned."""
        return reduce(or_, (entry.cordon for entry in self.entries), NO_CORDON)

    def with_entry(self, entry: CordonEntry) -> Cordons:
        """Return the cordons with one more, which takes over what an earlier one has."""
        return Cordons((*self.without(entry.cordon).entries, entry))

    def without(self, cordon: Cordon) -> Cordons:
        """Return the cordons without some CPUs and nodes."""
        left = (
            CordonEntry(
                Cordon(entry.cordon.cpus - cordon.cpus, entry.cordon.nodes - cordon.nodes),
                entry.reason,
                entry.since,
            )
            for entry in self.entries
        )
        return Cordons(tuple(entry for entry in left if entry.cordon))


NO_CORDONS: Final = Cordons()


ValueT = TypeVar("ValueT")


class Mount(Saved, frozen=True, omit_defaults=False):
    """A file or directory of the host that the container has at a path of its own."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceNode(Saved, frozen=True):
    """A device node of the host, with permissions of `rwm`."""

    container_path: str
    host_path: str
    permissions: str


class Delivery(Saved, frozen=True, omit_defaults=False):
    """What a container gets so that its processes can use the devices allocated to it.

    `cdi_devices` are fully qualified CDI names (`vendor.com/class=name`) for the runtime to
    resolve; `pci_addresses` are those of the host's own devices, in the order of the ids.
    """

    environment: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = {}
    cdi_devices: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()


NOTHING: Final = Delivery()


def merged(deliveries: Iterable[Delivery]) -> Delivery:
    """Return what a container gets from the providers of all its resources.

    As in the kubelet (`deviceRunContainerOptions`), the first of two values of one variable or
    annotation stays, and so does the first of two mounts or nodes at one path of the container.
    """
    environment: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    nodes: dict[str, DeviceNode] = {}
    names: dict[str, None] = {}
    addresses: dict[str, None] = {}
    for each in deliveries:
        _add(environment, each.environment)
        _add(annotations, each.annotations)
        _add(mounts, {mount.container_path: mount for mount in each.mounts})
        _add(nodes, {node.container_path: node for node in each.device_nodes})
        _add(names, dict.fromkeys(each.cdi_devices))
        _add(addresses, dict.fromkeys(each.pci_addresses))
    if not (environment or annotations or mounts or nodes or names or addresses):
        return NOTHING
    return Delivery(
        environment=MappingProxyType(environment),
        mounts=tuple(mounts.values()),
        device_nodes=tuple(nodes.values()),
        annotations=MappingProxyType(annotations),
        cdi_devices=tuple(names),
        pci_addresses=tuple(addresses),
    )


def conflicts(deliveries: Iterable[tuple[str, Delivery]]) -> Iterator[str]:
    """Yield what several resources of a container set differently, of which the first counts.

    `deliveries` are those of `merged`, with their resources.
    """
    first: dict[tuple[str, str], tuple[str, object]] = {}
    for resource, each in deliveries:
        values: list[tuple[tuple[str, str], object]] = [
            *((("variable", name), value) for name, value in each.environment.items()),
            *((("annotation", name), value) for name, value in each.annotations.items()),
            *((("mount at", mount.container_path), mount) for mount in each.mounts),
            *((("device node at", node.container_path), node) for node in each.device_nodes),
        ]
        for key, value in values:
            former, kept = first.setdefault(key, (resource, value))
            if kept != value:
                yield f"{key[0]} {key[1]} of {resource} differs from that of {former}, which counts"


def _add(found: dict[str, ValueT], more: Mapping[str, ValueT]) -> None:
    """Add what is not there yet."""
    for key, value in more.items():
        found.setdefault(key, value)


class Origin(StrEnum):
    """How the resources of an allocation were determined.

    `DECIDED`: for a specification, or matched with one later. `IMPORTED`: taken over from the
    kubelet's state files. `RECOVERED`: taken from what the cgroups of the running pod show. Of the
    last two no specification is known; the first that fits makes the allocation `DECIDED`
    (`agent.managers.readmission`).
    """

    DECIDED = "decided"
    IMPORTED = "imported"
    RECOVERED = "recovered"


class Source(Saved, frozen=True):
    """Who asked for a pod: a source of pods, and what the pod is called there.

    `name` is that of the source (`agent.sources.source.PodSource`). `key` is what the pod belongs
    to (the path of its file, say): the pod ends with it. "" is the key of pods that belong to
    nothing and end when a request removes them, as those of the API.
    """

    name: Name
    key: str = ""

    def __str__(self) -> str:
        return self.key or self.name


#: Pods that were asked for over the API.
API: Final = Source("api")
#: The source of the pods of a kubelet beside the agent.
KUBELET: Final = "kubelet"


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
    by memory type, `memory_request` the requested memory in bytes. `why` is the reason why its CPUs
    are exclusive or not, "" without a known specification. `cpus`, `memory` and `devices` are the
    parts of the kubelet's managers, which enforcement reads; `others` are those of further managers
    by name, values as JSON has them. `delivery` is what the providers of its devices returned for
    it after the decision. `device_nodes` are the NUMA nodes that its devices had then, by id by
    resource; a device without a known node is left out. `memory_nodes` are those with memory of the
    classes that the pod asks for, empty where any will do.
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
    memory_request: Size = 0
    why: str = ""
    others: Mapping[Name, Any] = MappingProxyType({})
    delivery: Delivery = NOTHING
    device_nodes: Mapping[Name, Mapping[str, Mask]] = MappingProxyType({})
    memory_nodes: Mask = EMPTY

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
        """The NUMA nodes that the memory is pinned to, else those allowed; empty for all."""
        if not self.memory:
            return self.memory_nodes
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
    says what ends the pod (`Ledger.with_lifetime`), and `isolation` what the pod asks for its
    exclusive CPUs, by item. `others` are what further managers have for the pod as a whole, by
    name. `idle` are the sibling threads of its exclusive CPUs that stay idle, as the pod asks: they
    are in the set of none of its containers. `unprepared` says why its devices are not prepared for
    its containers (PreStartContainer), "" if they are or need not be.
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
    isolation: Mapping[Name, str] = MappingProxyType({})
    idle: Mask = EMPTY
    unprepared: str = ""

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

        For a pod whose specification is unknown (imported, recovered)
        this is what is allocated: the pod must have requested at least as much. Idle siblings count
        as if they were requested: no other pod may use them.
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
        """The containers that get anything for their devices."""
        return tuple([c for c in self.containers if c.delivery != NOTHING])

    def container(self, name: str) -> ContainerAllocation | None:
        """Return the allocation of the named container, None when the pod has no such container."""
        for allocation in self.containers:  # asked about every container in each pass
            if allocation.name == name:
                return allocation
        return None


def _part(allocation: ContainerAllocation | PodAllocation, manager: str) -> Any:  # noqa: ANN401
    """Return the part of a manager; an empty set of CPUs is a part, nothing else that is empty."""
    if manager not in _FIELDS:
        return allocation.others.get(manager)
    part = getattr(allocation, _FIELDS[manager], None)  # a pod as a whole has no devices
    return part if part or isinstance(part, Mask) else None


class Binding(Saved, frozen=True, order=True):
    """One container and its cgroup.

    `cgroup` is its path below the cgroup root, without a leading slash.
    """

    pod_uid: Name
    container: Name
    cgroup: Name

    def is_of(self, living: Mapping[str, PodAllocation]) -> bool:
        """Return whether one of the pods, by uid, has the container.

        A recovered pod has containers named after their cgroups until it is admitted.
        """
        pod = living.get(self.pod_uid)
        return pod is not None and pod.container(self.container) is not None


class Bindings(Saved, frozen=True):
    """All explicit bindings: at most one per container and one per cgroup, in a stable order.

    `released` are cgroups, sorted, whose container was later bound to another cgroup. They keep the
    cpuset of the container until another one is written, so they stay listed until then and until
    their processes have ended.
    """

    entries: tuple[Binding, ...] = ()
    released: tuple[Name, ...] = ()

    def __iter__(self) -> Iterator[Binding]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def with_binding(self, new: Binding) -> Bindings:
        """Return the bindings with `new`, which replaces those of the same container or cgroup.

        The previous cgroup of the container becomes released; `new.cgroup` is no longer released.
        """
        kept = (old for old in self.entries if not _collide(old, new))
        lost = (old.cgroup for old in self.entries if _collide(old, new))
        released = {*self.released, *lost} - {new.cgroup}
        return Bindings(tuple(sorted((*kept, new))), tuple(sorted(released)))

    def of_container(self, pod_uid: str, container: str) -> Binding | None:
        """Return the binding of a container, None without one."""
        named = (pod_uid, container)
        return next((b for b in self.entries if (b.pod_uid, b.container) == named), None)

    def without_binding(self, old: Binding) -> Bindings:
        """Return the bindings without `old`, whose cgroup becomes released."""
        kept = tuple(entry for entry in self.entries if entry != old)
        return Bindings(kept, tuple(sorted({*self.released, old.cgroup})))

    def of_containers(self, pod_uid: str, names: Container[str]) -> Bindings:
        """Return the bindings without containers of the pod that are not in `names`.

        The cgroups of the removed bindings become released.
        """
        stale = {b for b in self.entries if b.pod_uid == pod_uid and b.container not in names}
        if not stale:
            return self
        kept = tuple(entry for entry in self.entries if entry not in stale)
        return Bindings(kept, tuple(sorted({*self.released, *(old.cgroup for old in stale)})))

    def without(self, ended: Container[str], living: Container[str]) -> Bindings:
        """Return the bindings without the cgroups `ended`.

        Bindings of pods (uids) in `living` stay: their containers may start again.
        """
        kept = (b for b in self.entries if b.pod_uid in living or b.cgroup not in ended)
        return Bindings(tuple(kept), tuple(path for path in self.released if path not in ended))

    def given_up(self, living: Mapping[str, PodAllocation]) -> tuple[str, ...]:
        """Return the cgroups, sorted, that no longer have a container.

        These are the released cgroups and those bound to containers that no pod of `living` has.
        """
        gone = (entry.cgroup for entry in self.entries if not entry.is_of(living))
        return tuple(sorted({*self.released, *gone}))

    def without_pod(self, pod_uid: str) -> Bindings:
        """Return the bindings without those of one pod."""
        kept = tuple(entry for entry in self.entries if entry.pod_uid != pod_uid)
        return Bindings(kept, self.released)

    def of_pod(self, pod_uid: str) -> tuple[Binding, ...]:
        """Return the bindings of one pod."""
        return tuple(entry for entry in self.entries if entry.pod_uid == pod_uid)


NO_BINDINGS: Final = Bindings()


def _collide(old: Binding, new: Binding) -> bool:
    same_container = (old.pod_uid, old.container) == (new.pod_uid, new.container)
    return same_container or old.cgroup == new.cgroup
