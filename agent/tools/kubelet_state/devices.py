"""`kubelet_internal_checkpoint`: the device manager's file, byte for byte (kubelet v1.36).

The kubelet keeps the file beside its plugins' sockets (cm/devicemanager/checkpoint). Kubelets from
1.20 on write this format; that of older ones does not say on which NUMA nodes the devices are.

The file has the `ContainerAllocateResponse` of every resource of a container, which the kubelet
merges when the container starts. The agent keeps what comes out.
"""

from __future__ import annotations

import base64
import binascii
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from agent.managers.allocation import NOTHING, Delivery, DeviceNode, Mount
from agent.pods.model import extended_resource_fault, label_fault, uid_fault
from agent.tools.kubelet_state.format import (
    DAMAGED,
    MissingExtraError,
    Name,
    Size,
    UnreadableResponseError,
    UnreadableStateFileError,
    fnv1a_32,
    go_json,
    go_map,
    go_map_in_order,
    go_slice,
    go_struct,
    parse_json,
    plain_of,
)
from agent.yaml import shown
from sysfs.mask import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agent.managers.policy import PluginDevice
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from agent.rpc import MessageClass


DEVICE_FILE: Final = "device-plugins/kubelet_internal_checkpoint"
#: In place of a NUMA node, of devices whose plugin reports none.
NO_NODE: Final = -1


class DeviceEntry(Struct, frozen=True):
    """The devices of one resource that a container has.

    `devices` are ids by NUMA node (`NO_NODE`: not known); a device of several nodes stands at each.
    `response` is the `ContainerAllocateResponse` of the device plugin, as on the wire.
    """

    uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]] = MappingProxyType({})
    response: bytes = b""

    @property
    def ids(self) -> tuple[str, ...]:
        """The devices, each once, by their first node."""
        nodes = sorted(self.devices)
        return tuple(dict.fromkeys(device for node in nodes for device in self.devices[node]))


class DeviceState(Struct, frozen=True):
    """What the file says; `registered` are the healthy devices of each resource with a plugin."""

    entries: tuple[DeviceEntry, ...] = ()
    registered: Mapping[str, tuple[str, ...]] = MappingProxyType({})


_Node = Annotated[int, Meta(ge=NO_NODE, le=MAX_ID)]


class _Entry(Struct):
    """An entry as it stands in the file."""

    PodUID: Name
    ContainerName: Name
    ResourceName: Name
    DeviceIDs: dict[_Node, list[Name] | None] | None = None
    AllocResp: str | None = None


class _Data(Struct):
    """What the checksum is over."""

    PodDeviceEntries: list[_Entry] | None = None
    RegisteredDevices: dict[Name, list[Name] | None] | None = None


class _Document(Struct):
    """The file as it stands."""

    Data: _Data
    Checksum: Size = 0


def read_device_state(data: bytes, path: Path) -> DeviceState:
    """Return what a file says; `path` is only named in errors. Raises `UnreadableStateFileError`.

    A file without a checksum is damaged, as for the kubelet.
    """
    document = parse_json(data, _Document, path)
    responses = [
        _response(entry, f"$.Data.PodDeviceEntries[{place}].AllocResp", path)
        for place, entry in enumerate(document.Data.PodDeviceEntries or ())
    ]
    computed = fnv1a_32(_hash_text(document.Data, responses))
    if document.Checksum != computed:
        problem = f"says {document.Checksum}, the content has {computed}"
        raise UnreadableStateFileError(path, "$.Checksum", problem, DAMAGED)
    return DeviceState(
        entries=tuple(
            DeviceEntry(
                uid=entry.PodUID,
                container=entry.ContainerName,
                resource=entry.ResourceName,
                devices={node: tuple(ids or ()) for node, ids in (entry.DeviceIDs or {}).items()},
                response=response or b"",
            )
            for entry, response in zip(document.Data.PodDeviceEntries or (), responses, strict=True)
        ),
        registered={
            resource: tuple(ids or ())
            for resource, ids in (document.Data.RegisteredDevices or {}).items()
        },
    )


def write_device_state(state: DeviceState) -> bytes:
    """Return the file of a state. The kubelet's order of entries and ids is that of a Go map."""
    data = _Data(
        # Without entries the kubelet's slice is nil.
        PodDeviceEntries=[_entry(entry) for entry in state.entries] or None,
        RegisteredDevices={resource: list(ids) for resource, ids in state.registered.items()},
    )
    text = _hash_text(data, [entry.response for entry in state.entries])
    return go_json({"Data": plain_of(data), "Checksum": fnv1a_32(text)})


def _entry(entry: DeviceEntry) -> _Entry:
    return _Entry(
        PodUID=entry.uid,
        ContainerName=entry.container,
        ResourceName=entry.resource,
        DeviceIDs={node: list(ids) for node, ids in entry.devices.items()},
        AllocResp=base64.b64encode(entry.response).decode(),
    )


def _response(entry: _Entry, field: str, path: Path) -> bytes | None:
    if entry.AllocResp is None:
        return None
    try:
        return base64.b64decode(entry.AllocResp, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreadableStateFileError(path, field, f"not base64 ({error})", DAMAGED) from error


def _hash_text(data: _Data, responses: list[bytes | None]) -> str:
    """Return the text that the checksum is over: that of `Data` alone."""
    entries, registered = data.PodDeviceEntries, data.RegisteredDevices
    texts = (
        None
        if entries is None
        else [_entry_text(each, resp) for each, resp in zip(entries, responses, strict=True)]
    )
    fields = [
        ("PodDeviceEntries", "[]checkpoint.PodDevicesEntry", go_slice(texts)),
        (
            "RegisteredDevices",
            "map[string][]string",
            go_map(None if registered is None else {k: go_slice(v) for k, v in registered.items()}),
        ),
    ]
    return f"(checkpoint.checkpointData){go_struct(fields)}"


def _entry_text(entry: _Entry, response: bytes | None) -> str:
    devices = entry.DeviceIDs
    return go_struct(
        [
            ("PodUID", "string", entry.PodUID),
            ("ContainerName", "string", entry.ContainerName),
            ("ResourceName", "string", entry.ResourceName),
            (
                "DeviceIDs",
                "checkpoint.DevicesPerNUMA",
                go_map(None)
                if devices is None
                else go_map_in_order((k, go_slice(v)) for k, v in sorted(devices.items())),
            ),
            ("AllocResp", "[]uint8", go_slice(response)),
        ]
    )


def misnamed_devices(state: DeviceState) -> Iterator[str]:
    """Yield the invalid names of pods, containers, resources and devices."""
    names = {
        "uid": ({entry.uid for entry in state.entries}, uid_fault),
        "name of a container": ({entry.container for entry in state.entries}, label_fault),
        "resource": (
            {*state.registered, *(entry.resource for entry in state.entries)},
            extended_resource_fault,
        ),
        "id of a device": ({device for entry in state.entries for device in entry.ids}, _id_fault),
    }
    for kind, (texts, fault_of) in names.items():
        for text in sorted(texts):
            if fault := fault_of(text):
                yield f"{shown(text)} is not a valid {kind}: {fault}"


def _id_fault(text: str) -> str | None:
    return None if text.isprintable() else "it has characters that cannot be printed"


def device_problems(rules: EffectivePolicy, state: DeviceState) -> tuple[str, ...]:
    """Return why a state cannot be imported, one sentence each; empty if it can.

    A resource that the configuration lists is checked against it; of any other, a plugin must have
    registered with the kubelet. The kubelet checks nothing of this file but its checksum: it learns
    from its plugins later which devices there are.
    """
    return (
        *_repeated(state),
        *(why for entry in state.entries for why in _unknown(rules, state, entry)),
        *_allocated_twice(state),
    )


def request_differences(
    rules: EffectivePolicy, pod: Pod, entries: tuple[DeviceEntry, ...]
) -> Iterator[str]:
    """Yield where the containers of a pod request other numbers of devices than they have."""
    allocated = {(entry.container, entry.resource): len(entry.ids) for entry in entries}
    resources = {*rules.policy.devices, *(entry.resource for entry in entries)}
    for container in pod.all_containers():
        for resource in sorted(resources):
            asked = container.resources.limits.get(resource)
            number, found = (
                0 if asked is None else asked.value,
                allocated.get((container.name, resource), 0),
            )
            if number != found:
                yield (
                    f"container {container.name} asks for {number} {resource},"
                    f" allocated are {found}"
                )


def _repeated(state: DeviceState) -> Iterator[str]:
    seen: set[tuple[str, str, str]] = set()
    for entry in state.entries:
        key = (entry.uid, entry.container, entry.resource)
        if key in seen:
            yield (
                f"{entry.resource} of container {entry.container} of pod {entry.uid} stands in two"
                " entries"
            )
        seen.add(key)


def _unknown(rules: EffectivePolicy, state: DeviceState, entry: DeviceEntry) -> Iterator[str]:
    who = f"container {entry.container} of pod {entry.uid}"
    inventory = rules.policy.devices.get(entry.resource)
    if inventory is None:
        if entry.resource not in state.registered:
            yield (
                f"{who} has {entry.resource}, of which no plugin is registered; list its devices in"
                " agent.devices"
            )
        return
    known = {device.id: device for device in inventory}
    for device in entry.ids:
        if device not in known:
            yield f"{who} has {entry.resource} {device}, which agent.devices does not list"
        elif (nodes := _nodes(entry, device)) != _nodes_of(known[device]):
            yield (
                f"{entry.resource} {device} is on NUMA nodes {_shown(nodes)}, agent.devices says"
                f" {_shown(_nodes_of(known[device]))}"
            )


def _nodes(entry: DeviceEntry, device: str) -> tuple[int, ...]:
    return tuple(
        node for node, ids in sorted(entry.devices.items()) if node != NO_NODE and device in ids
    )


def _nodes_of(device: PluginDevice) -> tuple[int, ...]:
    return tuple(device.nodes)


def _shown(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes)) or "none"


def _allocated_twice(state: DeviceState) -> Iterator[str]:
    """Yield a line for each device of two pods; the containers of one may use it in turn."""
    first: dict[tuple[str, str], str] = {}
    for entry in state.entries:
        for device in entry.ids:
            other = first.setdefault((entry.resource, device), entry.uid)
            if other != entry.uid:
                yield (
                    f"pods {other} and {entry.uid} both have {entry.resource} {device}; end one of"
                    " them"
                )


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
        from agent.rpc import V1BETA1  # noqa: PLC0415  # protobuf is an extra
    except ImportError as error:
        raise MissingExtraError(error.name or "protobuf") from error
    return V1BETA1["ContainerAllocateResponse"]
