"""Devices that the kubelet beside the agent gave: nothing to decide, CPUs and memory follow them.

The kubelet allocates the devices of its own plugins when it admits a pod, before the agent decides
on that pod, and lists them in its podresources (`KubeletListing`). To the merge they are a provider
whose choice is made, as the kubelet's device manager is one after a restart: its hints for a
container that has devices already are those of these devices (generateDeviceTopologyHints). See
docs/contributing/decisions.md.
"""

from __future__ import annotations

from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.amounts import nodes_text
from agent.managers.demand import PodPart, ResourceDemand
from agent.managers.device.manager import given_hints
from agent.managers.resource_manager import ResourceManager
from agent.pods.model import NO_GIVEN_DEVICES, GivenDevice
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.demand import ContainerDemand, PodDemand, PodRequest
    from agent.managers.host import HostPolicy
    from agent.managers.resource_manager import Draft
    from agent.managers.topology.hint import Hint
    from agent.managers.topology.many_nodes import Hints, ProviderHints
    from agent.pods.model import GivenDevices


#: The name of the manager, under which allocations have the devices (`others`).
KUBELET_DEVICES: Final = "kubeletDevices"
#: What a container has: NUMA nodes in the kernel's list format ("": not known) by id by resource.
Part: TypeAlias = "Mapping[str, Mapping[str, str]]"
_Devices: TypeAlias = "tuple[GivenDevice, ...]"
#: Serialized claims by container.
Claims: TypeAlias = "Mapping[str, tuple[bytes, ...]]"
NO_CLAIMS: Final[Claims] = MappingProxyType({})


@final
class GivenDeviceManager(ResourceManager):
    """The manager of the devices that the kubelet gave to containers (`Pod.given_devices`).

    It allocates nothing and rejects nothing itself: it says where the devices are, and records them
    with the allocation. A device without a locality leaves the choice to the others.
    """

    name = KUBELET_DEVICES

    def demand(self, request: PodRequest) -> ResourceDemand:
        given = request.pod.given_devices
        devices = tuple([given.get(each.name, ()) for each in request.containers])
        return ResourceDemand(
            tuple(dict.fromkeys(each for some in devices for each in some)),
            devices,
            active=bool(given),
            exclusive=(False,) * len(devices),  # of the agent: the kubelet gave them
            why=tuple([_WHY[bool(each)] for each in devices]),
        )

    def amount(self, demanded: _Devices, resource: str) -> int:
        return sum(device.resource == resource for device in demanded)

    def start(self, rules: HostPolicy, part: None, demand: PodDemand) -> PodPart:
        return PodPart()

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        return _hints(draft, container.part(KUBELET_DEVICES))

    def pod_hints(self, draft: Draft) -> ProviderHints:
        return _hints(draft, draft.demand.parts[KUBELET_DEVICES].pod)

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        devices: _Devices = container.part(KUBELET_DEVICES)
        if devices:
            draft.parts[KUBELET_DEVICES].containers[container.name] = by_resource(devices)

    def free(self, draft: Draft, resource: str) -> Mapping[int, int]:
        # None is left to choose: those of the pod itself.
        devices: _Devices = draft.demand.parts[KUBELET_DEVICES].pod
        own = [device.nodes for device in devices if device.resource == resource]
        return {node: sum(node in nodes for nodes in own) for node in Mask.union(own)}

    def offer_text(self, draft: Draft, resource: str, asked: int, fit: str) -> str:
        nodes = nodes_text(Mask.from_ids(self.free(draft, resource)))
        return f"{asked} of {resource}, which the kubelet gave on {nodes}, {fit}"

    def empty(self, rules: HostPolicy) -> None:
        """Return nothing: the kubelet keeps who has which device."""

    def charged(self, rules: HostPolicy, part: None, allocation: PodAllocation) -> None:
        """Return nothing, as `empty`."""

    def released(self, rules: HostPolicy, part: None, allocation: PodAllocation) -> None:
        """Return nothing, as `empty`."""

    def loaded(self, saved: None, allocations: Iterable[PodAllocation]) -> None:
        """Return nothing, as `empty`."""

    def renumbered(self, allocated: Part, moves: Mapping[int, int]) -> Part:
        return {
            resource: {
                device: str(Mask.from_ids(moves.get(node, node) for node in Mask.parse(nodes)))
                for device, nodes in devices.items()
            }
            for resource, devices in allocated.items()
        }


_WHY: Final = {True: "the kubelet gave it devices", False: "the kubelet gave it no devices"}


def given_devices(container: ContainerAllocation) -> Iterator[GivenDevice]:
    """Yield the devices of the kubelet that an allocation records."""
    for resource, devices in (container.part(KUBELET_DEVICES) or {}).items():
        for device, nodes in devices.items():
            yield GivenDevice(resource, device, Mask.parse(nodes))


def with_given_devices(allocation: PodAllocation, given: Mapping[str, _Devices]) -> PodAllocation:
    """Return an allocation that records devices of the kubelet, by the names of containers."""
    if not given:
        return allocation
    containers = (
        each.with_part(KUBELET_DEVICES, by_resource(given[each.name]))
        if given.get(each.name)
        else each
        for each in allocation.containers
    )
    return replace(allocation, containers=tuple(containers))


def by_resource(devices: Iterable[GivenDevice]) -> Part:
    """Return the NUMA nodes of devices in the kernel's list format, by id by resource."""
    part: dict[str, dict[str, str]] = {}
    for device in sorted(devices, key=lambda each: (each.resource, each.id)):
        part.setdefault(device.resource, {})[device.id] = str(device.nodes)
    return part


def _hints(draft: Draft, devices: _Devices) -> dict[str, Hints | None]:
    """Return the hints of each resource; None for one of whose devices no locality is known.

    A node that the machine does not have says nothing about where a device is.
    """
    machine = draft.rules.machine.node_mask
    places: dict[str, list[int]] = {}
    for device in devices:
        known = places.setdefault(device.resource, [])
        if place := (device.nodes & machine).bits:
            known.append(place)
    return {
        resource: given_hints(machine.bits, known, draft.work()) if known else None
        for resource, known in places.items()
    }


class KubeletListing(Struct, frozen=True):
    """What the podresources of a kubelet beside the agent list: the devices of its plugins.

    `pods` are those with devices, by namespace and name, `allocatable` the healthy devices.
    `claims` are the pods with devices of DRA: by container what the kubelet says of its claims, as
    serialized messages (DynamicResource of v1), which nothing but the agent's podresources need.
    """

    pods: Mapping[tuple[str, str], GivenDevices] = MappingProxyType({})
    allocatable: tuple[GivenDevice, ...] = ()
    claims: Mapping[tuple[str, str], Claims] = MappingProxyType({})

    def of(self, pod: PodAllocation) -> GivenDevices:
        """Return the devices of the kubelet that the containers of a pod have, by container.

        They are those that were recorded when the pod was admitted, of a container without such
        those that the kubelet lists now.
        """
        listed = self.pods.get(listed_name(pod), NO_GIVEN_DEVICES)
        known = (
            (each.name, tuple(given_devices(each)) or listed.get(each.name, ()))
            for each in pod.containers
        )
        return {name: devices for name, devices in known if devices}


NOT_LISTED: Final = KubeletListing()


def listed_name(pod: PodAllocation) -> tuple[str, str]:
    """Return namespace and name under which a pod is listed; its uid where no name is known."""
    return pod.namespace, pod.name or pod.uid


class KubeletDevice(Struct, frozen=True):
    """A device of the kubelet's plugins.

    `holder` is the container of an allocation (uid, name) that has the device, `pod` the pod
    (namespace, name) of the kubelet that has it without an allocation; at most one of them is set.
    """

    device: GivenDevice
    healthy: bool
    holder: tuple[str, str] | None = None
    pod: tuple[str, str] | None = None

    @property
    def free(self) -> bool:
        """Whether no pod has the device."""
        return self.holder is None and self.pod is None


def kubelet_devices(
    allocations: Collection[PodAllocation], listing: KubeletListing
) -> dict[tuple[str, str], KubeletDevice]:
    """Return the devices that the kubelet lists or pods have from it, by resource and id, sorted.

    The kubelet lists healthy devices: one that a pod has and is not listed is not healthy. Without
    a listing those of the allocations are all that is known, and count as healthy.
    """
    listed = {(each.resource, each.id): each for each in listing.allocatable}
    found = {key: KubeletDevice(device, healthy=True) for key, device in listed.items()}

    def add(
        device: GivenDevice,
        holder: tuple[str, str] | None = None,
        pod: tuple[str, str] | None = None,
    ) -> None:
        key = device.resource, device.id
        healthy = key in listed or listing == NOT_LISTED
        found[key] = KubeletDevice(listed.get(key, device), healthy, holder, pod)

    own = {listed_name(allocation) for allocation in allocations}
    for name, given in listing.pods.items():
        if name not in own:
            for device in chain.from_iterable(given.values()):
                add(device, pod=name)
    for allocation in allocations:
        for container, devices in listing.of(allocation).items():
            for device in devices:
                add(device, holder=(allocation.uid, container))
    return dict(sorted(found.items()))
