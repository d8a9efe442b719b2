"""A systemd that behaves as the real one was seen to (version 257), on an emulated kernel.

What matters of it: it rewrites a unit's files from its own record whenever a property of that unit
is set; after a daemon-reload the next unit that is started or changed makes it rewrite every
sibling, the slices around it and their siblings; it switches controllers off that no unit asked
for; and it reports success even when the kernel rejects a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cgroupfs.settings import CPU_MAX, MEMBER, PARTITION, VALUES
from cgroupfs.tree import join, parent
from systemd.bus import ActiveState
from systemd.units import (
    INFINITY,
    BusError,
    NoSuchUnitError,
    Property,
    UnitExistsError,
    bytes_mask,
    check_unit,
    cpuset_partition,
    slice_path,
    written_quota,
)
from tests.fakes.one_by_one import OneByOne

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cgroupfs.emulated.kernel import EmulatedKernel

_MANAGED: Final = ("cpuset", "cpu", "io", "memory", "pids")
_ALWAYS: Final = frozenset({"memory", "pids"})
#: What systemd shows of an unset property, where that is not empty.
_NUMBERS: Final = tuple(row for row in VALUES if row.unit_property and row.file != CPU_MAX)
_QUOTA: Final = ("CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec")
_PARTITION: Final = cpuset_partition(MEMBER).name
_UNSET: Final = {
    **dict.fromkeys((*(row.unit_property for row in _NUMBERS), *_QUOTA), INFINITY),
    **dict.fromkeys(("AllowedCPUs", "AllowedMemoryNodes"), b""),
    **dict.fromkeys(("CPUAffinity", "NUMAMask"), b""),
    "NUMAPolicy": -1,
    _PARTITION: MEMBER,
}
_NEEDS: Final = {
    "AllowedCPUs": "cpuset",
    "AllowedMemoryNodes": "cpuset",
    **dict.fromkeys(_QUOTA, "cpu"),
    **{row.unit_property: row.controller for row in _NUMBERS},
}


@dataclass(slots=True)
class Unit:
    """One loaded unit and what systemd has on record for it."""

    name: str
    path: str
    delegate: bool = False
    properties: dict[str, object] = field(default_factory=dict)
    #: systemd no longer knows the files of its cgroup (after a reload).
    stale: bool = False
    #: The controllers that systemd believes it passes on; None when it does not know.
    passes_on: frozenset[str] | None = None

    def as_properties(self) -> tuple[Property, ...]:
        return tuple(Property(name, "", value) for name, value in self.properties.items())  # type: ignore[arg-type]

    @property
    def needs(self) -> frozenset[str]:
        """The controllers that this unit itself asks for; what is infinite asks for nothing."""
        asked = {
            _NEEDS[name]
            for name, value in self.properties.items()
            if name in _NEEDS and value != INFINITY
        }
        return _ALWAYS | asked | (frozenset(_MANAGED) if self.delegate else frozenset())


class FakeSystemd(OneByOne):
    """`systemd.bus.Systemd` over an emulated kernel. `journal` has its complaints."""

    def __init__(self, kernel: EmulatedKernel) -> None:
        self.kernel = kernel
        self.units: dict[str, Unit] = {"-.slice": Unit("-.slice", "")}
        self.journal: list[str] = []
        #: Whether it has the property of partitions, as systemd 261 has.
        self.partitions = False
        self.calls: list[tuple[str, str]] = []
        #: Drop-ins that remain of slices that did not run when a property was set.
        self.drop_ins: set[str] = set()
        #: Services that were stopped: their properties stay on record.
        self.stopped: dict[str, Unit] = {}
        self._realize(self.units["-.slice"])

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        self.calls.append(("start", unit))
        given = {prop.name: prop.value for prop in properties}
        if unit.endswith(".scope"):
            slice_name, pids = given["Slice"], given["PIDs"]
            assert isinstance(slice_name, str)
            assert isinstance(pids, tuple)
            path = join(slice_path(slice_name), unit)
            self._start(unit, path, ())
            for pid in pids:
                self.kernel.write(path, "cgroup.procs", str(pid))
            return
        check_unit(unit, "slice")
        self._start(unit, slice_path(unit), properties)

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        self.calls.append(("set", unit))
        check_unit(unit)
        self._check(unit, *(prop.name for prop in properties))
        known = self.units.get(unit)
        if known is None and unit in self.stopped:
            self._record(self.stopped[unit], properties)
            return
        if known is None:
            if not unit.endswith(".slice"):
                raise NoSuchUnitError("SetUnitProperties", "NoSuchUnit", unit)
            self.drop_ins.add(unit)
            self._make(slice_path(unit))
            return
        self._record(known, properties)
        self._realize(known)
        self._write(known)

    def stop(self, unit: str) -> None:
        self.calls.append(("stop", unit))
        known = self.units.get(unit)
        if known is None:
            if unit.endswith(".slice"):
                return
            raise NoSuchUnitError("StopUnit", "NoSuchUnit", unit)
        del self.units[unit]
        self._trim(known.path)

    def active_state(self, unit: str) -> ActiveState:
        return ActiveState.ACTIVE if unit in self.units else ActiveState.INACTIVE

    def control_group(self, unit: str) -> str:
        return self._unit(unit).path

    def unit_properties(self, unit: str, *names: str) -> tuple[object, ...]:
        known = self._unit(unit)
        self._check(unit, *names)
        shown = {**_UNSET, **known.properties, "ControlGroup": f"/{known.path}"}
        return tuple(shown.get(name) for name in names)

    def start_scope(
        self, name: str, slice_name: str, pid: int, *properties: Property, delegate: bool = False
    ) -> str:
        """Start a scope with one process, as `systemd-run --scope` or a container runtime does."""
        path = join(slice_path(slice_name), name)
        self._start(name, path, properties, delegate=delegate)
        self.kernel.spawn(path, pid)
        return path

    def start_service(self, name: str, pid: int, slice_name: str = "system.slice") -> str:
        """Start a service with one process; what is on record of it applies from its start."""
        path = join(slice_path(slice_name), name)
        kept = self.stopped.pop(name, None)
        self._start(name, path, () if kept is None else kept.as_properties())
        self.kernel.spawn(path, pid)
        return path

    def stop_service(self, name: str) -> None:
        """End the processes of a service; its cgroup goes, the record stays."""
        unit = self.stopped[name] = self.units.pop(name)
        for pid in self.kernel.procs(unit.path):
            self.kernel.exit(pid)
        self.kernel.rmdir(unit.path)

    def daemon_reload(self) -> None:
        """Read all units again: nothing is written, but all that was known is stale."""
        for unit in self.units.values():
            unit.stale, unit.passes_on = True, None

    def _start(
        self, name: str, path: str, properties: Sequence[Property], *, delegate: bool = False
    ) -> None:
        if name in self.units:
            raise UnitExistsError("StartTransientUnit", "UnitExists", name)
        self._make(parent(path))
        if not self.kernel.exists(path):
            self.kernel.mkdir(path)
        unit = self.units[name] = Unit(name, path, delegate)
        self._record(unit, properties)
        self._realize(unit)
        self._write(unit)

    def _make(self, path: str) -> None:
        """Start the slices of a path that do not run yet."""
        if not path or self.kernel.exists(path):
            return
        self._make(parent(path))
        self.kernel.mkdir(path)
        name = path.rpartition("/")[2]
        if name not in self.drop_ins:
            self.units[name] = Unit(name, path)

    def _record(self, unit: Unit, properties: Sequence[Property]) -> None:
        for prop in properties:
            if prop.value == b"":
                unit.properties.pop(prop.name, None)
            else:
                unit.properties[prop.name] = prop.value

    def _realize(self, unit: Unit) -> None:
        """Bring controllers up to date, and every stale unit of the family."""
        family = list(self._family(unit))
        below = self._needs_below()
        for slice_unit in sorted(family, key=lambda u: len(u.path)):
            if slice_unit.name.endswith(".slice"):
                self._pass_on(slice_unit, frozenset(below.get(slice_unit.path, ())))
        for other in family:
            if other.stale:
                self._write(other)

    def _family(self, unit: Unit) -> Iterator[Unit]:
        """Yield the unit, its siblings, its slice, the slice's siblings, and so on up."""
        seen: set[str] = set()
        path = unit.path
        while True:
            for other in list(self.units.values()):
                near = other.path == path or (path and parent(other.path) == parent(path))
                if near and other.name not in seen:
                    seen.add(other.name)
                    yield other
            if not path:
                return
            path = parent(path)

    def _needs_below(self) -> dict[str, set[str]]:
        """Return what all units below each path ask for together."""
        below: dict[str, set[str]] = {}
        for unit in self.units.values():
            needs, path = unit.needs, unit.path
            while path:
                path = parent(path)
                below.setdefault(path, set()).update(needs)
        return below

    def _pass_on(self, unit: Unit, mask: frozenset[str]) -> None:
        if unit.passes_on == mask:
            return
        unit.passes_on = mask
        for name in _MANAGED:
            sign = "+" if name in mask else "-"
            self._put(unit.path, "cgroup.subtree_control", f"{sign}{name}")

    def _write(self, unit: Unit) -> None:
        unit.stale = False
        if not unit.path:
            return
        per_second = unit.properties.get("CPUQuotaPerSecUSec", INFINITY)
        period = unit.properties.get("CPUQuotaPeriodUSec", INFINITY)
        assert isinstance(per_second, int)
        assert isinstance(period, int)
        quota, period = written_quota(per_second, period)
        self._put(unit.path, "cpu.max", f"{'max' if quota is None else quota} {period}")
        for row in _NUMBERS:
            value = unit.properties.get(row.unit_property, INFINITY)
            self._put(unit.path, row.file, row.unset if value == INFINITY else str(value))
        self._put(unit.path, "cpuset.cpus", self._list(unit, "AllowedCPUs"))
        self._put(unit.path, "cpuset.mems", self._list(unit, "AllowedMemoryNodes"))
        if (word := unit.properties.get(_PARTITION)) is not None:
            self._put(unit.path, PARTITION, str(word))

    @staticmethod
    def _list(unit: Unit, name: str) -> str:
        value = unit.properties.get(name, b"")
        assert isinstance(value, bytes)
        return str(bytes_mask(value)) or "\n"

    def _put(self, path: str, file: str, value: str) -> None:
        try:
            self.kernel.write(path, file, value)
        except FileNotFoundError:
            return
        except OSError as error:
            self.journal.append(f"{path}/{file}: {error.strerror}")

    def _check(self, unit: str, *names: str) -> None:
        if _PARTITION in names and not self.partitions:
            raise BusError(unit, "org.freedesktop.DBus.Error.UnknownProperty", _PARTITION)

    def _unit(self, name: str) -> Unit:
        if name not in self.units:
            raise NoSuchUnitError("GetUnit", "NoSuchUnit", name)
        return self.units[name]

    def _trim(self, path: str) -> None:
        """Remove a cgroup and those in it as far as no process lives there, as `cg_trim` does.

        Scopes without processes are stopped.
        """
        for name in self.kernel.children(path):
            self._trim(join(path, name))
        if not self.kernel.children(path) and not self.kernel.procs(path):
            self.kernel.rmdir(path)
            self.units = {name: unit for name, unit in self.units.items() if unit.path != path}
