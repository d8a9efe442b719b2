"""The ledger's values as messages of the podresources API (kubelet v1.36; KEP-5526 for pods).

Listed are the containers that run as long as their pod. What containers share of their pod's budget
stands at each of them, or at the pod and not at the containers: a rule of the kubelet as which it
answers (`VersionRules.budgets_are_listed_at_pods`). The node's shared pool stands nowhere. Beside a
kubelet its devices and claims (DRA) stand with the CPUs and memory of the agent, and pods that only
the kubelet has are listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from agent.managers.allocation import Isolation
from agent.managers.cpu.manager import idle_siblings
from agent.managers.device.kubelet import NO_CLAIMS, NOT_LISTED, listed_name
from agent.managers.sharing import is_specified
from agent.managers.versions import OLDEST
from agent.pods.model import NO_GIVEN_DEVICES, ContainerKind
from agent.rpc.pod_resources import V1
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import ContainerAllocation, MemoryBlock, PodAllocation
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.ledger import Ledger
    from agent.managers.policy import PluginDevice
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import GivenDevice
    from agent.rpc.messages import Message

    #: The NUMA nodes of each device by id, by resource.
    Places: TypeAlias = "Mapping[str, Mapping[str, Mask]]"
    from agent.managers.versions import KubernetesVersion

_POD: Final = V1["PodResources"]
_LISTED: Final = V1["ListPodResourcesResponse"]
_ALLOCATABLE: Final = V1["AllocatableResourcesResponse"]


class _Entry(Struct, frozen=True):
    """An allocation, and its pod as the only one of a serialized response."""

    allocation: PodAllocation
    data: bytes


class Listing:
    """The pods of a ledger as serialized responses; what did not change is not made again.

    The response that lists several pods is the concatenation of those that list one (protobuf's
    encoding of a repeated field), and the one to Get has the same encoding as a list of one.
    """

    def __init__(self, version: KubernetesVersion = OLDEST) -> None:
        self._by_pod = version.rules.budgets_are_listed_at_pods
        self._inventory: Mapping[str, tuple[PluginDevice, ...]] | None = None
        self._places: Places = {}
        self._kubelet = NOT_LISTED
        self._entries: dict[str, _Entry] = {}
        self._ledger: Ledger | None = None
        self._all = b""

    def all(
        self, rules: EffectivePolicy, ledger: Ledger, kubelet: KubeletListing = NOT_LISTED
    ) -> bytes:
        """Return the `ListPodResourcesResponse` of all pods, in the order of admission.

        Pods that only the kubelet has come after them.
        """
        self._locate(rules, kubelet)
        if self._ledger is not ledger:
            self._entries = {
                uid: self._entry(allocation) for uid, allocation in ledger.allocations.items()
            }
            own = {listed_name(allocation) for allocation in ledger.allocations.values()}
            only = [
                _LISTED(pod_resources=[_kubelets_pod(name, kubelet)]).SerializeToString()
                for name in dict.fromkeys((*kubelet.pods, *kubelet.claims))
                if name not in own
            ]
            self._all = b"".join([*(entry.data for entry in self._entries.values()), *only])
            self._ledger = ledger
        return self._all

    def one(
        self,
        rules: EffectivePolicy,
        ledger: Ledger,
        namespace: str,
        name: str,
        kubelet: KubeletListing = NOT_LISTED,
    ) -> bytes | None:
        """Return the `GetPodResourcesResponse` of a pod, None if no pod has that name.

        Of two pods of one name, one has ended and is not removed yet: the later one is returned.
        """
        self._locate(rules, kubelet)
        found = None
        for allocation in ledger.allocations.values():
            if listed_name(allocation) == (namespace, name):
                found = allocation
        if found is not None:
            return self._entry(found).data
        if (namespace, name) not in {*kubelet.pods, *kubelet.claims}:
            return None
        only = _LISTED(pod_resources=[_kubelets_pod((namespace, name), kubelet)])
        data: bytes = only.SerializeToString()
        return data

    def _entry(self, allocation: PodAllocation) -> _Entry:
        known = self._entries.get(allocation.uid)
        if known is not None and known.allocation is allocation:
            return known
        one = _pod_message(allocation, self._places, self._kubelet, by_pod=self._by_pod)
        response = _LISTED(pod_resources=[one])
        return _Entry(allocation, response.SerializeToString())

    def _locate(self, rules: EffectivePolicy, kubelet: KubeletListing) -> None:
        """Forget everything when devices changed that are not in the ledger."""
        inventory = rules.policy.devices
        if self._inventory is not inventory or self._kubelet is not kubelet:
            self._inventory, self._places = inventory, device_places(inventory)
            self._kubelet = kubelet
            self._entries, self._ledger = {}, None


def device_places(inventory: Mapping[str, Sequence[PluginDevice]]) -> Places:
    """Return where the devices of an inventory are."""
    return {
        resource: {device.id: device.nodes for device in devices}
        for resource, devices in inventory.items()
    }


def _pod_message(
    allocation: PodAllocation, places: Places, kubelet: KubeletListing, *, by_pod: bool
) -> Message:
    """Return the `PodResources` of a pod, with the devices and claims that the kubelet gave.

    A budget stands at the pod with `by_pod`, else at each container that shares it (kubelet v1.36,
    `allocate` of the static policies, which keep the pool as what each of them has).
    A pod of which only the uid is known (imported, recovered) is called by its uid, without a
    namespace: left out, its CPUs and devices would look free to programs that compute what is.
    """
    namespace, name = listed_name(allocation)
    given, claims = kubelet.of(allocation), kubelet.claims.get((namespace, name), NO_CLAIMS)
    lasting = (each for each in allocation.containers if each.kind is not ContainerKind.INIT)
    return _POD(
        name=name,
        namespace=namespace,
        containers=[
            {
                "name": each.name,
                "devices": [
                    *_devices(each.devices, _recorded(each, places)),
                    *_given(given.get(each.name, ())),
                ],
                "cpu_ids": ((not by_pod or _has_own_cpus(allocation, each)) and each.cpus) or (),
                "memory": _memory(each.memory)
                if not by_pod or _has_own_memory(allocation, each)
                else (),
                "dynamic_resources": claims.get(each.name, ()),
            }
            for each in lasting
        ],
        cpu_ids=(by_pod and allocation.cpus) or (),
        memory=_memory(allocation.memory) if by_pod else (),
    )


def allocatable_message(
    rules: EffectivePolicy, ledger: Ledger, kubelet: KubeletListing = NOT_LISTED
) -> Message:
    """Return the `AllocatableResourcesResponse`: what pods may have exclusively, allocated or not.

    Empty for a manager with policy none, as the kubelet's. Of devices only the healthy ones. What
    is cordoned is left out, and so are siblings that stay idle: no pod lists them as its own.
    Devices of the kubelet are added.
    """
    memory = rules.memory.open if rules.static_memory else {}
    places = device_places(rules.policy.devices)
    healthy = {
        resource: [device.id for device in devices if device.healthy]
        for resource, devices in rules.devices.items()
    }
    return _ALLOCATABLE(
        devices=[*_devices(healthy, places), *_given(kubelet.allocatable)],
        cpu_ids=rules.open_cpus - idle_siblings(ledger) if rules.static_cpus else (),
        memory=[
            _block(kind, size, Mask.of(node))
            for node, types in sorted(memory.items())
            for kind, size in sorted(types.items())
            if size
        ],
    )


def _kubelets_pod(name: tuple[str, str], kubelet: KubeletListing) -> Message:
    """Return the `PodResources` of a pod that the agent has not admitted."""
    given = kubelet.pods.get(name, NO_GIVEN_DEVICES)
    claims = kubelet.claims.get(name, NO_CLAIMS)
    return {
        "namespace": name[0],
        "name": name[1],
        "containers": [
            {
                "name": container,
                "devices": list(_given(given.get(container, ()))),
                "dynamic_resources": claims.get(container, ()),
            }
            for container in dict.fromkeys((*given, *claims))
        ],
    }


def _recorded(container: ContainerAllocation, places: Places) -> Places:
    """Return where the devices of a container were when it got them, as the kubelet keeps it.

    CPUs and memory are aligned to that, and the provider of the devices may be gone. Of devices
    without a recorded node the present ones count.
    """
    return {
        resource: {**places.get(resource, {}), **container.device_nodes.get(resource, {})}
        if resource in container.device_nodes
        else places.get(resource, {})
        for resource in container.devices
    }


def _has_own_cpus(pod: PodAllocation, container: ContainerAllocation) -> bool:
    """Return whether a container's CPUs are its own; of a budget that takes a specification."""
    if container.isolation is not Isolation.CONTAINER:
        return False
    return pod.cpus is None or is_specified(pod)


def _has_own_memory(pod: PodAllocation, container: ContainerAllocation) -> bool:
    """Return whether a container's memory is its own, not what it shares of a budget.

    A container with a slice of a budget is Guaranteed, so the slice has the size of its limits.
    """
    if not pod.memory:
        return True
    if not is_specified(pod):
        return False
    if container.isolation is Isolation.CONTAINER:
        return True
    guaranteed = container.cpu.request_millis is not None and (
        container.cpu.request_millis == container.cpu.limit_millis
    )
    sizes: dict[str, int] = {}
    for block in container.memory:
        sizes[block.type] = sizes.get(block.type, 0) + block.size
    return guaranteed and sizes == {kind: size for kind, size in container.limits.items() if size}


def _memory(blocks: Iterable[MemoryBlock]) -> list[Message]:
    return [_block(block.type, block.size, block.nodes) for block in blocks]


def _block(kind: str, size: int, nodes: Mask) -> Message:
    return {"memory_type": kind, "size": size, "topology": _topology(nodes)}


def _devices(devices: Mapping[str, Iterable[str]], places: Places) -> Iterator[Message]:
    """Yield the devices of each resource by NUMA node; a device of several nodes stands at each.

    Devices without a known node come first, without a topology.
    """
    for resource, ids in sorted(devices.items()):
        known = places.get(resource, {})
        by_node: dict[int, list[str]] = {}
        for device in ids:
            for node in known.get(device, EMPTY) or (_NOWHERE,):
                by_node.setdefault(node, []).append(device)
        for node, found in sorted(by_node.items()):
            message: Message = {"resource_name": resource, "device_ids": found}
            if node != _NOWHERE:
                message["topology"] = _topology(Mask.of(node))
            yield message


def _given(devices: Iterable[GivenDevice]) -> Iterator[Message]:
    """Yield the devices of the kubelet as those of the agent."""
    ids: dict[str, list[str]] = {}
    places: dict[str, dict[str, Mask]] = {}
    for device in devices:
        ids.setdefault(device.resource, []).append(device.id)
        places.setdefault(device.resource, {})[device.id] = device.nodes
    return _devices(ids, places)


#: In place of a NUMA node.
_NOWHERE: Final = -1


def _topology(nodes: Mask) -> Message:
    return {"nodes": [{"ID": node} for node in nodes]}
