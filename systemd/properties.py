"""Resource properties of units as D-Bus values (org.freedesktop.systemd1(5)).

Times are microseconds. systemd keeps properties in drop-in files, where a CPU quota is a whole
percentage of one CPU: a finer value is applied as given, but rounded down at the next
daemon-reload. So a quota is rounded up to whole percents here, never tighter than asked.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from sysfs.mask import Mask

#: `t` values: no limit, or not set.
INFINITY: Final = (1 << 64) - 1
SECOND_US: Final = 1_000_000
#: systemd's period where `CPUQuotaPeriodUSec` is not set.
DEFAULT_PERIOD_US: Final = 100_000
_PERCENT_US: Final = SECOND_US // 100
#: The weight of a unit that states none (CPUWeight= in systemd.resource-control).
DEFAULT_WEIGHT: Final = 100
_MIN_WEIGHT: Final = 1
_MAX_WEIGHT: Final = 10_000

Value = bytes | int | str | bool | tuple[int, ...]


class Property(Struct, frozen=True):
    """One property: its D-Bus name, type signature and value."""

    name: str
    signature: str
    value: Value


def allowed_cpus(cpus: Mask) -> Property:
    """Return `AllowedCPUs` (systemd >= 244); the empty set resets it but widens no running unit."""
    return Property("AllowedCPUs", "ay", mask_bytes(cpus))


def allowed_memory_nodes(nodes: Mask) -> Property:
    """Return `AllowedMemoryNodes` (systemd >= 244)."""
    return Property("AllowedMemoryNodes", "ay", mask_bytes(nodes))


def cpu_quota(quota_us: int | None, period_us: int = DEFAULT_PERIOD_US) -> tuple[Property, ...]:
    """Return the properties for `quota_us` per `period_us`, None for no limit.

    `CPUQuotaPeriodUSec` (systemd >= 242) is left out at systemd's own period.
    """
    per_second = INFINITY if quota_us is None else _per_second(quota_us, period_us)
    quota = Property("CPUQuotaPerSecUSec", "t", per_second)
    if period_us == DEFAULT_PERIOD_US:
        return (quota,)
    return quota, Property("CPUQuotaPeriodUSec", "t", period_us)


def cpu_weight(weight: int) -> Property:
    """Return `CPUWeight` (1 to 10000); setting any keeps the `cpu` controller on for the unit."""
    if not _MIN_WEIGHT <= weight <= _MAX_WEIGHT:
        raise ValueError(f"CPUWeight is between {_MIN_WEIGHT} and {_MAX_WEIGHT}, not {weight}")
    return Property("CPUWeight", "t", weight)


def memory_max(size: int | None) -> Property:
    """Return `MemoryMax` in bytes, None for no limit."""
    return number("MemoryMax", size)


def number(name: str, value: int | None) -> Property:
    """Return a property that is a number, None for no limit."""
    return Property(name, "t", INFINITY if value is None else value)


def description(text: str) -> Property:
    """Return the unit's `Description`."""
    return Property("Description", "s", text)


def in_slice(name: str) -> Property:
    """Return the `Slice` of a new unit."""
    return Property("Slice", "s", name)


def processes(pids: tuple[int, ...]) -> Property:
    """Return `PIDs`: the processes that a new scope is made around."""
    return Property("PIDs", "au", pids)


def mask_bytes(mask: Mask) -> bytes:
    """Return a set as systemd's bit mask: bit *n* of byte *n/8*, no trailing zero bytes."""
    return mask.bits.to_bytes((mask.bits.bit_length() + 7) // 8, "little")


def bytes_mask(data: bytes) -> Mask:
    """Return the set of a bit mask that systemd gave."""
    return Mask(int.from_bytes(data, "little"))


def written_quota(per_second_us: int, period_us: int = INFINITY) -> tuple[int | None, int]:
    """Return quota (None: no limit) and period that systemd writes into `cpu.max`, microseconds.

    The quota is at least the kernel's smallest: systemd lengthens the period until it is
    (cgroup_cpu_adjust_period in src/core/cgroup.c).
    """
    period = DEFAULT_PERIOD_US if period_us == INFINITY else period_us
    if per_second_us == INFINITY:
        return None, period
    shortest = -(-_KERNEL_MIN_US * SECOND_US // per_second_us)
    period = min(max(period, _KERNEL_MIN_US, shortest), SECOND_US)
    return max(per_second_us * period // SECOND_US, _KERNEL_MIN_US), period


_KERNEL_MIN_US: Final = 1_000


def _per_second(quota_us: int, period_us: int) -> int:
    exact = -(-quota_us * SECOND_US // period_us)
    return -(-exact // _PERCENT_US) * _PERCENT_US
