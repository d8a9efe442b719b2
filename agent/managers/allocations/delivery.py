"""What a container gets with its devices: the values that providers of devices return.

The fields are those of `ContainerAllocateResponse` of the device plugin API (v1beta1), and the PCI
addresses of the host's own devices.
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
