"""Kinds of keys whose values are amounts: reservations, eviction thresholds, sizes."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from agent.config.keys.key import nullable
from agent.config.model import MemoryReservation, Threshold
from agent.pods.model import CPU, MEMORY
from agent.pods.quantity import ZERO, Quantity, QuantityError
from agent.pods.requests import is_memory_type
from agent.pods.validation import resource_name_fault
from agent.yaml import Field, Plain, Reader, guess, shown
from sysfs.mask import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.keys.key import KeyReader, Schema

_RESERVABLE: Final = (CPU, MEMORY, "ephemeral-storage", "pid")

_SIGNALS: Final = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "allocatableMemory.available",
    "pid.available",
)

_PERCENT: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,9})?", re.ASCII)

_WHOLE: Final = 100

_RESERVED_MEMORY_KEYS: Final = ("numaNode", "limits")

#: A quantity that is not negative, as JSON schema has it: more is allowed than `Quantity` takes.
_QUANTITY_PATTERN: Final = r"\s*[+-]?[0-9]*(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?\s*"
_AMOUNT: Final[Schema] = {"type": ["string", "number"], "pattern": f"^{_QUANTITY_PATTERN}$"}


class ReservedAmounts(Struct, frozen=True):
    """`systemReserved` and `kubeReserved`: amounts by resource."""

    words: ClassVar[str] = "mapping of resources to quantities"

    def read(
        self, reader: KeyReader, at: Field, base: Mapping[str, Quantity]
    ) -> Mapping[str, Quantity]:
        """Return the amounts by resource."""
        amounts = dict(base) if reader.merge else {}
        for name, entry in reader.entries(at).items():
            if name not in _RESERVABLE and not is_memory_type(name):
                known = ", ".join(_RESERVABLE)
                reader.reject(
                    entry,
                    f"{shown(name)} cannot be reserved; {known} and hugepages-* can"
                    f"{guess(name, _RESERVABLE)}",
                )
            elif name != "pid":
                _reject_name(reader, entry, name)
            amounts[name] = quantity_of(reader, entry)
        return MappingProxyType(amounts)

    def written(self, value: Mapping[str, Quantity]) -> Plain:
        """Return the amounts in their canonical text."""
        return {name: str(amount) for name, amount in value.items()}

    def schema(self) -> Schema:
        """Return a mapping of the resources that can be reserved."""
        names = {"pattern": f"^({'|'.join(_RESERVABLE)}|hugepages-.+)$"}
        return {
            "type": "object",
            "propertyNames": names,
            "additionalProperties": nullable(_AMOUNT),
        }


class EvictionThresholds(Struct, frozen=True):
    """`evictionHard`: an amount such as `100Mi` or a share such as `5%` by signal."""

    words: ClassVar[str] = "mapping of eviction signals to quantities or percentages"

    def read(
        self, reader: KeyReader, at: Field, base: Mapping[str, Threshold]
    ) -> Mapping[str, Threshold]:
        """Return the thresholds by signal."""
        found = dict(base) if reader.merge else {}
        for signal, entry in reader.entries(at).items():
            if signal not in _SIGNALS:
                hint = guess(signal, _SIGNALS)
                reader.reject(entry, f"{shown(signal)} is not an eviction signal{hint}")
            found[signal] = _threshold(reader, entry)
        return MappingProxyType(found)

    def written(self, value: Mapping[str, Threshold]) -> Plain:
        """Return the thresholds as text."""
        return {signal: str(threshold) for signal, threshold in value.items()}

    def schema(self) -> Schema:
        """Return a mapping of the kubelet's signals."""
        share = r"[0-9]{1,3}(\.[0-9]{1,9})?%"
        threshold = {"type": ["string", "number"], "pattern": f"^({_QUANTITY_PATTERN}|{share})$"}
        return {
            "type": "object",
            "propertyNames": {"enum": list(_SIGNALS)},
            "additionalProperties": nullable(threshold),
        }


class NodeReservations(Struct, frozen=True):
    """`reservedMemory`; a node may be named again for another memory type."""

    words: ClassVar[str] = "list of mappings with numaNode and limits"

    def read(
        self, reader: KeyReader, at: Field, base: tuple[MemoryReservation, ...]
    ) -> tuple[MemoryReservation, ...]:
        """Return the reservations in their order; a list replaces that of the base."""
        del base
        seen: set[tuple[int, str]] = set()
        return tuple(_reservation(reader, item, seen) for item in reader.items(at))

    def written(self, value: tuple[MemoryReservation, ...]) -> Plain:
        """Return a mapping for each reservation."""
        return [
            {
                "numaNode": reservation.numa_node,
                "limits": {name: str(amount) for name, amount in reservation.limits.items()},
            }
            for reservation in value
        ]

    def schema(self) -> Schema:
        """Return a list of reservations."""
        limits = {
            "type": "object",
            "propertyNames": {"pattern": "^(memory|hugepages-.+)$"},
            "additionalProperties": nullable(_AMOUNT),
        }
        item = {
            "type": "object",
            "properties": {
                "numaNode": {"type": "integer", "minimum": 0, "maximum": MAX_ID},
                "limits": limits,
            },
            "required": list(_RESERVED_MEMORY_KEYS),
            "additionalProperties": False,
        }
        return {"type": "array", "items": item}


class ByteSize(Struct, frozen=True):
    """A number of bytes within bounds, both included, written as a quantity."""

    lowest: int
    highest: int

    @property
    def words(self) -> str:
        """The type and its bounds in words."""
        low, high = Quantity.of_bytes(self.lowest), Quantity.of_bytes(self.highest)
        return f"bytes as a quantity from {low} to {high}"

    def read(self, reader: Reader, at: Field, base: int) -> int:
        """Return the number of bytes."""
        quantity = quantity_of(reader, at)
        whole = quantity.as_int64()
        if whole is None or not self.lowest <= whole <= self.highest:
            low, high = Quantity.of_bytes(self.lowest), Quantity.of_bytes(self.highest)
            reader.reject(at, f"{quantity} is not a number of bytes from {low} to {high}")
            return base
        return whole

    def written(self, value: int) -> Plain:
        """Return the number with a binary suffix."""
        return str(Quantity.of_bytes(value))

    def schema(self) -> Schema:
        """Return a quantity; a plain number has the bounds as well."""
        return {**_AMOUNT, "minimum": self.lowest, "maximum": self.highest}


def quantity_of(reader: Reader, field: Field) -> Quantity:
    """Return an amount that is not negative; zero beside a note where there is none."""
    text = reader.amount(field)
    if text is None:
        return ZERO
    try:
        quantity = Quantity.parse(text)
    except QuantityError as error:
        reader.reject(field, f"{shown(error.text)} is not a quantity: {error.reason}")
        return ZERO
    if quantity < ZERO:
        reader.reject(field, f"{text} is negative; an amount is zero or more")
        return ZERO
    return quantity


def _reservation(reader: KeyReader, item: Field, seen: set[tuple[int, str]]) -> MemoryReservation:
    reader.entries(item)
    reader.reject_unknown(item, _RESERVED_MEMORY_KEYS)
    for key in _RESERVED_MEMORY_KEYS:
        if item.child(key) is None:
            reader.reject(item, f"{key} is missing")
    node_field, limits = item.child("numaNode"), item.child("limits")
    node = reader.integer(node_field, 0, MAX_ID) if node_field is not None else None
    entries = reader.entries(limits) if limits is not None else {}
    amounts = {name: _reserved_amount(reader, name, entry) for name, entry in entries.items()}
    for name, entry in entries.items():
        if node is not None and (node, name) in seen:
            reader.reject(entry, f"{name} of node {node} is reserved twice")
        seen.add((-1 if node is None else node, name))
    return MemoryReservation(node or 0, MappingProxyType(amounts))


def _reserved_amount(reader: KeyReader, name: str, entry: Field) -> Quantity:
    if not is_memory_type(name):
        reader.reject(entry, f"{shown(name)} is not a memory type; memory and hugepages-* are")
        return ZERO
    _reject_name(reader, entry, name)
    amount = quantity_of(reader, entry)
    if not amount or amount.as_int64() is None:
        reader.reject(entry, f"{amount} is not a positive whole number of bytes")
    return amount


def _reject_name(reader: KeyReader, entry: Field, name: str) -> None:
    fault = resource_name_fault(name)
    if fault is not None:
        reader.reject(entry, f"{shown(name)} is not a resource: {fault}")


def _threshold(reader: KeyReader, field: Field) -> Threshold:
    text = reader.amount(field)
    if text is None:
        return Threshold(ZERO)
    if not text.endswith("%"):
        return Threshold(quantity_of(reader, field))
    share = text.removesuffix("%")
    if not _PERCENT.fullmatch(share) or float(share) > _WHOLE:
        reader.reject(field, f"{shown(text)} is not a share from 0% to 100%")
        return Threshold(ZERO)
    return Threshold(percent=share)
