"""Responses of device plugins, as the kubelet keeps them, and what the agent keeps of them.

The kubelet stores the `ContainerAllocateResponse` of every resource of a container, and merges them
when the container starts. The agent keeps what comes out.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.managers.allocations.delivery import NOTHING, Delivery, DeviceNode, Mount
from agent.tools.kubelet_state.errors import MissingExtraError, UnreadableResponseError

if TYPE_CHECKING:
    from agent.rpc.messages import MessageClass


def delivery_of(response: bytes) -> Delivery:
    """Return what a response delivers; fields that are not known are left out.

    Raises `MissingExtraError` without protobuf, and `UnreadableResponseError`. An empty response
    needs no protobuf.
    """
    if not response:
        return NOTHING
    kind = _message_class()
    from google.protobuf.message import DecodeError  # noqa: PLC0415  # of the extra, as above

    try:
        message = kind.FromString(response)
    except DecodeError as error:
        raise UnreadableResponseError(str(error)) from error
    return Delivery(
        environment=MappingProxyType(dict(message.envs)),
        mounts=tuple(
            Mount(each.container_path, each.host_path, each.read_only) for each in message.mounts
        ),
        device_nodes=tuple(
            DeviceNode(each.container_path, each.host_path, each.permissions)
            for each in message.devices
        ),
        annotations=MappingProxyType(dict(message.annotations)),
        cdi_devices=tuple(each.name for each in message.cdi_devices),
    )


def response_of(delivery: Delivery) -> bytes:
    """Return the response that delivers the same; PCI addresses have no place in it.

    Raises `MissingExtraError` without protobuf; nothing needs no protobuf.
    """
    if delivery == NOTHING:
        return b""
    message = _message_class()(
        envs=dict(delivery.environment),
        mounts=[
            {"container_path": m.container_path, "host_path": m.host_path, "read_only": m.read_only}
            for m in delivery.mounts
        ],
        devices=[
            {
                "container_path": node.container_path,
                "host_path": node.host_path,
                "permissions": node.permissions,
            }
            for node in delivery.device_nodes
        ],
        annotations=dict(delivery.annotations),
        cdi_devices=[{"name": name} for name in delivery.cdi_devices],
    )
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _message_class() -> MessageClass:
    try:
        from agent.rpc.device_plugin import V1BETA1  # noqa: PLC0415  # protobuf is an extra
    except ImportError as error:
        raise MissingExtraError(error.name or "protobuf") from error
    return V1BETA1["ContainerAllocateResponse"]
