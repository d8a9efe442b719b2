"""What the podresources of a kubelet beside the agent list: devices, and which pods have them."""

from __future__ import annotations

from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.device.given import given_devices
from agent.pods.model import NO_GIVEN_DEVICES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.managers.allocations.allocation import PodAllocation
    from agent.pods.model import GivenDevice, GivenDevices


class KubeletListing(Struct, frozen=True):
    """What the podresources of a kubelet beside the agent list: the devices of its plugins.

    `pods` are those with devices, by namespace and name, `allocatable` the healthy devices.
    """

    pods: Mapping[tuple[str, str], GivenDevices] = MappingProxyType({})
    allocatable: tuple[GivenDevice, ...] = ()

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
