"""Kinds of amounts: sizes in bytes, and what `systemReserved`, `evictionHard` and the like hold.

An amount is written as a `Quantity` of Kubernetes (`500m`, `1Gi`) and is zero or more.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.config.keys import Section, item_schema, key, parts, read, written
from agent.config.kinds import Kind, mapping_kind, text_kind, whole_number
from agent.pods.model import CPU, MEMORY, PID
from agent.pods.quantity import ZERO, Quantity, QuantityError
from agent.pods.requests import is_memory_type
from agent.pods.validation import resource_name_fault
from agent.yaml import shown
from sysfs.mask import MAX_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config.kinds import KeyReader, Schema
    from agent.yaml import Field

#: JSON schema allows more than `Quantity.parse` takes.
_PATTERN: Final = r"\s*[+-]?[0-9]*(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?\s*"
_AMOUNT: Final[Schema] = {"type": ["string", "number"], "pattern": f"^{_PATTERN}$"}


def _amount(text: str) -> Quantity:
    try:
        quantity = Quantity.parse(text)
    except QuantityError as error:
        raise ValueError(f"{shown(error.text)} is not a quantity: {error.reason}") from error
    if quantity < ZERO:
        raise ValueError(f"{text} is negative; an amount is zero or more")
    return quantity


def byte_size(lowest: int, highest: int) -> Kind[int]:
    """Return the kind of a number of bytes within bounds, both included, written as a quantity."""
    words = f"from {Quantity.of_bytes(lowest)} to {Quantity.of_bytes(highest)}"

    def parse(text: str) -> int:
        quantity = _amount(text)
        size = quantity.as_int64()
        if size is None or not lowest <= size <= highest:
            raise ValueError(f"{quantity} is not a number of bytes {words}")
        return size

    return text_kind(
        f"bytes as a quantity {words}",
        {**_AMOUNT, "minimum": lowest, "maximum": highest},  # the bounds are of a plain number
        parse,
        written=lambda size: str(Quantity.of_bytes(size)),
        amount=True,
    )


_RESERVABLE: Final = (CPU, MEMORY, "ephemeral-storage", PID)


def _check_resource(reader: KeyReader, name: str, at: Field) -> None:
    if name not in _RESERVABLE and not is_memory_type(name):
        known = f"{', '.join(_RESERVABLE)} and hugepages-* can"
        hint = reader.guess(name, _RESERVABLE)
        reader.reject(at, f"{shown(name)} cannot be reserved; {known}{hint}")
    elif name != PID and (fault := resource_name_fault(name)) is not None:
        reader.reject(at, f"{shown(name)} is not a resource: {fault}")


#: `systemReserved` and `kubeReserved`: amounts by resource.
RESERVED_AMOUNTS: Final = mapping_kind(
    "mapping of resources to quantities",
    {"pattern": f"^({'|'.join(_RESERVABLE)}|hugepages-.+)$"},
    text_kind("quantity", _AMOUNT, _amount, amount=True),
    ZERO,
    _check_resource,
)


MEMORY_AVAILABLE: Final = "memory.available"
_SIGNALS: Final = (
    MEMORY_AVAILABLE,
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


class Threshold(Struct, frozen=True):
    """An eviction threshold: an amount, or a share of the capacity in percent."""

    amount: Quantity | None = None
    #: A text, because the kubelet computes with it in single precision.
    percent: str | None = None

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent is not None else str(self.amount)


def _threshold(text: str) -> Threshold:
    if not text.endswith("%"):
        return Threshold(_amount(text))
    share = text.removesuffix("%")
    if not _PERCENT.fullmatch(share) or float(share) > _WHOLE:
        raise ValueError(f"{shown(text)} is not a share from 0% to 100%")
    return Threshold(percent=share)


def _check_signal(reader: KeyReader, signal: str, at: Field) -> None:
    if signal not in _SIGNALS:
        hint = reader.guess(signal, _SIGNALS)
        reader.reject(at, f"{shown(signal)} is not an eviction signal{hint}")


#: `evictionHard`: an amount such as `100Mi` or a share such as `5%` by signal.
EVICTION_THRESHOLDS: Final = mapping_kind(
    "mapping of eviction signals to quantities or percentages",
    {"enum": list(_SIGNALS)},
    text_kind(
        "quantity or percentage",
        {
            "type": ["string", "number"],
            "pattern": rf"^({_PATTERN}|[0-9]{{1,3}}(\.[0-9]{{1,9}})?%)$",
        },
        _threshold,
        amount=True,
    ),
    Threshold(ZERO),
    _check_signal,
)


def _positive(text: str) -> Quantity:
    amount = _amount(text)
    if not amount or amount.as_int64() is None:
        raise ValueError(f"{amount} is not a positive whole number of bytes")
    return amount


def _check_memory_type(reader: KeyReader, name: str, at: Field) -> None:
    if not is_memory_type(name):
        reader.reject(at, f"{shown(name)} is not a memory type; memory and hugepages-* are")
    else:
        _check_resource(reader, name, at)


class MemoryReservation(Section, frozen=True):
    """One entry of `reservedMemory`."""

    numa_node: int = key(
        0, whole_number(0, MAX_ID), "The NUMA node that keeps the amounts.", is_required=True
    )
    limits: Mapping[str, Quantity] = key(
        MappingProxyType({}),
        mapping_kind(
            "mapping of memory types to quantities",
            {"pattern": "^(memory|hugepages-.+)$"},
            text_kind("quantity", _AMOUNT, _positive, amount=True),
            ZERO,
            _check_memory_type,
        ),
        "The amounts by memory type: memory, hugepages-2Mi and the like.",
        is_required=True,
    )


def _reservations(
    reader: KeyReader, at: Field, _: tuple[MemoryReservation, ...]
) -> tuple[MemoryReservation, ...]:
    """Read the list; a node may come again for another type, not for the same one."""
    reservations: list[MemoryReservation] = []
    seen: set[tuple[int, str]] = set()
    for item in reader.items(at):
        mistakes = len(reader.problems)
        reservation = read(reader, item, MemoryReservation())
        reservations.append(reservation)
        if len(reader.problems) > mistakes:
            continue
        node = reservation.numa_node
        for name, entry in reader.entries(reader.entries(item)["limits"]).items():
            if (node, name) in seen:
                reader.reject(entry, f"{name} of node {node} is reserved twice")
            seen.add((node, name))
    return tuple(reservations)


#: `reservedMemory`: the list replaces that of the base.
RESERVED_MEMORY: Final[Kind[tuple[MemoryReservation, ...]]] = Kind(
    "list of mappings with numaNode and limits",
    {"type": "array", "items": item_schema(MemoryReservation)},
    _reservations,
    lambda reservations: [written(reservation) for reservation in reservations],
    parts=parts(MemoryReservation),
)
