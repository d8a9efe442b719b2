"""The kind of `agent.hostDevices`: classes of devices, each with what a device has to meet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from agent.config.keys.key import nullable
from agent.config.model import HostDeviceClass
from agent.pods.identity import extended_resource_fault
from agent.yaml import Field, Plain, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.keys.key import KeyReader, Schema

_HEX_CLASS: Final = re.compile(r"(?:0[xX])?((?:[0-9a-fA-F]{2}){1,3})", re.ASCII)
_HEX_ID: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]{4})", re.ASCII)
_DRIVER: Final = re.compile(r"([A-Za-z0-9_][-A-Za-z0-9_.]{0,63})", re.ASCII)
#: Names of interfaces have 15 characters; a range in brackets takes several to match one.
_PATTERN: Final = re.compile(r"([^\s/\x00-\x1f\x7f]{1,64})")
_PATTERN_RULE: Final = (
    "use up to 64 characters, no spaces or slashes, such as {example}; *, ? and [] are wildcards"
)


class _Criterion(Struct, frozen=True):
    """One key of a class: its texts as a pattern, whose group is what is kept, and as a rule.

    With `folded` the case of letters does not matter.
    """

    attribute: str
    pattern: re.Pattern[str]
    rule: str
    folded: bool = False


def _wildcard(attribute: str, example: str, *, folded: bool = False) -> _Criterion:
    return _Criterion(attribute, _PATTERN, _PATTERN_RULE.format(example=example), folded)


_ID_RULE: Final = "use 4 hexadecimal digits, such as"
_CRITERIA: Final = {
    "pciClass": _Criterion(
        "pci_class",
        _HEX_CLASS,
        'use 2, 4 or 6 hexadecimal digits, such as "0108" for NVMe or "02" for any network device',
        folded=True,
    ),
    "vendor": _Criterion("vendor", _HEX_ID, f'{_ID_RULE} "8086"', folded=True),
    "device": _Criterion("device", _HEX_ID, f'{_ID_RULE} "154c"', folded=True),
    "driver": _Criterion("driver", _DRIVER, "use the name of a kernel driver, such as vfio-pci"),
    "address": _wildcard("address", '"0000:3b:*"', folded=True),
    "interface": _wildcard("interface", "ens1f*"),
    "virtualFunctionsOf": _wildcard("virtual_functions_of", "ens1f0"),
}


class HostDeviceClasses(Struct, frozen=True):
    """`agent.hostDevices`: classes of the host's devices by resource name."""

    words: ClassVar[str] = "mapping of resources to lists of classes of devices"

    def read(
        self, reader: KeyReader, at: Field, base: tuple[HostDeviceClass, ...]
    ) -> tuple[HostDeviceClass, ...]:
        """Return the classes of all resources in their order."""
        found = _by_resource(base) if reader.merge else {}
        for resource, entry in reader.entries(at).items():
            fault = extended_resource_fault(resource)
            if fault is not None:
                reader.reject(entry, f"{shown(resource)} is not a resource of devices: {fault}")
            found[resource] = _classes(reader, entry, resource)
        _reject_same_variable(reader, at, found)
        return tuple(each for classes in found.values() for each in classes)

    def written(self, value: tuple[HostDeviceClass, ...]) -> Plain:
        """Return for each resource its classes with the criteria that they have."""
        return {
            resource: [dict(_criteria_of(each)) for each in classes]
            for resource, classes in _by_resource(value).items()
        }

    def schema(self) -> Schema:
        """Return a mapping of extended resources to criteria."""
        criteria = {
            name: nullable({"type": "string", "pattern": f"^(?:{each.pattern.pattern})$"})
            for name, each in _CRITERIA.items()
        }
        entry = {
            "type": "object",
            "properties": criteria,
            "minProperties": 1,
            "additionalProperties": False,
        }
        return {
            "type": "object",
            "propertyNames": {"pattern": "^[^/]+/[^/]+$"},
            "additionalProperties": nullable({"type": "array", "items": entry, "minItems": 1}),
        }


def variable_part(resource: str) -> str:
    """Return the name of a resource as names of environment variables have it.

    Letters become upper case, and what is neither letter nor digit an underscore, as the SR-IOV
    network device plugin does: `EXAMPLE_COM_VF` for `example.com/vf`.
    """
    return "".join(each if each.isascii() and each.isalnum() else "_" for each in resource.upper())


def _by_resource(classes: tuple[HostDeviceClass, ...]) -> dict[str, tuple[HostDeviceClass, ...]]:
    found: dict[str, tuple[HostDeviceClass, ...]] = {}
    for each in classes:
        found[each.resource] = (*found.get(each.resource, ()), each)
    return found


def criteria_text(device_class: HostDeviceClass) -> str:
    """Return the criteria of a class as the configuration has them, for a message."""
    return ", ".join(f"{name} {value}" for name, value in _criteria_of(device_class))


def _criteria_of(device_class: HostDeviceClass) -> Iterator[tuple[str, str]]:
    for name, each in _CRITERIA.items():
        value: str = getattr(device_class, each.attribute)
        if value:
            yield name, value


def _classes(reader: KeyReader, entry: Field, resource: str) -> tuple[HostDeviceClass, ...]:
    found: list[HostDeviceClass] = []
    items = list(reader.items(entry))
    if not items:
        reader.reject(entry, f"{shown(resource)} has no class; list at least one, or remove it")
    for item in items:
        before = len(reader.problems)
        each = _class(reader, item, resource)
        if each in found and len(reader.problems) == before:
            reader.reject(item, "this class is listed twice; remove one of the two")
        found.append(each)
    return tuple(found)


def _class(reader: KeyReader, item: Field, resource: str) -> HostDeviceClass:
    entries = reader.entries(item)
    before = len(reader.problems)
    reader.reject_unknown(item, _CRITERIA)
    criteria = {
        each.attribute: _criterion(reader, entries[name], each)
        for name, each in _CRITERIA.items()
        if name in entries
    }
    if not criteria and len(reader.problems) == before:
        reader.reject(
            item,
            "no criterion is given, and all devices of the host would be of this class; give at "
            f"least one of {', '.join(_CRITERIA)}",
        )
    return HostDeviceClass(resource, **criteria)


def _criterion(reader: KeyReader, field: Field, criterion: _Criterion) -> str:
    text = reader.text(field)
    if text is None:
        return ""
    found = criterion.pattern.fullmatch(text)
    if found is None:
        reader.reject(field, f"{shown(text)} matches no device: {criterion.rule}")
        return ""
    return found[1].lower() if criterion.folded else found[1]


def _reject_same_variable(
    reader: KeyReader, at: Field, found: dict[str, tuple[HostDeviceClass, ...]]
) -> None:
    """Note resources whose devices a container would find in the same environment variable."""
    first: dict[str, str] = {}
    for resource in found:
        other = first.setdefault(variable_part(resource), resource)
        if other != resource:
            reader.reject(
                at.child(resource) or at,
                f"{resource} and {other} have the same environment variable, "
                f"PCIDEVICE_{variable_part(resource)}; rename one of the two",
            )
