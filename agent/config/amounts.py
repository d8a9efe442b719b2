"""Read amounts: reservations, eviction thresholds, sizes, durations as Go writes them (`1m30s`)."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.config.config import MemoryReservation, Threshold
from agent.config.settings import RESERVED_MEMORY_KEYS
from agent.parsing.fields import Reader, guess
from agent.parsing.nodes import shown
from agent.pods.errors import QuantityError
from agent.pods.model import CPU, MEMORY
from agent.pods.quantity import ZERO, Quantity
from agent.pods.requests import is_memory_type
from agent.pods.validation import resource_name_fault
from sysfs.mask import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.parsing.fields import Field

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


class AmountReader(Reader):
    """Reads amounts; with `merge`, mappings are added to those of the base."""

    merge: bool = False

    def reserved(
        self, root: Field, key: str, base: Mapping[str, Quantity]
    ) -> Mapping[str, Quantity]:
        """Return `systemReserved` or `kubeReserved`."""
        field = root.child(key)
        if field is None:
            return base
        amounts = dict(base) if self.merge else {}
        for name, entry in self.entries(field).items():
            if name not in _RESERVABLE and not is_memory_type(name):
                known = ", ".join(_RESERVABLE)
                self.reject(
                    entry,
                    f"{shown(name)} cannot be reserved; {known} and hugepages-* can"
                    f"{guess(name, _RESERVABLE)}",
                )
            elif name != "pid":
                self._reject_name(entry, name)
            amounts[name] = self.quantity(entry)
        return MappingProxyType(amounts)

    def reserved_memory(
        self, root: Field, base: tuple[MemoryReservation, ...]
    ) -> tuple[MemoryReservation, ...]:
        """Return `reservedMemory`; a node may be named again for another memory type."""
        field = root.child("reservedMemory")
        if field is None:
            return base
        seen: set[tuple[int, str]] = set()
        return tuple(self._reservation(item, seen) for item in self.items(field))

    def thresholds(
        self, root: Field, key: str, base: Mapping[str, Threshold]
    ) -> Mapping[str, Threshold]:
        """Return eviction thresholds: an amount such as `100Mi` or a share such as `5%`."""
        field = root.child(key)
        if field is None:
            return base
        found = dict(base) if self.merge else {}
        for signal, entry in self.entries(field).items():
            if signal not in _SIGNALS:
                hint = guess(signal, _SIGNALS)
                self.reject(entry, f"{shown(signal)} is not an eviction signal{hint}")
            found[signal] = self._threshold(entry)
        return MappingProxyType(found)

    def quantity(self, field: Field) -> Quantity:
        """Return an amount that is not negative; zero beside a note where there is none."""
        text = self.amount(field)
        if text is None:
            return ZERO
        try:
            quantity = Quantity.parse(text)
        except QuantityError as error:
            self.reject(field, f"{shown(error.text)} is not a quantity: {error.reason}")
            return ZERO
        if quantity < ZERO:
            self.reject(field, f"{text} is negative; an amount is zero or more")
            return ZERO
        return quantity

    def size(self, parent: Field, key: str, base: int, lowest: int, highest: int) -> int:
        """Return a number of bytes within bounds, written as a quantity."""
        field = parent.child(key)
        if field is None:
            return base
        quantity = self.quantity(field)
        whole = quantity.as_int64()
        if whole is None or not lowest <= whole <= highest:
            low, high = Quantity.of_bytes(lowest), Quantity.of_bytes(highest)
            self.reject(field, f"{quantity} is not a number of bytes from {low} to {high}")
            return base
        return whole

    def scalar_text(self, field: Field) -> str | None:
        """Return a text, a number or a boolean as text, since options are texts to the kubelet."""
        return (
            self.amount(field) if not self.is_boolean(field) else str(self.boolean(field)).lower()
        )

    def _reservation(self, item: Field, seen: set[tuple[int, str]]) -> MemoryReservation:
        self.entries(item)
        self.reject_unknown(item, RESERVED_MEMORY_KEYS)
        for key in RESERVED_MEMORY_KEYS:
            if item.child(key) is None:
                self.reject(item, f"{key} is missing")
        node_field, limits = item.child("numaNode"), item.child("limits")
        node = self.integer(node_field, 0, MAX_ID) if node_field is not None else None
        entries = self.entries(limits) if limits is not None else {}
        amounts = {name: self._reserved_amount(name, entry) for name, entry in entries.items()}
        for name, entry in entries.items():
            if node is not None and (node, name) in seen:
                self.reject(entry, f"{name} of node {node} is reserved twice")
            seen.add((-1 if node is None else node, name))
        return MemoryReservation(node or 0, MappingProxyType(amounts))

    def _reserved_amount(self, name: str, entry: Field) -> Quantity:
        if not is_memory_type(name):
            self.reject(entry, f"{shown(name)} is not a memory type; memory and hugepages-* are")
            return ZERO
        self._reject_name(entry, name)
        amount = self.quantity(entry)
        if not amount or amount.as_int64() is None:
            self.reject(entry, f"{amount} is not a positive whole number of bytes")
        return amount

    def _reject_name(self, entry: Field, name: str) -> None:
        fault = resource_name_fault(name)
        if fault is not None:
            self.reject(entry, f"{shown(name)} is not a resource: {fault}")

    def _threshold(self, field: Field) -> Threshold:
        text = self.amount(field)
        if text is None:
            return Threshold(ZERO)
        if not text.endswith("%"):
            return Threshold(self.quantity(field))
        share = text.removesuffix("%")
        if not _PERCENT.fullmatch(share) or float(share) > _WHOLE:
            self.reject(field, f"{shown(text)} is not a share from 0% to 100%")
            return Threshold(ZERO)
        return Threshold(percent=share)


_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(h|ms|us|µs|ns|m|s)", re.ASCII)

_MAX_TEXT: Final = 64


def seconds_of(text: str) -> float | None:
    """Return a duration in seconds; None for a text that is none. A bare `0` is one."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text) if len(text) <= _MAX_TEXT else ()
    if not parts or "".join(map("".join, parts)) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
