"""What a container gets with its devices, as a document: a part of that of the container.

Field names are camel case on the wire, as in all documents (`agent.api.documents`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agent.managers.allocations.delivery import NOTHING

if TYPE_CHECKING:
    from agent.managers.allocations.delivery import Delivery


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the parts."""


class MountDocument(_Part, frozen=True):
    """A file or directory of the host that the container has at a path of its own."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceNodeDocument(_Part, frozen=True):
    """A device node of the host, with permissions of `rwm`."""

    container_path: str
    host_path: str
    permissions: str


class DeliveryDocument(_Part, frozen=True):
    """What a container gets with its devices.

    `cdi_device` is the name under which a runtime finds environment, mounts and device nodes in the
    CDI file of the pod, "" where none is written. `cdi_devices` are names of other files, which a
    runtime needs besides; so are `annotations`.
    """

    environment: dict[str, str] = {}
    mounts: tuple[MountDocument, ...] = ()
    device_nodes: tuple[DeviceNodeDocument, ...] = ()
    annotations: dict[str, str] = {}
    cdi_devices: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    cdi_device: str = ""


def delivery_document(delivery: Delivery, cdi_name: str) -> DeliveryDocument | None:
    """Return what was delivered, None for nothing; `cdi_name` is "" without a CDI file."""
    if delivery == NOTHING:
        return None
    return DeliveryDocument(
        environment=dict(delivery.environment),
        mounts=tuple(
            MountDocument(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.read_only,
            )
            for mount in delivery.mounts
        ),
        device_nodes=tuple(
            DeviceNodeDocument(
                container_path=node.container_path,
                host_path=node.host_path,
                permissions=node.permissions,
            )
            for node in delivery.device_nodes
        ),
        annotations=dict(delivery.annotations),
        cdi_devices=delivery.cdi_devices,
        pci_addresses=delivery.pci_addresses,
        cdi_device=cdi_name,
    )
