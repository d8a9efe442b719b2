"""What enforcement needs of systemd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from cgroupfs.verify import Record

_SUFFIXES: Final = (".slice", ".scope", ".service")


class UnitError(Exception):
    """systemd refused or could not be reached; the message says what and why, in one line."""


class Units(Protocol):
    """The service manager. Every method blocks and raises `UnitError`."""

    def check(self) -> None:
        """Raise unless systemd answers."""
        ...

    def cgroup_of(self, unit: str) -> str | None:
        """Return the cgroup of an active unit, relative to the root; None when it is not active."""
        ...

    def start_slice(self, slice_unit: str) -> None:
        """Start a transient slice, and the slices above it; one that is active is left alone."""
        ...

    def properties(self, unit: str) -> Record:
        """Return what systemd itself holds of a unit and would write again."""
        ...

    def set_properties(self, unit: str, record: Record) -> None:
        """Set AllowedCPUs, AllowedMemoryNodes and CPUQuota of a unit at run time."""
        ...

    def stop(self, unit: str) -> None:
        """Stop a unit and wait until it is stopped."""
        ...


def unit_of(cgroup: str) -> str | None:
    """Return the unit that a cgroup is called after, None when its name is no unit's."""
    name = cgroup.rpartition("/")[2]
    return name if name.endswith(_SUFFIXES) else None
