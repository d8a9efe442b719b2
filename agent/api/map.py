"""The map of a host: who has each CPU, memory node and device (`GET /v1/map`).

In go a host and, with an agent, the rules and the ledger. Out comes a `MapDocument`. Nothing is
read from the system here. A map without an agent (`numawarden topology`) has no policy and no pods.
"""

from __future__ import annotations

from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.api.documents.map import (
    CpuUse,
    MapContainerDocument,
    MapCpuDocument,
    MapDeviceDocument,
    MapDocument,
    MapMemoryDocument,
    MapNodeDocument,
    MapOwnerDocument,
    MapPodDocument,
)
from agent.api.map_warnings import map_warnings
from agent.api.views import policy_document
from agent.managers.allocation import Isolation
from agent.managers.cpu.manager import shared_cpus
from agent.managers.device.kubelet import NOT_LISTED, kubelet_devices
from agent.managers.memory.state import hugepages_type, memory_charge
from agent.managers.policy import NO_CORDON
from agent.managers.pools import pod_pools
from agent.pods.model import MEMORY, ContainerKind
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.ledger import Ledger
    from agent.managers.policy import Policy
    from agent.managers.pools import PodPool
    from agent.managers.quality import Intrusion
    from agent.managers.rules import EffectivePolicy
    from agent.managers.violations import Violation
    from sysfs.host import Host, Node


def map_of_host(host: Host) -> MapDocument:
    """Return the map of a host without an agent: the hardware alone."""
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

    `not_found` are the containers that are to run and were not found, after why they were not, by
    the uid of the pod. `intrusions` are what may use exclusive CPUs of a pod, by its uid. `kubelet`
    is what a kubelet beside the agent lists. The cost follows the number of CPUs of the host,
    containers of the ledger and devices.
    """
    allocations = tuple(ledger.allocations.values())
    cpus = tuple(_cpus(host, owners_of(allocations), rules.policy))
    pools = pod_pools(rules, allocations, shared_cpus(rules, ledger))
    pods = tuple(
        _pod(pod, pools.get(pod.uid), not_found.get(pod.uid, ("", ())), intrusions.get(pod.uid, ()))
        for pod in allocations
    )
    warnings, more_warnings = map_warnings(
        host, cpus, pods, allocations, invalid=invalid, intrusions=intrusions
    )
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
        warnings=warnings,
        more_warnings=more_warnings,
    )


def owners_of(allocations: Iterable[PodAllocation]) -> dict[int, list[MapOwnerDocument]]:
    """Return the owners of every CPU that is not in the node's shared pool, by CPU.

    1. An exclusive CPU of a sidecar or app is owned by the container.
    2. Every other CPU of a pod is owned by the pod: its shared pool, the CPUs that init containers
       had, unused budget, and the idle siblings.
    """
    owners: dict[int, list[MapOwnerDocument]] = defaultdict(list)
    for allocation in allocations:
        rest = allocation.exclusive_cpus - allocation.idle
        for container in allocation.containers:
            if _is_exclusive(container):
                cpus = container.cpus or EMPTY
                owner = MapOwnerDocument(uid=allocation.uid, container=container.name)
                for cpu in cpus:
                    owners[cpu].append(owner)
                rest -= cpus
        owner = MapOwnerDocument(uid=allocation.uid)
        for cpu in rest:
            owners[cpu].append(owner)
        for cpu in allocation.idle:
            owners[cpu].append(MapOwnerDocument(uid=allocation.uid, idle=True))
    return owners


def _is_exclusive(container: ContainerAllocation) -> bool:
    return container.isolation is Isolation.CONTAINER and container.kind is not ContainerKind.INIT


def _cpus(
    host: Host, owners: Mapping[int, list[MapOwnerDocument]], policy: Policy | None
) -> Iterator[MapCpuDocument]:
    """Yield the CPUs of a host; `policy` is None in a map without an agent."""
    reserved = frozenset(() if policy is None else policy.cpu.reserved)
    unshared = frozenset(() if policy is None else policy.cpu.unshared)
    cordon = NO_CORDON if policy is None else policy.cordon
    cpus, nodes = frozenset(cordon.cpus), frozenset(cordon.nodes)
    withheld = frozenset(host.withheld_cpus)
    for cpu in host.cpus:
        users = tuple(owners.get(cpu.id, ()))
        cordoned = cpu.id in cpus or cpu.node in nodes
        if not cpu.online:
            use = CpuUse.OFFLINE
        elif cpu.id in withheld:
            use = CpuUse.WITHHELD
        elif policy is None:
            use = CpuUse.ONLINE
        elif users:
            of_container = any(owner.container is not None for owner in users)
            use = CpuUse.EXCLUSIVE if of_container else CpuUse.POD
        elif cordoned:
            use = CpuUse.CORDONED
        elif cpu.id in reserved:
            use = CpuUse.RESERVED
        elif cpu.id in unshared:
            use = CpuUse.FREE
        else:
            use = CpuUse.SHARED
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
    """Yield the memory of a node; with static memory what is reserved and allocated, too."""
    facts = rules.memory
    charged = memory_charge(ledger).get(node.id)
    for part in _total_memory(node):
        if not rules.static_memory or part.total is None or node.id not in facts.total:
            yield part
            continue
        usable = facts.allocatable[node.id].get(part.type, 0)
        allocated = 0 if charged is None else charged.reserved.get(part.type, 0)
        yield replace(part, reserved=part.total - usable, allocated=allocated)


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
    for (resource, device_id), device in kubelet_devices(allocations, kubelet).items():
        if resource not in rules.policy.devices:
            holder = device.holder
            yield MapDeviceDocument(
                kind="resource",
                name=device_id,
                nodes=str(device.device.nodes),
                resource=resource,
                healthy=device.healthy,
                kubelet=True,
                owner=holder and MapOwnerDocument(uid=holder[0], container=holder[1]),
                pod="" if device.pod is None else "/".join(device.pod),
            )


def _pod(
    allocation: PodAllocation,
    pool: PodPool | None,
    not_found: tuple[str, tuple[str, ...]],
    intruding: Iterable[Intrusion],
) -> MapPodDocument:
    not_exclusive = EMPTY
    for intrusion in intruding:
        not_exclusive |= intrusion.cpus
    absence, names = not_found
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
        not_found=names,
        absence=absence,
        idle_cpus=str(allocation.idle),
        not_exclusive=str(not_exclusive),
        pool="" if pool is None else pool.name,
    )
