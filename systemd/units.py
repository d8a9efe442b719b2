"""Names of units, their resource properties as D-Bus values, and what can go wrong with them.

The properties are those of org.freedesktop.systemd1(5), times are microseconds. systemd keeps
properties in drop-in files, where a CPU quota is a whole percentage of one CPU: a finer value is
applied as given, but rounded down at the next daemon-reload. So a quota is rounded up to whole
percents here, never tighter than asked.

The rules of names, and where a slice's cgroup is, are those of systemd.unit(5). A D-Bus error keeps
its name (`org.freedesktop.systemd1.NoSuchUnit`), so that a caller can distinguish rejections.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from sysfs.mask import Mask


class SystemdError(Exception):
    """Base of this package's errors."""


class UnitNameError(SystemdError, ValueError):
    """A text that is not the name of a unit, or not of the type that was needed."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name!r} is not usable as a unit name: {why}")


class BusUnavailableError(SystemdError):
    """The system bus cannot be reached, or the connection to it broke."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(
            f"the system bus at {address} cannot be used: {why}; check that dbus and systemd run, "
            "or set cgroupDriver: cgroupfs where there is no systemd"
        )


class BusTimeoutError(SystemdError):
    """systemd did not answer, or did not finish a job, before the deadline."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(
            f"systemd did not finish {what} within {seconds:g} s; it may still do so: "
            "read the unit's state before trying again"
        )


class BusSilentError(BusUnavailableError):
    """The socket of the bus accepts connections but does not answer."""


class NotAskedError(SystemdError):
    """systemd did not answer (`silence`), so it was not asked again for now."""

    def __init__(self, silence: BusTimeoutError | BusUnavailableError) -> None:
        super().__init__(f"systemd is asked again at the next comparison only: {silence}")
        self.silence = silence


class BusError(SystemdError):
    """systemd answered with an error."""

    def __init__(self, what: str, name: str, message: str) -> None:
        super().__init__(f"systemd rejected {what}: {message or 'no reason given'} ({name})")
        self.name = name


class NoSuchUnitError(BusError):
    """The unit is not loaded (`org.freedesktop.systemd1.NoSuchUnit`)."""


class UnitExistsError(BusError):
    """The unit is loaded already (`org.freedesktop.systemd1.UnitExists`)."""


class JobFailedError(SystemdError):
    """A start or stop was queued and ended otherwise than done (systemd's job results)."""

    def __init__(self, unit: str, job: str, result: str) -> None:
        super().__init__(f"systemd could not {job} {unit}: its job ended as {result!r}")


class ProtocolError(SystemdError):
    """An answer that does not have the documented form."""

    def __init__(self, what: str, answer: object) -> None:
        super().__init__(f"systemd answered {what} with {answer!r}, which was not expected")


UNIT_NAME_MAX: Final = 255
_TYPES: Final = frozenset(
    {
        "automount",
        "device",
        "mount",
        "path",
        "scope",
        "service",
        "slice",
        "socket",
        "swap",
        "target",
        "timer",
    }
)
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9:_.\\@-]+")
_ROOT_SLICE: Final = "-.slice"
#: Names that would collide with the kernel's files in a cgroup's directory.
_KERNEL_FILES: Final = frozenset({"tasks", "notify_on_release", "release_agent"})
_KERNEL_PREFIXES: Final = (
    "cgroup.", "cpu.", "cpuset.", "cpuacct.", "io.", "blkio.", "memory.", "devices.", "pids.",
)  # fmt: skip


#: The kinds of units that have cgroups.
_WITH_CGROUPS: Final = (".slice", ".scope", ".service")


def unit_of(cgroup: str) -> str | None:
    """Return the unit that a cgroup is named after, None when the name is not a unit's."""
    name = cgroup.rpartition("/")[2]
    return name if name.endswith(_WITH_CGROUPS) else None


def check_unit(name: str, kind: str | None = None) -> str:
    """Return `name` if it is a valid unit name (of type `kind`), else raise `UnitNameError`."""
    if len(name) > UNIT_NAME_MAX:
        raise UnitNameError(name[:40] + "…", f"it is longer than {UNIT_NAME_MAX} characters")
    stem, dot, suffix = name.rpartition(".")
    if not dot or suffix not in _TYPES:
        raise UnitNameError(name, "it has no unit type, such as .slice or .scope")
    if not stem or not _CHARACTERS.fullmatch(stem) or stem.startswith("@"):
        raise UnitNameError(name, r"use letters, digits and : _ . \ - @ only")
    if kind is not None and suffix != kind:
        raise UnitNameError(name, f"a .{kind} is needed")
    return name


def slice_path(name: str) -> str:
    """Return the cgroup path of a slice, relative to the root: `a-b.slice` is `a.slice/a-b.slice`.

    Raises `UnitNameError` for a name that systemd rejects: another unit type, a leading or
    trailing `-`, or `--`. The root slice `-.slice` is `""`.
    """
    check_unit(name, "slice")
    if name == _ROOT_SLICE:
        return ""
    parts = name.removesuffix(".slice").split("-")
    if not all(parts):
        raise UnitNameError(name, "a slice's name has single dashes, between parts")
    names = ("-".join(parts[: depth + 1]) + ".slice" for depth in range(len(parts)))
    return "/".join(cgroup_component(each) for each in names)


def cgroup_component(unit: str) -> str:
    """Return the directory's name of a unit: itself, or with `_` before it where it would collide.

    systemd does so for names that look like the kernel's files or begin with `_` or `.`.
    """
    collides = unit in _KERNEL_FILES or unit.startswith(("_", ".", *_KERNEL_PREFIXES))
    return f"_{unit}" if collides else unit


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


def cpuset_partition(word: str) -> Property:
    """Return `CPUSetPartition` (systemd >= 261): `member`, `root` or `isolated`.

    The signature follows from the setting's values; no systemd 261 was tried.
    """
    return Property("CPUSetPartition", "s", word)


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
