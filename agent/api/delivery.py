"""What a container gets with its devices, as a document: a part of that of the container."""

from __future__ import annotations

from msgspec.structs import asdict

from agent.managers.allocations.delivery import NOTHING, Delivery


class DeliveryDocument(Delivery, frozen=True, kw_only=True):
    """What a container gets with its devices.

    `cdi_device` is the name under which a runtime finds environment, mounts and device nodes in the
    CDI file of the pod, "" where none is written. `cdi_devices` are names of other files, which a
    runtime needs besides; so are `annotations`.
    """

    cdi_device: str = ""


def delivery_document(delivery: Delivery, cdi_name: str) -> DeliveryDocument | None:
    """Return what was delivered, None for nothing; `cdi_name` is "" without a CDI file."""
    if delivery == NOTHING:
        return None
    plain = {"environment": dict(delivery.environment), "annotations": dict(delivery.annotations)}
    return DeliveryDocument(**{**asdict(delivery), **plain}, cdi_device=cdi_name)
