"""Format 1 of the checkpoint: the shape of the JSON document, and how values map to it.

The shape is kept apart from the ledger's own types, so that these can change while files of
format 1 stay readable: a later format gets a module of its own beside this one. Defaults are part
of the format, since what equals its default is not written. Sets of ids are strings in the
kernel's list format.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from agent.managers.allocations.allocation import (
    ContainerAllocation,
    CpuLimits,
    Isolation,
    MemoryBlock,
    PodAllocation,
)
from agent.managers.allocations.bindings import Binding, Bindings
from agent.managers.allocations.ledger import Ledger
from agent.managers.allocations.origin import API, Origin, Source
from agent.managers.memory.state import NodeMemory, memory_charge
from agent.managers.registry import MANAGERS
from agent.managers.topology.hints import NO_AFFINITY, Hint
from agent.pods.lifetime import UNTIL_REMOVED, End, Lifetime
from agent.pods.model import MEMORY, ContainerKind, QosClass
from agent.state.checkpoint import Checkpoint, HostFacts, NodeFacts
from agent.state.delivery1 import DeliveryV1, Name, delivery_from_wire, delivery_to_wire
from agent.state.policy_texts1 import cordons_of, policy_of, shared_of, texts_of
from sysfs.mask import Mask

Size = Annotated[int, Meta(ge=0)]
PodT = TypeVar("PodT")
#: The source of the pods that `StateV1.manifests` lists.
_FILES: Final = "manifests"


class BlockV1(Struct, forbid_unknown_fields=True):
    """One block of memory: `size` bytes of `type` on `nodes`."""

    type: Name
    size: Size
    nodes: Mask


class CpuV1(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """CPU request and limit in millicores."""

    request: Size | None = None
    limit: Size | None = None


class ContainerV1(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One container's allocation; `hint_nodes` is absent where any node would do.

    `others`, here and in `PodV1`, are the parts of managers that have no field, by name. A reader
    that lacks such a manager keeps them as they are.
    """

    name: Name
    kind: ContainerKind
    isolation: Isolation
    cpus: Mask | None = None
    memory: list[BlockV1] = []
    devices: dict[Name, list[str]] = {}
    device_nodes: dict[Name, dict[str, Mask]] = {}
    hint_nodes: Mask | UnsetType = UNSET
    hint_preferred: bool = False
    cpu: CpuV1 = CpuV1()
    quota_disabled: bool = False
    limits: dict[Name, Size] = {}
    why: str = ""
    others: dict[Name, Any] = {}
    delivery: DeliveryV1 | UnsetType = UNSET


class SourceV1(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Who asked for a pod."""

    name: Name
    key: str = ""


class LifetimeV1(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What ends a pod other than its removal."""

    end: End
    unit: str = ""
    started: bool = False


class PodV1(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One pod's allocation; `name` and `namespace` are "" where only the uid is known.

    Before there was `origin`, `recovered` named one, and an imported pod had no `spec_digest`.
    Before there was `source`, `manifests` of the state named the file of each pod that had one.
    """

    uid: Name
    name: str
    namespace: str
    qos: QosClass
    spec_digest: str
    containers: list[ContainerV1]
    cpus: Mask | None = None
    memory: list[BlockV1] = []
    cpu: CpuV1 = CpuV1()
    quota_disabled: bool = False
    requests: dict[Name, Size] = {}
    limits: dict[Name, Size] = {}
    origin: Origin | UnsetType = UNSET
    source: SourceV1 | UnsetType = UNSET
    recovered: bool = False
    others: dict[Name, Any] = {}
    lifetime: LifetimeV1 | UnsetType = UNSET


class ChargeV1(Struct, forbid_unknown_fields=True):
    """The memory charged to one node, in bytes by memory type."""

    node: Size
    assignments: Size
    cells: Mask
    reserved: dict[Name, Size]


class BindingV1(Struct, forbid_unknown_fields=True):
    """One explicit binding of a container to a cgroup."""

    pod: Name
    container: Name
    cgroup: Name


class PagesV1(Struct, forbid_unknown_fields=True):
    """Huge pages of one size."""

    size: Size
    count: Size


class NodeV1(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One NUMA node of the host at the time of writing."""

    id: Size
    cpus: Mask
    memory: Size | None
    hugepages: list[PagesV1] = []


class HostV1(Struct, forbid_unknown_fields=True):
    """The host at the time of writing."""

    online: Mask
    offline: Mask
    nodes: list[NodeV1]


class StateV1(Struct, Generic[PodT], forbid_unknown_fields=True):
    """The whole state; pods are structs when read, ready-made JSON when written.

    Cordons and pods that run shared are in `policy` (`agent.state.policy_texts1`).
    """

    agent_version: str
    boot_id: str
    host: HostV1
    policy: dict[str, str]
    memory: list[ChargeV1]
    bindings: list[BindingV1]
    pods: list[PodT]
    manifests: dict[Name, Name] | UnsetType = UNSET
    released: list[Name] | UnsetType = UNSET
    orphaned: list[Name] | UnsetType = UNSET


def pod_to_wire(allocation: PodAllocation) -> PodV1:
    """Return the wire form of one pod's allocation."""
    return PodV1(
        uid=allocation.uid,
        name=allocation.name,
        namespace=allocation.namespace,
        qos=allocation.qos,
        spec_digest=allocation.spec_digest,
        containers=[_container_to_wire(container) for container in allocation.containers],
        cpus=allocation.cpus,
        memory=_blocks_to_wire(allocation.memory),
        cpu=_cpu_to_wire(allocation.cpu),
        quota_disabled=allocation.quota_disabled,
        requests=dict(allocation.requests),
        limits=dict(allocation.limits),
        origin=allocation.origin,
        source=_source_to_wire(allocation.source),
        others=dict(allocation.others),
        lifetime=_lifetime_to_wire(allocation.lifetime),
    )


def state_to_wire(state: Checkpoint, pods: list[msgspec.Raw]) -> StateV1[msgspec.Raw]:
    """Return the wire form of a state whose pods are already encoded, in order of admission."""
    return StateV1(
        agent_version=state.agent_version,
        boot_id=state.boot_id,
        host=_host_to_wire(state.host),
        policy={**state.policy, **texts_of(state.cordons, state.shared)},
        memory=[
            ChargeV1(node, charge.assignments, charge.cells, dict(charge.reserved))
            for node, charge in sorted(memory_charge(state.ledger).items())
        ],
        bindings=[BindingV1(b.pod_uid, b.container, b.cgroup) for b in state.bindings],
        pods=pods,
        released=list(state.bindings.released) or UNSET,
        orphaned=sorted(state.orphaned) or UNSET,
    )


def state_from_wire(wire: StateV1[PodV1]) -> Checkpoint:
    """Return the state of a document; raises `ValueError(field, problem)` on contradictions."""
    files = {} if wire.manifests is UNSET else wire.manifests
    allocations = {pod.uid: _pod_from_wire(pod, files.get(pod.uid)) for pod in wire.pods}
    _demand_unique("$.state.pods", "pod", [pod.uid for pod in wire.pods])
    _demand_unique("$.state.memory", "node", [str(charge.node) for charge in wire.memory])
    for index, pod in enumerate(wire.pods):
        names = [container.name for container in pod.containers]
        _demand_unique(f"$.state.pods[{index}].containers", "container", names)
    return Checkpoint(
        ledger=_ledger(allocations, wire.memory),
        bindings=_bindings_from_wire(wire),
        boot_id=wire.boot_id,
        host=_host_from_wire(wire.host),
        policy=MappingProxyType(policy_of(wire.policy)),
        agent_version=wire.agent_version,
        orphaned=frozenset(() if wire.orphaned is UNSET else wire.orphaned),
        cordons=cordons_of(wire.policy),
        shared=MappingProxyType(shared_of(wire.policy)),
    )


def _bindings_from_wire(wire: StateV1[PodV1]) -> Bindings:
    entries = (Binding(b.pod, b.container, b.cgroup) for b in wire.bindings)
    return Bindings(tuple(entries), () if wire.released is UNSET else tuple(wire.released))


def _ledger(allocations: dict[str, PodAllocation], charges: list[ChargeV1]) -> Ledger:
    memory = {
        charge.node: NodeMemory(charge.assignments, charge.cells, MappingProxyType(charge.reserved))
        for charge in charges
    }
    saved = {MEMORY: MappingProxyType(memory)}
    parts = {
        each.name: each.loaded(saved.get(each.name), allocations.values()) for each in MANAGERS
    }
    return Ledger.of(allocations.values(), parts)


def _container_to_wire(allocation: ContainerAllocation) -> ContainerV1:
    nodes = allocation.hint.nodes
    return ContainerV1(
        name=allocation.name,
        kind=allocation.kind,
        isolation=allocation.isolation,
        cpus=allocation.cpus,
        memory=_blocks_to_wire(allocation.memory),
        devices={resource: list(ids) for resource, ids in allocation.devices.items()},
        device_nodes={name: dict(nodes) for name, nodes in allocation.device_nodes.items()},
        hint_nodes=UNSET if nodes is None else Mask(nodes),
        hint_preferred=allocation.hint.preferred,
        cpu=_cpu_to_wire(allocation.cpu),
        quota_disabled=allocation.quota_disabled,
        limits=dict(allocation.limits),
        why=allocation.why,
        others=dict(allocation.others),
        delivery=delivery_to_wire(allocation.delivery),
    )


def _pod_from_wire(wire: PodV1, file: str | None) -> PodAllocation:
    origin = _origin_from_wire(wire)
    return PodAllocation(
        uid=wire.uid,
        name=wire.name,
        namespace=wire.namespace,
        qos=wire.qos,
        spec_digest=wire.spec_digest,
        containers=tuple(_container_from_wire(container) for container in wire.containers),
        cpus=wire.cpus,
        memory=_blocks_from_wire(wire.memory),
        cpu=CpuLimits(wire.cpu.request, wire.cpu.limit),
        quota_disabled=wire.quota_disabled,
        requests=MappingProxyType(wire.requests),
        limits=MappingProxyType(wire.limits),
        origin=origin,
        source=_source_from_wire(wire, origin, file),
        others=MappingProxyType(wire.others),
        lifetime=_lifetime_from_wire(wire.lifetime),
    )


def _origin_from_wire(wire: PodV1) -> Origin:
    if wire.origin is not UNSET:
        return wire.origin
    if wire.recovered:
        return Origin.RECOVERED
    return Origin.DECIDED if wire.spec_digest else Origin.IMPORTED


def _source_to_wire(source: Source | None) -> SourceV1 | UnsetType:
    return UNSET if source is None else SourceV1(source.name, source.key)


def _source_from_wire(wire: PodV1, origin: Origin, file: str | None) -> Source | None:
    if wire.source is not UNSET:
        return Source(wire.source.name, wire.source.key)
    if file is not None:
        return Source(_FILES, file)
    # Before there was an origin, whatever was decided on and had no file came over the API.
    return API if wire.origin is UNSET and origin is Origin.DECIDED else None


def _lifetime_to_wire(lifetime: Lifetime) -> LifetimeV1 | UnsetType:
    if lifetime == UNTIL_REMOVED:
        return UNSET
    return LifetimeV1(lifetime.end, lifetime.unit, lifetime.started)


def _lifetime_from_wire(wire: LifetimeV1 | UnsetType) -> Lifetime:
    return UNTIL_REMOVED if wire is UNSET else Lifetime(wire.end, wire.unit, wire.started)


def _container_from_wire(wire: ContainerV1) -> ContainerAllocation:
    devices = {resource: tuple(ids) for resource, ids in wire.devices.items()}
    return ContainerAllocation(
        name=wire.name,
        kind=wire.kind,
        isolation=wire.isolation,
        cpus=wire.cpus,
        memory=_blocks_from_wire(wire.memory),
        devices=MappingProxyType(devices),
        device_nodes=MappingProxyType(wire.device_nodes),
        hint=_hint_from_wire(wire),
        cpu=CpuLimits(wire.cpu.request, wire.cpu.limit),
        quota_disabled=wire.quota_disabled,
        limits=MappingProxyType(wire.limits),
        why=wire.why,
        others=MappingProxyType(wire.others),
        delivery=delivery_from_wire(wire.delivery),
    )


def _hint_from_wire(wire: ContainerV1) -> Hint:
    if wire.hint_nodes is UNSET:
        return Hint(None, preferred=True) if wire.hint_preferred else NO_AFFINITY
    return Hint(wire.hint_nodes.bits, preferred=wire.hint_preferred)


def _blocks_to_wire(blocks: tuple[MemoryBlock, ...]) -> list[BlockV1]:
    return [BlockV1(block.type, block.size, block.nodes) for block in blocks]


def _blocks_from_wire(wire: list[BlockV1]) -> tuple[MemoryBlock, ...]:
    return tuple(MemoryBlock(block.type, block.size, block.nodes) for block in wire)


def _cpu_to_wire(cpu: CpuLimits) -> CpuV1:
    return CpuV1(cpu.request_millis, cpu.limit_millis)


def _host_to_wire(host: HostFacts) -> HostV1:
    return HostV1(
        host.online,
        host.offline,
        [
            NodeV1(
                node.id,
                node.cpus,
                node.memory_bytes,
                [PagesV1(size, count) for size, count in sorted(node.hugepages.items())],
            )
            for node in host.nodes
        ],
    )


def _host_from_wire(wire: HostV1) -> HostFacts:
    nodes = (
        NodeFacts(
            node.id,
            node.cpus,
            node.memory,
            MappingProxyType({pages.size: pages.count for pages in node.hugepages}),
        )
        for node in wire.nodes
    )
    return HostFacts(wire.online, wire.offline, tuple(nodes))


def _demand_unique(field: str, what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(field, f"{what} {name!r} appears twice")
        seen.add(name)
