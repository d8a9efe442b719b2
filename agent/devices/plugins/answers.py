"""What plugins answer to calls: options, a preference, what a container gets."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from agent.devices.plugins.device_list import AnswerError
from agent.devices.plugins.limits import LONGEST_ANSWER
from agent.managers.allocations.delivery import Delivery, DeviceNode, Mount
from agent.rpc.device_plugin import V1BETA1
from agent.yaml import shown

if TYPE_CHECKING:
    from collections.abc import Sized

    from agent.rpc.messages import Message

#: The most mounts, device nodes, variables, annotations and CDI names of one container, each.
MOST_ENTRIES: Final = 1024


class PluginOptions(Struct, frozen=True):
    """Which optional methods a plugin has (DevicePluginOptions)."""

    preferred_allocation: bool = False
    pre_start: bool = False


def decoded(raw: bytes, name: str) -> Message:
    """Return an answer as the named message; raises `AnswerError`."""
    if len(raw) > LONGEST_ANSWER:
        raise AnswerError(f"the {name} has {len(raw)} bytes, {LONGEST_ANSWER} are allowed")
    try:
        return V1BETA1[name].FromString(raw)
    except DecodeError as error:
        raise AnswerError(f"the answer cannot be decoded as {name}") from error


def read_options(raw: bytes) -> PluginOptions:
    """Return the options of a plugin; raises `AnswerError`."""
    options = decoded(raw, "DevicePluginOptions")
    return PluginOptions(
        preferred_allocation=options.get_preferred_allocation_available,
        pre_start=options.pre_start_required,
    )


def read_preference(
    raw: bytes, available: frozenset[str], required: frozenset[str], size: int
) -> tuple[str, ...]:
    """Return the preferred ids, () where the plugin has no preference; raises `AnswerError`.

    The kubelet takes those ids that are available and fills up with others. An answer that does not
    fit the question shows that the plugin does not know the devices, so nothing of it is used here.
    """
    responses = decoded(raw, "PreferredAllocationResponse").container_responses
    if len(responses) > 1:
        raise AnswerError(f"{len(responses)} containers are answered, 1 was asked for")
    ids: tuple[str, ...] = tuple(responses[0].deviceIDs) if responses else ()
    if not ids:
        return ()
    if len(ids) != size or len(set(ids)) != size:
        raise AnswerError(f"{len(set(ids))} devices are preferred, {size} were asked for")
    if unknown := sorted(set(ids) - available):
        raise AnswerError(f"device {shown(unknown[0])} is preferred, but not available")
    if missing := sorted(required.difference(ids)):
        raise AnswerError(f"device {shown(missing[0])} has to be among the preferred devices")
    return ids


def read_delivery(raw: bytes) -> Delivery:
    """Return what the one container of an AllocateResponse gets; raises `AnswerError`.

    The values are taken as they are: `agent.devices.delivery_checks` says of every provider's
    values whether a container can get them.
    """
    responses = decoded(raw, "AllocateResponse").container_responses
    if len(responses) != 1:
        raise AnswerError(f"{len(responses)} containers are answered, 1 was asked for")
    [found] = responses
    _bounded(found.envs, "environment variables")
    _bounded(found.annotations, "annotations")
    _bounded(found.mounts, "mounts")
    _bounded(found.devices, "device nodes")
    _bounded(found.cdi_devices, "CDI devices")
    return Delivery(
        environment=MappingProxyType(dict(sorted(found.envs.items()))),
        mounts=tuple(Mount(m.container_path, m.host_path, m.read_only) for m in found.mounts),
        device_nodes=tuple(
            DeviceNode(node.container_path, node.host_path, node.permissions)
            for node in found.devices
        ),
        annotations=MappingProxyType(dict(sorted(found.annotations.items()))),
        cdi_devices=tuple(device.name for device in found.cdi_devices),
    )


def _bounded(entries: Sized, what: str) -> None:
    if len(entries) > MOST_ENTRIES:
        raise AnswerError(f"there are {len(entries)} {what}, {MOST_ENTRIES} are allowed")
