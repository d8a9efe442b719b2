"""The devices that pods can ask for, by resource: `agent.devices` and `agent.hostDevices`.

The former lists devices by name; the latter describes classes of the host's own devices, which
`agent.devices.host` looks for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.config.keys import Section, item_schema, key, parts, read, switch, written
from agent.config.kinds import Kind, mapping_kind, matching, text_kind
from agent.managers.policy import PluginDevice
from agent.pods.model import extended_resource_fault
from agent.yaml import shown
from sysfs.mask import EMPTY, MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.kinds import KeyReader, Schema
    from agent.yaml import Field, Plain

_RESOURCES: Final[Schema] = {"pattern": "^[^/]+/[^/]+$"}


def _check_resource(reader: KeyReader, resource: str, at: Field) -> None:
    fault = extended_resource_fault(resource)
    if fault is not None:
        reader.reject(at, f"{shown(resource)} is not a resource of devices: {fault}")


def _node_ids(reader: KeyReader, at: Field, _: Mask) -> Mask:
    ids = (reader.integer(item, 0, MAX_ID) for item in reader.items(at))
    return Mask.from_ids(node for node in ids if node is not None)


_NODE_IDS: Final[Kind[Mask]] = Kind(
    "list of NUMA nodes",
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_ID}},
    _node_ids,
    list,
)


class _ListedDevice(Section, frozen=True):
    """One device of `agent.devices` as a file has it."""

    id: str = key(
        "",
        matching("name of a device", r"[^\x00-\x1f\x7f]+"),
        "The name of the device.",
        is_required=True,
    )
    numa_nodes: Mask = key(EMPTY, _NODE_IDS, "Its NUMA nodes; without any none is known.")
    healthy: bool = switch("Whether pods can get the device.", default=True)


def _listed_devices(
    reader: KeyReader, at: Field, _: tuple[PluginDevice, ...]
) -> tuple[PluginDevice, ...]:
    devices: dict[str, PluginDevice] = {}
    for item in reader.items(at):
        device = read(reader, item, _ListedDevice())
        if device.id and device.id in devices:
            reader.reject(item, f"device {shown(device.id)} is listed twice")
        devices[device.id] = PluginDevice(device.id, device.numa_nodes, healthy=device.healthy)
    return tuple(devices.values())


#: `agent.devices`: the devices of the host by resource.
DEVICE_INVENTORY: Final[Kind[Mapping[str, tuple[PluginDevice, ...]]]] = mapping_kind(
    "mapping of resources to lists of devices",
    _RESOURCES,
    Kind(
        "list of devices",
        {"type": "array", "items": item_schema(_ListedDevice)},
        _listed_devices,
        lambda devices: [
            written(_ListedDevice(device.id, device.nodes, device.healthy)) for device in devices
        ],
        parts=parts(_ListedDevice),
    ),
    (),
    _check_resource,
)


def _criterion(pattern: re.Pattern[str], rule: str, *, folded: bool = False) -> str:
    """Declare a criterion of devices; its value is the first group of the pattern.

    `rule` says what to write. With `folded` the case of letters does not matter.
    """

    def parse(text: str) -> str:
        match = pattern.fullmatch(text)
        if match is None:
            raise ValueError(f"{shown(text)} matches no device: {rule}")
        return match[1].lower() if folded else match[1]

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

    At least one criterion is given; "" is none. Numbers are kept without `0x`. Wildcards are those
    of `fnmatch`.
    """

    resource: str
    #: The beginning of a class stands for all classes that begin so.
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
    virtual_functions_of: str = _criterion(
        _WILDCARDS, f"the interface of the physical function: {_WILDCARDS_RULE.format('ens1f0')}"
    )


def criteria_text(device_class: HostDeviceClass) -> str:
    """Return the criteria of a class as the configuration has them, for a message."""
    return ", ".join(f"{name} {value}" for name, value in _criteria(device_class).items())


def variable_part(resource: str) -> str:
    """Return a resource as it stands in the name of an environment variable.

    Letters become upper case, and what is neither letter nor digit an underscore, as the SR-IOV
    network device plugin does: `EXAMPLE_COM_VF` for `example.com/vf`.
    """
    return "".join(
        letter if letter.isascii() and letter.isalnum() else "_" for letter in resource.upper()
    )


def _criteria(device_class: HostDeviceClass) -> dict[str, Plain]:
    return {name: value for name, value in written(device_class).items() if value}


def _classes(
    reader: KeyReader, at: Field, _: tuple[HostDeviceClass, ...]
) -> tuple[HostDeviceClass, ...]:
    """Read the classes of one resource, which `_host_devices` adds."""
    classes: list[HostDeviceClass] = []
    items = list(reader.items(at))
    if not items:
        reader.reject(at, "the resource has no class; list at least one, or remove it")
    for item in items:
        mistakes = len(reader.problems)
        device_class = read(reader, item, HostDeviceClass(""))
        if len(reader.problems) > mistakes:
            pass  # what was not read cannot be compared
        elif not _criteria(device_class):
            names = ", ".join(key.name for key in HostDeviceClass.keys)
            reader.reject(
                item,
                "no criterion is given, and all devices of the host would be of this class; give "
                f"at least one of {names}",
            )
        elif device_class in classes:
            reader.reject(item, "this class is listed twice; remove one of the two")
        classes.append(device_class)
    return tuple(classes)


_CLASSES_BY_RESOURCE: Final[Kind[Mapping[str, tuple[HostDeviceClass, ...]]]] = mapping_kind(
    "mapping of resources to lists of classes of devices",
    _RESOURCES,
    Kind(
        "list of classes",
        {
            "type": "array",
            "items": {**item_schema(HostDeviceClass), "minProperties": 1},
            "minItems": 1,
        },
        _classes,
        lambda classes: [_criteria(device_class) for device_class in classes],
        parts=parts(HostDeviceClass),
    ),
    (),
    _check_resource,
)


def _by_resource(classes: tuple[HostDeviceClass, ...]) -> dict[str, tuple[HostDeviceClass, ...]]:
    listed: dict[str, tuple[HostDeviceClass, ...]] = {}
    for device_class in classes:
        resource = device_class.resource
        listed[resource] = (*listed.get(resource, ()), device_class)
    return listed


def _host_devices(
    reader: KeyReader, at: Field, base: tuple[HostDeviceClass, ...]
) -> tuple[HostDeviceClass, ...]:
    listed = _CLASSES_BY_RESOURCE.read(reader, at, _by_resource(base))
    # A container would find the devices of both in the same environment variable.
    first: dict[str, str] = {}
    for resource in listed:
        other = first.setdefault(variable_part(resource), resource)
        if other != resource:
            reader.reject(
                at.child(resource) or at,
                f"{resource} and {other} have the same environment variable, "
                f"PCIDEVICE_{variable_part(resource)}; rename one of the two",
            )
    return tuple(
        replace(device_class, resource=resource)
        for resource, classes in listed.items()
        for device_class in classes
    )


#: `agent.hostDevices`: classes of the host's devices, in the order of the file.
HOST_DEVICES: Final[Kind[tuple[HostDeviceClass, ...]]] = Kind(
    _CLASSES_BY_RESOURCE.words,
    _CLASSES_BY_RESOURCE.schema,
    _host_devices,
    lambda classes: _CLASSES_BY_RESOURCE.written(_by_resource(classes)),
    parts=_CLASSES_BY_RESOURCE.parts,
)
