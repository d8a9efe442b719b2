"""The list of devices that a plugin sends (ListAndWatch): every message has all devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from agent.devices.plugins.limits import LONGEST_ID, LONGEST_LIST, MOST_DEVICES, NUMA_NODES
from agent.managers.policy import PluginDevice
from agent.rpc.device_plugin import V1BETA1
from agent.yaml import shown
from sysfs.mask import Mask

if TYPE_CHECKING:
    from agent.rpc.messages import Message

#: The only health with which a device is allocated; every other text is unhealthy.
HEALTHY: Final = "Healthy"


class AnswerError(Exception):
    """A plugin sent what cannot be used; the text says what was found and what is allowed."""


def read_devices(raw: bytes) -> tuple[PluginDevice, ...]:
    """Return the devices of a ListAndWatchResponse in its order; raises `AnswerError`.

    As in the kubelet a device without topology has no NUMA locality, and ids that are those of no
    node (-1 is what the kernel shows for a PCI device without one) do not count. The kubelet keeps
    the last of two devices with one id; here this is an error, since their nodes or health differ.
    """
    if len(raw) > LONGEST_LIST:
        raise AnswerError(f"the list of devices has {len(raw)} bytes, {LONGEST_LIST} are allowed")
    try:
        message = V1BETA1["ListAndWatchResponse"].FromString(raw)
    except DecodeError as error:
        raise AnswerError("the list of devices is not a ListAndWatchResponse") from error
    count = len(message.devices)
    if count > MOST_DEVICES:
        raise AnswerError(f"the list has {count} devices, {MOST_DEVICES} are allowed")
    devices: dict[str, PluginDevice] = {}
    for each in message.devices:
        device = _device(each)
        if device.id in devices:
            raise AnswerError(f"device {shown(device.id)} is listed twice")
        devices[device.id] = device
    return tuple(devices.values())


def _device(message: Message) -> PluginDevice:
    identity: str = message.ID
    if not identity or not identity.isprintable() or len(identity.encode()) > LONGEST_ID:
        raise AnswerError(
            f"{shown(identity)} is not the id of a device; 1 to {LONGEST_ID} bytes of printable "
            "characters are"
        )
    nodes = message.topology.nodes
    if len(nodes) > NUMA_NODES:
        raise AnswerError(
            f"device {shown(identity)} has {len(nodes)} NUMA nodes, {NUMA_NODES} are allowed"
        )
    known = {node.ID for node in nodes if 0 <= node.ID < NUMA_NODES}
    return PluginDevice(identity, Mask.from_ids(known), healthy=message.health == HEALTHY)
