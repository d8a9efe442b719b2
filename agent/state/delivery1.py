"""What providers delivered with devices, in format 1 of the checkpoint."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from agent.managers.allocations.delivery import NOTHING, Delivery, DeviceNode, Mount

Name = Annotated[str, Meta(min_length=1)]


class MountV1(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A file or directory of the host in a container."""

    container_path: Name
    host_path: Name
    read_only: bool = False


class DeviceNodeV1(Struct, forbid_unknown_fields=True, frozen=True):
    """A device node of the host in a container."""

    container_path: Name
    host_path: Name
    permissions: str


class DeliveryV1(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """What a container gets with its devices."""

    environment: dict[str, str] = {}
    mounts: list[MountV1] = []
    device_nodes: list[DeviceNodeV1] = []
    annotations: dict[str, str] = {}
    cdi_devices: list[Name] = []
    pci_addresses: list[Name] = []


def delivery_to_wire(delivery: Delivery) -> DeliveryV1 | UnsetType:
    """Return a delivery as the checkpoint has it, unset if nothing was delivered."""
    if delivery == NOTHING:
        return UNSET
    return DeliveryV1(
        environment=dict(delivery.environment),
        mounts=[MountV1(m.container_path, m.host_path, m.read_only) for m in delivery.mounts],
        device_nodes=[
            DeviceNodeV1(node.container_path, node.host_path, node.permissions)
            for node in delivery.device_nodes
        ],
        annotations=dict(delivery.annotations),
        cdi_devices=list(delivery.cdi_devices),
        pci_addresses=list(delivery.pci_addresses),
    )


def delivery_from_wire(wire: DeliveryV1 | UnsetType) -> Delivery:
    """Return the delivery that the checkpoint has."""
    if wire is UNSET:
        return NOTHING
    return Delivery(
        environment=MappingProxyType(wire.environment),
        mounts=tuple(Mount(m.container_path, m.host_path, m.read_only) for m in wire.mounts),
        device_nodes=tuple(
            DeviceNode(node.container_path, node.host_path, node.permissions)
            for node in wire.device_nodes
        ),
        annotations=MappingProxyType(wire.annotations),
        cdi_devices=tuple(wire.cdi_devices),
        pci_addresses=tuple(wire.pci_addresses),
    )
