"""Kinds of `agent.devices` and `agent.hostDevices`, and what a class of devices of the host is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.config.keys import Section, key, read, written
from agent.config.kinds import Kind, mapping_kind, nullable, text_kind
from agent.managers.policy import PluginDevice
from agent.pods.model import extended_resource_fault
from agent.yaml import shown
from sysfs.mask import EMPTY, MAX_ID, Mask

if TYPE_CHECKING:
    from agent.config.kinds import KeyReader, Schema
    from agent.yaml import Field, Plain

_DEVICE_RESOURCE: Final[Schema] = {"pattern": "^[^/]+/[^/]+$"}


def _reject_no_device_resource(reader: KeyReader, entry: Field, resource: str) -> None:
    fault = extended_resource_fault(resource)
    if fault is not None:
        reader.reject(entry, f"{shown(resource)} is not a resource of devices: {fault}")


_DEVICE_KEYS: Final = ("id", "numaNodes", "healthy")


def _devices(reader: KeyReader, resource: str, entry: Field) -> tuple[PluginDevice, ...]:
    _reject_no_device_resource(reader, entry, resource)
    devices: dict[str, PluginDevice] = {}
    for item in reader.items(entry):
        reader.entries(item)
        reader.reject_unknown(item, _DEVICE_KEYS)
        device = _device(reader, item)
        if device.id in devices:
            reader.reject(item, f"device {shown(device.id)} is listed twice")
        devices[device.id] = device
    return tuple(devices.values())


def _device(reader: KeyReader, item: Field) -> PluginDevice:
    name, nodes, healthy = map(item.child, _DEVICE_KEYS)
    if name is None:
        reader.reject(item, "id is missing; give the device a name")
    identity = None if name is None else reader.text(name)
    ids = () if nodes is None else reader.items(nodes)
    found = (reader.integer(node, 0, MAX_ID) for node in ids)
    return PluginDevice(
        identity or item.path,
        Mask.from_ids(node for node in found if node is not None) or EMPTY,
        healthy=healthy is None or reader.boolean(healthy) is not False,
    )


#: `agent.devices`: the devices of the host by resource name.
DEVICE_INVENTORY: Final = mapping_kind(
    "mapping of resources to lists of devices",
    _DEVICE_RESOURCE,
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "numaNodes": nullable(
                    {
                        "type": "array",
                        "items": {"type": "integer", "minimum": 0, "maximum": MAX_ID},
                    }
                ),
                "healthy": nullable({"type": "boolean"}),
            },
            "required": ["id"],
            "additionalProperties": False,
        },
    },
    _devices,
    lambda devices: [
        {"id": device.id, "numaNodes": list(device.nodes), "healthy": device.healthy}
        for device in devices
    ],
)


def _criterion(pattern: re.Pattern[str], rule: str, *, folded: bool = False) -> str:
    """Declare a criterion: what is kept is the group of the pattern; `rule` says what to write.

    With `folded` the case of letters does not matter.
    """

    def parse(text: str) -> str:
        found = pattern.fullmatch(text)
        if found is None:
            raise ValueError(f"{shown(text)} matches no device: {rule}")
        return found[1].lower() if folded else found[1]

    schema = {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}
    return key("", text_kind("text", schema, parse), rule)


_HEX_CLASS: Final = re.compile(r"(?:0[xX])?((?:[0-9a-fA-F]{2}){1,3})", re.ASCII)
_HEX_ID: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]{4})", re.ASCII)
_ID_RULE: Final = "use 4 hexadecimal digits, such as"
_DRIVER: Final = re.compile(r"([A-Za-z0-9_][-A-Za-z0-9_.]{0,63})", re.ASCII)
#: Names of interfaces have 15 characters; a range in brackets takes several to match one.
_WILDCARDS: Final = re.compile(r"([^\s/\x00-\x1f\x7f]{1,64})", re.ASCII)
_WILDCARDS_RULE: Final = (
    "use up to 64 characters, no spaces or slashes, such as {}; *, ? and [] are wildcards"
)


class HostDeviceClass(Section, frozen=True):
    """Devices of the host that pods can ask for as `resource`: those that meet all criteria.

    A criterion that is "" is not asked for; at least one is. Numbers are kept without `0x`, and a
    PCI class takes all classes that begin so. Wildcards are those of `fnmatch`.
    """

    resource: str
    pci_class: str = _criterion(
        _HEX_CLASS,
        'use 2, 4 or 6 hexadecimal digits, such as "0108" for NVMe or "02" for any network device',
        folded=True,
    )
    vendor: str = _criterion(_HEX_ID, f'{_ID_RULE} "8086"', folded=True)
    device: str = _criterion(_HEX_ID, f'{_ID_RULE} "154c"', folded=True)
    driver: str = _criterion(_DRIVER, "use the name of a kernel driver, such as vfio-pci")
    address: str = _criterion(_WILDCARDS, _WILDCARDS_RULE.format('"0000:3b:*"'), folded=True)
    interface: str = _criterion(_WILDCARDS, _WILDCARDS_RULE.format("ens1f*"))
    #: An interface of the physical function.
    virtual_functions_of: str = _criterion(_WILDCARDS, _WILDCARDS_RULE.format("ens1f0"))


def criteria_text(device_class: HostDeviceClass) -> str:
    """Return the criteria of a class as the configuration has them, for a message."""
    return ", ".join(f"{name} {value}" for name, value in _criteria_of(device_class).items())


def variable_part(resource: str) -> str:
    """Return the name of a resource as names of environment variables have it.

    Letters become upper case, and what is neither letter nor digit an underscore, as the SR-IOV
    network device plugin does: `EXAMPLE_COM_VF` for `example.com/vf`.
    """
    return "".join(each if each.isascii() and each.isalnum() else "_" for each in resource.upper())


def _criteria_of(device_class: HostDeviceClass) -> dict[str, Plain]:
    return {name: value for name, value in written(device_class).items() if value}


def _device_classes(reader: KeyReader, resource: str, entry: Field) -> tuple[HostDeviceClass, ...]:
    _reject_no_device_resource(reader, entry, resource)
    found: list[HostDeviceClass] = []
    items = list(reader.items(entry))
    if not items:
        reader.reject(entry, f"{shown(resource)} has no class; list at least one, or remove it")
    for item in items:
        before = len(reader.problems)
        each = _device_class(reader, resource, item)
        if each in found and len(reader.problems) == before:
            reader.reject(item, "this class is listed twice; remove one of the two")
        found.append(each)
    return tuple(found)


def _device_class(reader: KeyReader, resource: str, item: Field) -> HostDeviceClass:
    before = len(reader.problems)
    found = read(reader, item, HostDeviceClass(resource))
    if not _criteria_of(found) and len(reader.problems) == before:
        names = ", ".join(each.name for each in HostDeviceClass.keys)
        reader.reject(
            item,
            "no criterion is given, and all devices of the host would be of this class; give at "
            f"least one of {names}",
        )
    return found


_CLASSES_OF_RESOURCES: Final = mapping_kind(
    "mapping of resources to lists of classes of devices",
    _DEVICE_RESOURCE,
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {each.name: nullable(each.kind.schema) for each in HostDeviceClass.keys},
            "minProperties": 1,
            "additionalProperties": False,
        },
        "minItems": 1,
    },
    _device_classes,
    lambda classes: [_criteria_of(each) for each in classes],
)


def _by_resource(classes: tuple[HostDeviceClass, ...]) -> dict[str, tuple[HostDeviceClass, ...]]:
    found: dict[str, tuple[HostDeviceClass, ...]] = {}
    for each in classes:
        found[each.resource] = (*found.get(each.resource, ()), each)
    return found


def _host_devices(
    reader: KeyReader, at: Field, base: tuple[HostDeviceClass, ...]
) -> tuple[HostDeviceClass, ...]:
    found = _CLASSES_OF_RESOURCES.read(reader, at, _by_resource(base))
    # A container would find the devices of both in the same environment variable.
    first: dict[str, str] = {}
    for resource in found:
        other = first.setdefault(variable_part(resource), resource)
        if other != resource:
            reader.reject(
                at.child(resource) or at,
                f"{resource} and {other} have the same environment variable, "
                f"PCIDEVICE_{variable_part(resource)}; rename one of the two",
            )
    return tuple(each for classes in found.values() for each in classes)


#: `agent.hostDevices`: classes of the host's devices by resource name, in the order of the file.
HOST_DEVICES: Final[Kind[tuple[HostDeviceClass, ...]]] = Kind(
    _CLASSES_OF_RESOURCES.words,
    _CLASSES_OF_RESOURCES.schema,
    _host_devices,
    lambda classes: _CLASSES_OF_RESOURCES.written(_by_resource(classes)),
)
