"""Deliveries: what a container gets beside its devices, so that its processes can use them.

The providers of devices return it after the decision (`agent.devices`): the fields of
`ContainerAllocateResponse` of the device plugin API (v1beta1), and the PCI addresses of the host's
own devices.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # msgspec reads it at run time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from agent.values import Saved

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ValueT = TypeVar("ValueT")


class Mount(Saved, frozen=True, omit_defaults=False):
    """A file or directory of the host, and the path at which the container has it."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceNode(Saved, frozen=True):
    """A device node of the host, and the path at which the container has it."""

    container_path: str
    host_path: str
    #: Some of `rwm`: read, write, create.
    permissions: str


class Delivery(Saved, frozen=True, omit_defaults=False):
    """What a container gets so that its processes can use the devices allocated to it."""

    environment: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = {}
    #: Fully qualified CDI names (`vendor.com/class=name`), which the runtime resolves.
    cdi_devices: tuple[str, ...] = ()
    #: Of the host's own devices, in the order of their ids.
    pci_addresses: tuple[str, ...] = ()


NOTHING: Final = Delivery()


def merged(deliveries: Iterable[Delivery]) -> Delivery:
    """Return what a container gets from the providers of all its resources.

    If two of them set the same variable, annotation or path of the container, the first counts, as
    in the kubelet (`deviceRunContainerOptions`).
    """
    environment: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    nodes: dict[str, DeviceNode] = {}
    names: dict[str, None] = {}
    addresses: dict[str, None] = {}
    for delivery in deliveries:
        _add(environment, delivery.environment)
        _add(annotations, delivery.annotations)
        _add(mounts, {mount.container_path: mount for mount in delivery.mounts})
        _add(nodes, {node.container_path: node for node in delivery.device_nodes})
        _add(names, dict.fromkeys(delivery.cdi_devices))
        _add(addresses, dict.fromkeys(delivery.pci_addresses))
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
    """Yield a sentence for each value of a delivery that `merged` drops for another value.

    `deliveries` have the resource of each delivery.
    """
    first: dict[tuple[str, str], tuple[str, object]] = {}
    for resource, delivery in deliveries:
        values: list[tuple[tuple[str, str], object]] = [
            *((("variable", name), value) for name, value in delivery.environment.items()),
            *((("annotation", name), value) for name, value in delivery.annotations.items()),
            *((("mount at", mount.container_path), mount) for mount in delivery.mounts),
            *((("device node at", node.container_path), node) for node in delivery.device_nodes),
        ]
        for key, value in values:
            former, kept = first.setdefault(key, (resource, value))
            if kept != value:
                yield f"{key[0]} {key[1]} of {resource} differs from that of {former}, which counts"


def _add(values: dict[str, ValueT], more: Mapping[str, ValueT]) -> None:
    for key, value in more.items():
        values.setdefault(key, value)
