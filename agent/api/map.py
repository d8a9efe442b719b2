"""The map: every CPU, memory node and device of a host with who uses it (`GET /v1/map`).

The documents come first; `map_of_host` and `map_of_allocations` make them. A map without an agent
(`numawarden topology`) has the host alone: no policy, no pods.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.api.documents import (
    Document,
    PolicyDocument,  # msgspec reads the annotation
)
from agent.api.views import policy_document
from agent.managers.allocation import Isolation
from agent.managers.device.kubelet import NOT_LISTED, kubelet_devices
from agent.managers.memory.state import hugepages_type, memory_charge
from agent.managers.policy import NO_CORDON
from agent.pods.model import MEMORY, ContainerKind, full_name
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.ledger import Ledger
    from agent.managers.policy import Policy
    from agent.managers.quality import Intrusion
    from agent.managers.rules import EffectivePolicy
    from agent.managers.violations import Violation
    from sysfs.host import Host, Node


class CpuUse(StrEnum):
    """What a CPU is used for.

    `OFFLINE` goes before all others, then `WITHHELD` (online, but pods cannot have it:
    `sysfs.host.WithheldCpus`), `EXCLUSIVE` (one container has it), `POD` (it belongs to a pod: its
    shared pool, or budget that no container may use now), `CORDONED`, `RESERVED` and `SHARED` (the
    node's shared pool). `ONLINE`: nothing is known of pods.
    """

    OFFLINE = "offline"
    WITHHELD = "withheld"
    EXCLUSIVE = "exclusive"
    POD = "pod"
    CORDONED = "cordoned"
    RESERVED = "reserved"
    SHARED = "shared"
    ONLINE = "online"


class MapOwnerDocument(Document, frozen=True):
    """The user of a CPU: a pod by its uid, and one container of it or (null) the pod's pool.

    `idle`: no pod uses the CPU, the pod keeps it idle beside one of its own.
    """

    uid: str
    container: str | None = None
    idle: bool = False


class MapCpuDocument(Document, frozen=True):
    """One CPU; group ids as in `TopologyView`.

    `owners` has one owner, or several if an import or a damaged checkpoint allocates a CPU twice.
    A CPU that is offline or withheld keeps its owners. `cordoned`: nothing new is allocated from
    the CPU, which may have owners still.
    """

    id: int
    use: CpuUse
    isolated: bool = False
    core: int | None = None
    die: int | None = None
    package: int | None = None
    node: int | None = None
    uncore: int | None = None
    kind: str = "standard"
    owners: tuple[MapOwnerDocument, ...] = ()
    cordoned: bool = False


class MapMemoryDocument(Document, frozen=True):
    """One memory type of one node, in bytes.

    `total` of type `memory` includes huge pages. `reserved` cannot be allocated: reservations and,
    of `memory`, huge pages. `allocated` is null where no memory manager allocates by node, `total`
    where the host does not report it. What is left is free.
    """

    type: str
    total: int | None
    reserved: int = 0
    allocated: int | None = None

    @property
    def free(self) -> int | None:
        """The bytes that are left, never negative; None if they are not known."""
        if self.total is None or self.allocated is None:
            return None
        return max(self.total - self.reserved - self.allocated, 0)


class MapNodeDocument(Document, frozen=True):
    """One NUMA node: its online CPUs as a list, its memory, its distances by node id as text.

    `tier` is the number of its memory tier, a smaller one is faster; null without tiers.
    `memory_class` is what the memory is made of (`dram`, `hbm`, `cxl`, `pmem`, `gpu`, or as
    configured), "" where that is not known.
    `cordoned`: nothing new is allocated from the node.
    """

    id: int
    cpus: str
    memory: tuple[MapMemoryDocument, ...]
    distances: dict[str, int]
    tier: int | None = None
    memory_class: str = ""
    cordoned: bool = False


class MapDeviceDocument(Document, frozen=True):
    """One device.

    Of the host: `kind` (`pci`, `net`), `name`, PCI `address` and class (`deviceClass`). Offered to
    pods: `kind` is `resource`, `resource` the name of the extended resource, `name` the id. `nodes`
    is empty where no node is known. `kubelet`: a plugin of the kubelet beside the agent offers it;
    `pod` is then the `namespace/name` of a pod that has it without an allocation of the agent.
    """

    kind: str
    name: str
    nodes: str = ""
    address: str = ""
    device_class: str = ""
    resource: str = ""
    healthy: bool = True
    owner: MapOwnerDocument | None = None
    kubelet: bool = False
    pod: str = ""


class MapContainerDocument(Document, frozen=True):
    """One container of a pod; `cpus` null: it runs in the node's shared pool."""

    name: str
    kind: str
    isolation: str
    cpus: str | None
    mems: str


class MapPodDocument(Document, frozen=True):
    """One pod; `cpus` are those that are in no shared pool of the node, "" if it has none.

    Of these `idle_cpus` are the sibling threads that no pod uses.
    `not_found` are the containers that are to run and that were not found in a cgroup for longer
    than a start takes, and why (`PodDocument.absence`). `not_exclusive` are those of `cpus` that
    cgroups of others may use now.
    """

    uid: str
    name: str
    namespace: str
    cpus: str
    containers: tuple[MapContainerDocument, ...]
    not_found: tuple[str, ...] = ()
    absence: str = ""
    idle_cpus: str = ""
    not_exclusive: str = ""


class MapWarningDocument(Document, frozen=True):
    """One thing to look at.

    `reason` is `NotExclusive`, `SharedCore`, `RemoteMemory`, `AllocationInvalid`, or that of the
    condition `ContainersFound`. `uids` are the pods concerned.
    """

    reason: str
    message: str
    uids: tuple[str, ...] = ()
    cpus: str = ""


class MapDocument(Document, frozen=True):
    """The map of a host: every present CPU once, every node once, in ascending order.

    `policy` is null in a map without an agent. `uncore_bytes` has the size of each uncore cache
    that is known, by its id as text. `warnings` has the first of each reason, `more_warnings`
    counts the others. `hostname` is the host's, "" in a map without an agent; `time` is the Unix
    time of the map.
    """

    cpus: tuple[MapCpuDocument, ...]
    nodes: tuple[MapNodeDocument, ...]
    uncore_bytes: dict[str, int]
    devices: tuple[MapDeviceDocument, ...] = ()
    pods: tuple[MapPodDocument, ...] = ()
    policy: PolicyDocument | None = None
    nohz_full: str = ""
    warnings: tuple[MapWarningDocument, ...] = ()
    more_warnings: int = 0
    hostname: str = ""
    time: float = 0.0


#: The most warnings of one reason that are listed.
WARNINGS_LISTED: Final = 32
#: The most containers of a pod that a warning names.
_NAMED: Final = 4


def map_of_host(host: Host) -> MapDocument:
    """Return the map of a host of which nothing but the hardware is known."""
    return MapDocument(
        cpus=tuple(_cpus(host, {}, None)),
        nodes=tuple(
            _node(node, _total_memory(node), host.memory_classes.get(node.id, ""))
            for node in host.nodes
        ),
        devices=tuple(_host_devices(host)),
        nohz_full=str(host.nohz_full),
        uncore_bytes={str(cache): size for cache, size in sorted(host.uncore_bytes.items())},
    )


def map_of_allocations(
    host: Host,
    rules: EffectivePolicy,
    ledger: Ledger,
    *,
    not_found: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType({}),
    invalid: Iterable[Violation] = (),
    intrusions: Mapping[str, tuple[Intrusion, ...]] = MappingProxyType({}),
    kubelet: KubeletListing = NOT_LISTED,
) -> MapDocument:
    """Return the map of a host with the allocations of a ledger under a policy.

    `not_found` has the word for why containers that are to run were not found, and their names, by
    pod uid, `intrusions` what may use exclusive CPUs of a pod to which it does not belong.
    `kubelet` is what a kubelet beside the agent lists. The cost follows the CPUs of the host, the
    containers of the ledger and the devices.
    """
    allocations = tuple(ledger.allocations.values())
    cpus = tuple(_cpus(host, owners_of(allocations), rules.policy))
    pods = tuple(
        _pod(each, not_found.get(each.uid, ("", ())), intrusions.get(each.uid, ()))
        for each in allocations
    )
    groups = (
        _not_exclusive(pods, intrusions),
        _shared_cores(cpus, pods),
        _remote_memory(host, allocations),
        _not_found(pods),
        _invalid(invalid),
    )
    listed = [list(group) for group in groups]
    return MapDocument(
        cpus=cpus,
        nodes=tuple(
            _node(
                node,
                _charged_memory(node, rules, ledger),
                rules.policy.memory.classes.get(node.id, ""),
                cordoned=node.id in rules.policy.cordon.nodes,
            )
            for node in host.nodes
        ),
        devices=(
            *_host_devices(host),
            *_offered(rules, allocations),
            *_of_kubelet(rules, allocations, kubelet),
        ),
        pods=pods,
        policy=policy_document(rules.policy),
        nohz_full=str(host.nohz_full),
        uncore_bytes={str(cache): size for cache, size in sorted(host.uncore_bytes.items())},
        warnings=tuple(each for group in listed for each in group[:WARNINGS_LISTED]),
        more_warnings=sum(max(len(group) - WARNINGS_LISTED, 0) for group in listed),
    )


def owners_of(allocations: Iterable[PodAllocation]) -> dict[int, list[MapOwnerDocument]]:
    """Return the owners of every CPU that is in no shared pool of the node, by CPU.

    A CPU of a container that lasts as long as its pod is that container's. Every other CPU of the
    pod is the pod's: its shared pool, what standard init containers had, unused budget, and
    siblings that stay idle.
    """
    found: dict[int, list[MapOwnerDocument]] = defaultdict(list)
    for allocation in allocations:
        rest = allocation.exclusive_cpus - allocation.idle
        for container in allocation.containers:
            if _is_exclusive(container):
                cpus = container.cpus or EMPTY
                owner = MapOwnerDocument(uid=allocation.uid, container=container.name)
                for cpu in cpus:
                    found[cpu].append(owner)
                rest -= cpus
        owner = MapOwnerDocument(uid=allocation.uid)
        for cpu in rest:
            found[cpu].append(owner)
        for cpu in allocation.idle:
            found[cpu].append(MapOwnerDocument(uid=allocation.uid, idle=True))
    return found


def _is_exclusive(container: ContainerAllocation) -> bool:
    return container.isolation is Isolation.CONTAINER and container.kind is not ContainerKind.INIT


def _cpus(
    host: Host, owners: Mapping[int, list[MapOwnerDocument]], policy: Policy | None
) -> Iterator[MapCpuDocument]:
    """Yield the CPUs of a host; without a policy nothing is known of pods."""
    reserved = frozenset(() if policy is None else policy.cpu.reserved)
    cordon = NO_CORDON if policy is None else policy.cordon
    cpus, nodes = frozenset(cordon.cpus), frozenset(cordon.nodes)
    withheld = frozenset(host.withheld_cpus)
    for cpu in host.cpus:
        users = tuple(owners.get(cpu.id, ()))
        cordoned = cpu.id in cpus or cpu.node in nodes
        use = CpuUse.SHARED
        if not cpu.online:
            use = CpuUse.OFFLINE
        elif cpu.id in withheld:
            use = CpuUse.WITHHELD
        elif policy is None:
            use = CpuUse.ONLINE
        elif users:
            own = any(owner.container is not None for owner in users)
            use = CpuUse.EXCLUSIVE if own else CpuUse.POD
        elif cordoned:
            use = CpuUse.CORDONED
        elif cpu.id in reserved:
            use = CpuUse.RESERVED
        yield MapCpuDocument(
            id=cpu.id,
            use=use,
            isolated=cpu.isolated,
            core=cpu.core,
            die=cpu.die,
            package=cpu.package,
            node=cpu.node,
            uncore=cpu.uncore,
            kind=cpu.kind.value,
            owners=users,
            cordoned=cordoned,
        )


def _node(
    node: Node,
    memory: Iterable[MapMemoryDocument],
    memory_class: str,
    *,
    cordoned: bool = False,
) -> MapNodeDocument:
    return MapNodeDocument(
        id=node.id,
        cpus=str(node.cpus),
        memory=tuple(memory),
        distances={str(other): distance for other, distance in sorted(node.distances.items())},
        tier=node.tier,
        memory_class=str(memory_class),
        cordoned=cordoned,
    )


def _total_memory(node: Node) -> Iterator[MapMemoryDocument]:
    yield MapMemoryDocument(type=MEMORY, total=node.memory_bytes)
    for pool in node.hugepages:
        yield MapMemoryDocument(
            type=hugepages_type(pool.size_bytes), total=pool.size_bytes * pool.count
        )


def _charged_memory(
    node: Node, rules: EffectivePolicy, ledger: Ledger
) -> Iterator[MapMemoryDocument]:
    """Yield the memory of a node with what of it is reserved and allocated, if that is known."""
    facts = rules.memory
    charged = memory_charge(ledger).get(node.id)
    for part in _total_memory(node):
        if not rules.static_memory or part.total is None or node.id not in facts.total:
            yield part
            continue
        usable = facts.allocatable[node.id].get(part.type, 0)
        taken = 0 if charged is None else charged.reserved.get(part.type, 0)
        yield replace(part, reserved=part.total - usable, allocated=taken)


def _host_devices(host: Host) -> Iterator[MapDeviceDocument]:
    for device in host.devices:
        yield MapDeviceDocument(
            kind=device.kind,
            name=device.name,
            nodes="" if device.node is None else str(device.node),
            address=device.address,
            device_class=device.device_class,
        )


def _offered(
    rules: EffectivePolicy, allocations: Iterable[PodAllocation]
) -> Iterator[MapDeviceDocument]:
    """Yield the devices that pods may ask for, with the container that has each."""
    owners = {
        (resource, device): MapOwnerDocument(uid=allocation.uid, container=container)
        for allocation in allocations
        for container, resource, device in allocation.allocated_devices()
    }
    for resource, inventory in sorted(rules.policy.devices.items()):
        for device in inventory:
            yield MapDeviceDocument(
                kind="resource",
                name=device.id,
                nodes=str(device.nodes),
                resource=resource,
                healthy=device.healthy,
                owner=owners.get((resource, device.id)),
            )


def _of_kubelet(
    rules: EffectivePolicy, allocations: Collection[PodAllocation], kubelet: KubeletListing
) -> Iterator[MapDeviceDocument]:
    """Yield the devices of the kubelet's plugins, with the pod that has each.

    A resource that the agent offers itself is left out.
    """
    for (resource, device), found in kubelet_devices(allocations, kubelet).items():
        if resource not in rules.policy.devices:
            holder = found.holder
            yield MapDeviceDocument(
                kind="resource",
                name=device,
                nodes=str(found.device.nodes),
                resource=resource,
                healthy=found.healthy,
                kubelet=True,
                owner=holder and MapOwnerDocument(uid=holder[0], container=holder[1]),
                pod="" if found.pod is None else "/".join(found.pod),
            )


def _pod(
    allocation: PodAllocation,
    not_found: tuple[str, tuple[str, ...]],
    intruding: Iterable[Intrusion],
) -> MapPodDocument:
    used = EMPTY
    for each in intruding:
        used |= each.cpus
    return MapPodDocument(
        uid=allocation.uid,
        name=allocation.name,
        namespace=allocation.namespace,
        cpus=str(allocation.exclusive_cpus),
        containers=tuple(
            MapContainerDocument(
                name=container.name,
                kind=str(container.kind),
                isolation=str(container.isolation),
                cpus=None if container.cpus is None else str(container.cpus),
                mems=str(container.mems),
            )
            for container in allocation.containers
        ),
        not_found=not_found[1],
        absence=not_found[0],
        idle_cpus=str(allocation.idle),
        not_exclusive=str(used),
    )


def _not_exclusive(
    pods: Iterable[MapPodDocument], intrusions: Mapping[str, tuple[Intrusion, ...]]
) -> Iterator[MapWarningDocument]:
    for pod in pods:
        for found in intrusions.get(pod.uid, ()):
            yield MapWarningDocument(
                reason="NotExclusive",
                message=f"{full_name(pod)} is not exclusive: {found}",
                uids=(pod.uid,),
                cpus=str(found.cpus),
            )


def _shared_cores(
    cpus: Iterable[MapCpuDocument], pods: Iterable[MapPodDocument]
) -> Iterator[MapWarningDocument]:
    """Yield a warning for each core of which a container or pod has some threads only."""
    names = {pod.uid: full_name(pod) for pod in pods}
    cores: dict[int, list[MapCpuDocument]] = defaultdict(list)
    for cpu in cpus:
        if cpu.core is not None:
            cores[cpu.core].append(cpu)
    for core, threads in cores.items():
        if not is_shared(threads):
            continue
        users: dict[str, list[int]] = defaultdict(list)
        for cpu in threads:
            for name in _users(cpu, names):
                users[name].append(cpu.id)
        said = "; ".join(f"CPU {Mask.from_ids(ids)} {name}" for name, ids in users.items())
        yield MapWarningDocument(
            reason="SharedCore",
            message=f"core {core} is shared: {said}",
            uids=tuple(dict.fromkeys(owner.uid for cpu in threads for owner in cpu.owners)),
            cpus=str(Mask.from_ids(cpu.id for cpu in threads)),
        )


def is_shared(threads: Iterable[MapCpuDocument]) -> bool:
    """Return whether the threads of a core have different users (`shared_by`)."""
    return shared_by(cpu.owners for cpu in threads)


def shared_by(threads: Iterable[Sequence[MapOwnerDocument]]) -> bool:
    """Return whether a core has different users, one of them a pod or a container at least.

    `threads` are the owners of each thread; one that stays idle has no user. A core of which some
    threads are reserved and the others are in the shared pool is not shared: the same processes may
    run on both.
    """
    users = [
        frozenset((owner.uid, owner.container) for owner in owners)
        for owners in threads
        if not owners or not all(owner.idle for owner in owners)
    ]
    return any(users) and (len(set(users)) > 1 or any(len(each) > 1 for each in users))


def _users(cpu: MapCpuDocument, names: Mapping[str, str]) -> Iterator[str]:
    if not cpu.owners:
        aside = cpu.use in (CpuUse.WITHHELD, CpuUse.RESERVED, CpuUse.CORDONED)
        yield f"is {cpu.use}" if aside else "is in the node's shared pool"
    for owner in cpu.owners:
        container = f" container {owner.container}" if owner.container else ""
        yield f"of {names[owner.uid]}{container}"


def _remote_memory(
    host: Host, allocations: Iterable[PodAllocation]
) -> Iterator[MapWarningDocument]:
    """Yield a warning for each container whose CPUs and pinned memory are on different nodes."""
    node_of = {cpu.id: cpu.node for cpu in host.cpus if cpu.node is not None}
    with_cpus = Mask.from_ids(node_of.values())
    for allocation in allocations:
        for container in allocation.containers:
            if not container.memory or not container.cpus:
                continue
            mems = container.mems
            if container.memory_nodes:  # asked for, so the way to nodes without CPUs is as well
                mems &= with_cpus
            if not mems:
                continue
            nodes = Mask.from_ids({node_of[cpu] for cpu in container.cpus if cpu in node_of})
            if nodes != mems:
                yield MapWarningDocument(
                    reason="RemoteMemory",
                    message=f"{full_name(allocation)} container {container.name}: CPUs "
                    f"{container.cpus} are on {_nodes(nodes)}, its memory on {_nodes(mems)}",
                    uids=(allocation.uid,),
                    cpus=str(container.cpus),
                )


def _nodes(nodes: Mask) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {nodes}" if nodes else "no known node"


def _not_found(pods: Iterable[MapPodDocument]) -> Iterator[MapWarningDocument]:
    for pod in pods:
        if pod.not_found:
            few = ", ".join(pod.not_found[:_NAMED])
            left = len(pod.not_found) - _NAMED
            more = f" and {left} more" if left > 0 else ""
            yield MapWarningDocument(
                reason=pod.absence.title().replace(" ", ""),
                message=f"{full_name(pod)}: {pod.absence} in its cgroup: {few}{more}",
                uids=(pod.uid,),
            )


def _invalid(violations: Iterable[Violation]) -> Iterator[MapWarningDocument]:
    for violation in violations:
        yield MapWarningDocument(
            reason="AllocationInvalid", message=str(violation), uids=(violation.uid,)
        )
