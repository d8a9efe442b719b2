"""`kubelet_internal_checkpoint`: the device manager's file, byte for byte (kubelet v1.36).

The kubelet keeps the file beside its plugins' sockets (cm/devicemanager/checkpoint). Kubelets from
1.20 on write this format; that of older ones does not say on which NUMA nodes the devices are.
"""

from __future__ import annotations

import base64
import binascii
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from agent.tools.kubelet_state.checksums import (
    DAMAGED,
    Name,
    Plain,
    Size,
    fnv1a_32,
    go_json,
    go_map,
    go_map_in_order,
    go_slice,
    go_struct,
    parse_json,
    sorted_json,
)
from agent.tools.kubelet_state.errors import UnreadableStateFileError
from sysfs.mask import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE_NAME: Final = "device-plugins/kubelet_internal_checkpoint"
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
    return go_json({"Data": _data_json(data), "Checksum": fnv1a_32(text)})


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


def _data_json(data: _Data) -> Plain:
    entries = data.PodDeviceEntries
    registered = data.RegisteredDevices
    return {
        "PodDeviceEntries": None if entries is None else [_entry_json(each) for each in entries],
        "RegisteredDevices": None if registered is None else _lists_json(registered),
    }


def _entry_json(entry: _Entry) -> Plain:
    return {
        "PodUID": entry.PodUID,
        "ContainerName": entry.ContainerName,
        "ResourceName": entry.ResourceName,
        "DeviceIDs": None if entry.DeviceIDs is None else _lists_json(entry.DeviceIDs),
        "AllocResp": entry.AllocResp,
    }


def _lists_json(lists: Mapping[str, list[str] | None] | Mapping[int, list[str] | None]) -> Plain:
    return sorted_json({str(key): None if ids is None else [*ids] for key, ids in lists.items()})


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
