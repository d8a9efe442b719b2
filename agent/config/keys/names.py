"""Kinds of keys that list names: policy options, feature gates, controllers, resources, devices."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from agent.config.features import KNOWN_GATES
from agent.config.keys.key import nullable
from agent.managers.policy import PluginDevice
from agent.pods.identity import extended_resource_fault, prefixed_resource_fault
from agent.pods.model import MEMORY
from agent.pods.validation import resource_name_fault
from agent.yaml import Field, Plain, shown
from cgroupfs.settings import KernelController
from sysfs.mask import EMPTY, MAX_ID, Mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.keys.key import KeyReader, Schema

_DEVICE_KEYS: Final = ("id", "numaNodes", "healthy")


class OptionTexts(Struct, frozen=True):
    """Policy options by name; values are texts, as to the kubelet.

    Names and values are judged by `agent.config.load`, since gates decide which there are.
    """

    names: tuple[str, ...]

    words: ClassVar[str] = "mapping of options to texts"

    def read(self, reader: KeyReader, at: Field, base: Mapping[str, str]) -> Mapping[str, str]:
        """Return the options; a number or a boolean is taken as its text."""
        options = dict(base) if reader.merge else {}
        for name, entry in reader.entries(at).items():
            options[name] = _scalar_text(reader, entry) or ""
        return MappingProxyType(options)

    def written(self, value: Mapping[str, str]) -> Plain:
        """Return the options."""
        return dict(value)

    def schema(self) -> Schema:
        """Return a mapping of the known options."""
        return {
            "type": "object",
            "propertyNames": {"enum": list(self.names)},
            "additionalProperties": nullable({"type": ["string", "number", "boolean"]}),
        }


class GateSwitches(Struct, frozen=True):
    """`featureGates`: whether each is on. Names are judged by `agent.config.load`."""

    words: ClassVar[str] = "mapping of feature gates to true or false"

    def read(self, reader: KeyReader, at: Field, base: Mapping[str, bool]) -> Mapping[str, bool]:
        """Return the gates that were set."""
        gates = dict(base) if reader.merge else {}
        for name, entry in reader.entries(at).items():
            gates[name] = reader.boolean(entry) is True
        return MappingProxyType(gates)

    def written(self, value: Mapping[str, bool]) -> Plain:
        """Return the gates that were set."""
        return dict(value)

    def schema(self) -> Schema:
        """Return a mapping of the gates that Kubernetes has."""
        return {
            "type": "object",
            "propertyNames": {"enum": list(KNOWN_GATES)},
            "additionalProperties": nullable({"type": "boolean"}),
        }


class ControllerSet(Struct, frozen=True):
    """`agent.enforce`: controllers of the kernel."""

    words: ClassVar[str] = f"list of {', '.join(KernelController)}"

    def read(
        self, reader: KeyReader, at: Field, base: frozenset[KernelController]
    ) -> frozenset[KernelController]:
        """Return the controllers; a list replaces that of the base."""
        del base
        names = {reader.choice(item, KernelController) for item in reader.items(at)}
        return frozenset(each for each in KernelController if each in names)

    def written(self, value: frozenset[KernelController]) -> Plain:
        """Return the controllers in the order of the enumeration."""
        return [str(controller) for controller in KernelController if controller in value]

    def schema(self) -> Schema:
        """Return a list of controllers."""
        names = list(map(str, KernelController))
        return {"type": "array", "items": {"type": "string", "enum": names}}


class DeviceInventory(Struct, frozen=True):
    """`agent.devices`: the devices of the host by resource name."""

    words: ClassVar[str] = "mapping of resources to lists of devices"

    def read(
        self, reader: KeyReader, at: Field, base: Mapping[str, tuple[PluginDevice, ...]]
    ) -> Mapping[str, tuple[PluginDevice, ...]]:
        """Return the devices by resource."""
        found = dict(base) if reader.merge else {}
        for resource, entry in reader.entries(at).items():
            fault = extended_resource_fault(resource)
            if fault is not None:
                reader.reject(entry, f"{shown(resource)} is not a resource of devices: {fault}")
            found[resource] = _devices(reader, entry)
        return MappingProxyType(found)

    def written(self, value: Mapping[str, tuple[PluginDevice, ...]]) -> Plain:
        """Return a mapping for each device."""
        return {
            resource: [
                {"id": device.id, "numaNodes": list(device.nodes), "healthy": device.healthy}
                for device in devices
            ]
            for resource, devices in value.items()
        }

    def schema(self) -> Schema:
        """Return a mapping of extended resources."""
        node = {"type": "integer", "minimum": 0, "maximum": MAX_ID}
        identity, nodes, healthy = _DEVICE_KEYS
        device = {
            "type": "object",
            "properties": {
                identity: {"type": "string"},
                nodes: nullable({"type": "array", "items": node}),
                healthy: nullable({"type": "boolean"}),
            },
            "required": [identity],
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "propertyNames": {"pattern": "^[^/]+/[^/]+$"},
            "additionalProperties": nullable({"type": "array", "items": device}),
        }


class ProvidedResources(Struct, frozen=True):
    """`agent.ignoredResources`: resources that others provide."""

    words: ClassVar[str] = "list of resources"

    def read(self, reader: KeyReader, at: Field, base: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names; a list replaces that of the base."""
        del base
        found: list[str] = []
        for item in reader.items(at):
            name = reader.text(item)
            fault = None if name is None else _fault_of_ignored(name)
            if name is not None and fault is not None:
                reader.reject(item, f"{shown(name)} cannot be ignored: {fault}")
            elif name in found:
                reader.reject(item, f"{shown(name)} is listed twice")
            elif name is not None:
                found.append(name)
        return tuple(found)

    def written(self, value: tuple[str, ...]) -> Plain:
        """Return the names."""
        return list(value)

    def schema(self) -> Schema:
        """Return a list of different names."""
        name = {"type": "string", "pattern": "^(memory|[^/]+/[^/]+)$"}
        return {"type": "array", "items": name, "uniqueItems": True}


class OptionalResource(Struct, frozen=True):
    """An extended resource, or "" for none."""

    words: ClassVar[str] = 'extended resource such as example.com/name, or ""'

    def read(self, reader: KeyReader, at: Field, base: str) -> str:
        """Return the name."""
        name = reader.text(at)
        if name is None:
            return base
        fault = extended_resource_fault(name) if name else None
        if fault is not None:
            reader.reject(at, f"{shown(name)} is not an extended resource: {fault}")
            return base
        return name

    def written(self, value: str) -> Plain:
        """Return the name."""
        return value

    def schema(self) -> Schema:
        """Return a name with a domain, or an empty text."""
        return {"type": "string", "pattern": "^([^/]+/[^/]+)?$"}


def _scalar_text(reader: KeyReader, field: Field) -> str | None:
    if reader.is_boolean(field):
        return str(reader.boolean(field)).lower()
    return reader.amount(field)


def _devices(reader: KeyReader, field: Field) -> tuple[PluginDevice, ...]:
    devices: dict[str, PluginDevice] = {}
    for item in reader.items(field):
        reader.entries(item)
        reader.reject_unknown(item, _DEVICE_KEYS)
        identity = _device_id(reader, item)
        if identity in devices:
            reader.reject(item, f"device {shown(identity)} is listed twice")
        devices[identity] = PluginDevice(
            identity, _device_nodes(reader, item), healthy=_is_healthy(reader, item)
        )
    return tuple(devices.values())


def _device_id(reader: KeyReader, item: Field) -> str:
    field = item.child("id")
    if field is None:
        reader.reject(item, "id is missing; give the device a name")
        return item.path
    return reader.text(field) or item.path


def _device_nodes(reader: KeyReader, item: Field) -> Mask:
    field = item.child("numaNodes")
    if field is None:
        return EMPTY
    nodes = (reader.integer(node, 0, MAX_ID) for node in reader.items(field))
    return Mask.from_ids(node for node in nodes if node is not None)


def _is_healthy(reader: KeyReader, item: Field) -> bool:
    field = item.child("healthy")
    return True if field is None else reader.boolean(field) is not False


def _fault_of_ignored(name: str) -> str | None:
    """Say why the agent cannot leave a resource to others; None when it can."""
    # A host may not show how much memory a node has; then the agent cannot say what fits.
    if name == MEMORY:
        return None
    fault = prefixed_resource_fault(name)
    if fault is not None and resource_name_fault(name) is None:
        return "it is the node's own; others provide extended resources such as example.com/gpu"
    return fault
