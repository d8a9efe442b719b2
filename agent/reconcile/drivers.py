"""How pod cgroups are created, recorded and removed: one class for each driver.

A record is the resource properties of a unit: what systemd has on record, and what it should have.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agent.reconcile.report import EnforcementStartError, ReleaseReport
from cgroupfs.errors import CgroupValueError
from cgroupfs.plan import is_below_use
from cgroupfs.settings import (
    CPU_MAX,
    CPU_WEIGHT,
    DEFAULT_WEIGHT,
    MEMBER,
    NO_LIMIT,
    PARTITION,
    SETS,
    VALUES,
    CpuMax,
)
from cgroupfs.state import WriterRecord, is_populated
from cgroupfs.tree import ancestors, descendants
from sysfs.mask import EMPTY
from systemd import bus as slices
from systemd.bus import Breaker
from systemd.units import (
    INFINITY,
    BusError,
    BusSilentError,
    BusTimeoutError,
    NoSuchUnitError,
    ProtocolError,
    SystemdError,
    allowed_cpus,
    allowed_memory_nodes,
    bytes_mask,
    cpu_quota,
    cpu_weight,
    cpuset_partition,
    number,
    unit_of,
    written_quota,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from agent.reconcile.desired import DesiredCgroup
    from cgroupfs.settings import ValueFile
    from cgroupfs.state import CgroupState
    from cgroupfs.tree import CgroupTree
    from sysfs.mask import Mask
    from systemd.bus import Systemd
    from systemd.units import Property

_PERIOD: Final = "CPUQuotaPeriodUSec"
#: The files of one value that systemd writes from a property.
_RECORDED: Final = {row.file: row for row in VALUES if row.unit_property}


def to_properties(record: WriterRecord) -> tuple[Property, ...]:
    """Return the properties that make systemd write a record; what is None is not among them."""
    properties: list[Property] = []
    if record.cpus is not None:
        properties.append(allowed_cpus(record.cpus))
    if record.mems is not None:
        properties.append(allowed_memory_nodes(record.mems))
    if PARTITION in record.values:
        properties.append(cpuset_partition(record.values[PARTITION]))
    for row in _RECORDED.values():
        text = record.values.get(row.file)
        if row.file == CPU_MAX and text is not None:
            quota = CpuMax.parse(text)
            properties.extend(cpu_quota(quota.quota_us, quota.period_us))
        elif text is not None:
            properties.append(number(row.unit_property, None if text == NO_LIMIT else int(text)))
    return tuple(properties)


class UnitQuestion(Struct, frozen=True):
    """What systemd is asked about a unit before `properties` are set.

    `asks`: whether it has them, `locates`: where it is, `weighs`: whether it has a weight.
    """

    properties: tuple[Property, ...]
    asks: bool
    locates: bool
    weighs: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the properties to ask for."""
        return (
            *(("ControlGroup",) if self.locates else ()),
            *(("CPUWeight",) if self.weighs else ()),
            *((prop.name for prop in self.properties) if self.asks else ()),
        )

    def to_set(self, cgroup: str, values: Sequence[object]) -> tuple[Property, ...]:
        """Return what to set of a unit that has these values.

        That is nothing where it has all already, or is not at `cgroup`.
        """
        shown = dict(zip(self.names, values, strict=True))
        if self.locates and str(shown["ControlGroup"]).removeprefix("/") != cgroup:
            return ()
        properties = self.properties
        if self.weighs and shown["CPUWeight"] == INFINITY:
            properties = (*properties, cpu_weight(int(DEFAULT_WEIGHT)))
        return () if self.asks and holds(shown, properties) else properties


def holds(shown: Mapping[str, object], properties: Iterable[Property]) -> bool:
    """Return whether a unit that shows the properties of `shown` has these already."""
    return all(
        prop.name in shown and _plain(shown[prop.name]) == _plain(prop.value) for prop in properties
    )


def _plain(value: object) -> object:
    # systemd pads a set with zero bytes as it likes.
    return bytes_mask(value) if isinstance(value, bytes) else value


def read_record(systemd: Systemd, unit: str) -> WriterRecord:
    """Return what systemd would write into a unit's cgroup; raises `SystemdError`.

    A set without a property is None: systemd does not write it.
    """
    sets = [row.unit_property for row in SETS]
    names = (*sets, _PERIOD, *(row.unit_property for row in _RECORDED.values()))
    shown = dict(zip(names, systemd.unit_properties(unit, *names), strict=True))
    cpus, mems = (_mask(shown, name) for name in sets)
    values = {row.file: _text(row, shown) for row in _RECORDED.values()}
    return WriterRecord(cpus, mems, values)


def _text(row: ValueFile, shown: Mapping[str, object]) -> str:
    """Return what systemd writes into a file of one value."""
    value = _number(shown, row.unit_property)
    if row.file != CPU_MAX:
        return row.unset if value == INFINITY else str(value)
    period = _number(shown, _PERIOD)
    try:
        return str(CpuMax(*written_quota(value, period)))
    except CgroupValueError as error:
        raise ProtocolError(row.unit_property, (value, period)) from error


def _mask(shown: Mapping[str, object], name: str) -> Mask | None:
    value = shown[name]
    if isinstance(value, bytes):
        return bytes_mask(value) or None
    raise ProtocolError(name, value)


def _number(shown: Mapping[str, object], name: str) -> int:
    value = shown[name]
    if isinstance(value, int):
        return value
    raise ProtocolError(name, value)


def record_of(item: DesiredCgroup, state: CgroupState, *, whole: bool = True) -> WriterRecord:
    """Return what systemd must have on record.

    systemd always rewrites the files of one value that it has a property for, so these are recorded
    as shown, unless (`whole` False) another program records them.
    """
    setting, shown = item.setting, state.values
    cpus, mems = setting.sets_beside(state.cpus, state.mems)
    if not whole:
        return WriterRecord(cpus, mems, setting.values)
    kept = {
        file: shown[file]
        for file, row in _RECORDED.items()
        if file in shown and (shown[file] != row.unset or row.always_recorded)
    }
    desired = {
        file: text
        for file, text in setting.values_beside(shown).items()
        if (file in _RECORDED or file == PARTITION) and not is_below_use(text, state.in_use, file)
    }
    return WriterRecord(cpus, mems, kept | desired)


_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")

#: A report names this many process ids at most.
_NAMED_PROCESSES: Final = 8
_ROOT_SLICE: Final = "-.slice"
_DESCRIPTION: Final = "Pods of Numawarden"


class ToRecord(Struct, frozen=True):
    """The settings of a cgroup that systemd has to have on record.

    `known` is what is on record, None when that is not known: then systemd is asked first. `ours`:
    the unit is one of the pods', which keeps the cpu controller.
    """

    cgroup: str
    record: WriterRecord
    known: WriterRecord | None = None
    ours: bool = True


class UnitState(Struct, frozen=True):
    """Whether a unit runs or is about to, and its cgroup ("" without one)."""

    running: bool
    cgroup: str = ""


class Lives(Struct, frozen=True):
    """What was observed of the pods that end by themselves (`Lifetime`)."""

    #: The uids of pods in whose cgroups processes live.
    inhabited: frozenset[str]
    #: The states of units by name; one that is missing is not known now.
    units: Mapping[str, UnitState]
    #: The uids of pods whose unit runs in a new cgroup, which has none of the pod's sets.
    restarted: frozenset[str] = frozenset()


class PodCgroups(Protocol):
    """Creates, records and removes cgroups."""

    #: Whether anything is ever on record, so that `record` has to be called.
    records: bool
    #: False if the kubelet makes and removes the cgroups of pods, with weights and limits: `create`
    #: and `remove` are not called. A cgroup that exists before its pod does would be taken by the
    #: kubelet for one of its own, with limits that were never set (kubelet,
    #: podContainerManagerImpl.EnsureExists).
    makes: bool

    def check(self) -> None:
        """Raise `EnforcementStartError` when the driver cannot work here."""
        ...

    def try_again(self) -> None:
        """Ask a systemd that did not answer again; until this call it is not asked."""
        ...

    def create(self, cgroup: str) -> tuple[str, ...]:
        """Create a pod's cgroup and those above it; return the new ones. Raises `CreateError`."""
        ...

    def record(self, records: Sequence[ToRecord]) -> list[str | SystemdError | None]:
        """Record settings in systemd, which may rewrite them; return which unit each was set of.

        None: there is no unit, or its properties are as in the record. An error: the settings are
        not on record.
        """
        ...

    def remembered(self, cgroup: str) -> WriterRecord | None:
        """Return the settings that systemd may write, None when it has none on record."""
        ...

    def forget(self, cgroup: str) -> None:
        """Reset the sets that were recorded for a cgroup. Raises `SystemdError`."""
        ...

    def unit(self, name: str) -> UnitState | None:
        """Return the state of a unit, None where there are no units. Raises `SystemdError`."""
        ...

    def remove(self, cgroup: str) -> ReleaseReport:
        """Remove a pod's cgroup unless processes live in it; processes are never killed."""
        ...


class CreateError(Exception):
    """A pod's cgroup could not be made; one line."""


class DirectoryCgroups:
    """The cgroupfs driver: plain directories that no service manager writes."""

    records = False

    def __init__(self, tree: CgroupTree, *, makes: bool = True) -> None:
        self._tree = tree
        self.makes = makes

    def check(self) -> None:
        """Nothing beyond the tree itself is needed."""

    def try_again(self) -> None:
        """Do nothing: no other process is asked; see `PodCgroups.try_again`."""

    def create(self, cgroup: str) -> tuple[str, ...]:
        """Create directories from the root down; see `PodCgroups.create`."""
        made: list[str] = []
        for path in (*ancestors(cgroup)[1:], cgroup):
            if self._tree.exists(path):
                continue
            try:
                self._tree.mkdir(path)
            except FileExistsError:
                continue
            except OSError as error:
                raise CreateError(
                    f"cannot make /{path}: {os.strerror(error.errno or 0)}; "
                    "run as root with a writable cgroup mount, see cgroup.max.descendants above it"
                ) from error
            made.append(path)
        return tuple(made)

    def record(self, records: Sequence[ToRecord]) -> list[str | SystemdError | None]:
        """Do nothing: a plain directory has no unit; see `PodCgroups.record`."""
        return [None] * len(records)

    def remembered(self, cgroup: str) -> WriterRecord | None:
        """Return None: a plain directory has no record; see `PodCgroups.remembered`."""
        _ = cgroup
        return None

    def forget(self, cgroup: str) -> None:
        """Do nothing: a plain directory has no record; see `PodCgroups.forget`."""

    def unit(self, name: str) -> UnitState | None:
        """Return None: this driver has no service manager; see `PodCgroups.unit`."""
        _ = name
        return None

    def remove(self, cgroup: str) -> ReleaseReport:
        """Remove the directory and the empty ones in it; see `PodCgroups.remove`."""
        stays = inhabited(self._tree, cgroup)
        return stays if stays is not None else remove_directories(self._tree, cgroup)


class SliceCgroups:
    """The systemd driver: pod cgroups are slices, whose properties are set to what was written.

    systemd rewrites the files of a unit from its properties at any time, so these have to agree
    with the files.
    """

    records = True

    def __init__(self, tree: CgroupTree, systemd: Systemd, *, makes: bool = True) -> None:
        self._tree = tree
        self.makes = makes
        self._systemd = Breaker(systemd)
        #: The slices that were started here, until something is recorded for them.
        self._started: set[str] = set()
        #: Whether systemd has a property of partitions, None until it was asked.
        self._partitions: bool | None = None

    def check(self) -> None:
        """Raise `EnforcementStartError` where there is no systemd on the system bus.

        A systemd that is only silent may be busy: a later comparison records the settings.
        """
        try:
            self._systemd.active_state(_ROOT_SLICE)
        except (BusTimeoutError, BusSilentError):
            return
        except SystemdError as error:
            raise EnforcementStartError(
                "cgroupDriver systemd", "systemd does not answer", str(error)
            ) from error

    def try_again(self) -> None:
        """Ask systemd again; see `PodCgroups.try_again`."""
        self._systemd.try_again()

    def create(self, cgroup: str) -> tuple[str, ...]:
        """Start the slice, and with it those above it; see `PodCgroups.create`."""
        missing = tuple(p for p in (*ancestors(cgroup)[1:], cgroup) if not self._tree.exists(p))
        try:
            if slices.ensure(self._systemd, cgroup.rpartition("/")[2], (), about=_DESCRIPTION):
                self._started.add(cgroup)
        except SystemdError as error:
            raise CreateError(f"cannot start the slice of /{cgroup}: {error}") from error
        if not self._tree.exists(cgroup):
            # A slice without units in it may have no directory yet; the name is systemd's own.
            DirectoryCgroups(self._tree).create(cgroup)
        return missing

    def record(self, records: Sequence[ToRecord]) -> list[str | SystemdError | None]:
        """Set the properties of the units that cgroups have; see `PodCgroups.record`.

        systemd is waited for a few times, however many units there are.
        """
        records = [self._offered(each) for each in records]
        results: list[str | SystemdError | None] = [None] * len(records)
        units = [unit_of(each.cgroup) for each in records]
        questions = [
            (place, unit, self._question(unit, records[place]))
            for place, unit in enumerate(units)
            if unit is not None
            and records[place].record not in (WriterRecord(), records[place].known)
        ]
        asking = [(unit, question.names) for _, unit, question in questions if question.names]
        answers = iter(_each(self._systemd.properties_of, asking))
        desired: list[tuple[int, str, tuple[Property, ...]]] = []
        for place, unit, question in questions:
            shown = next(answers) if question.names else ()
            if isinstance(shown, SystemdError):
                inactive = question.locates and isinstance(shown, NoSuchUnitError)
                results[place] = None if inactive else shown
            elif properties := question.to_set(records[place].cgroup, shown):
                desired.append((place, unit, properties))
        setting = [(unit, properties) for _, unit, properties in desired]
        done = _each(self._systemd.set_properties_of, setting)
        for (place, unit, _), error in zip(desired, done, strict=True):
            results[place] = unit if error is None else error
        return results

    def _offered(self, desired: ToRecord) -> ToRecord:
        """Return what to record without a partition where systemd has no property of that."""
        if PARTITION not in desired.record.values or self._has_partitions():
            return desired
        known = None if desired.known is None else _without_partition(desired.known)
        return replace(desired, record=_without_partition(desired.record), known=known)

    def _has_partitions(self) -> bool:
        """Return whether systemd has `CPUSetPartition` (261 and later have)."""
        if self._partitions is None:
            try:
                self._systemd.unit_properties(_ROOT_SLICE, cpuset_partition(MEMBER).name)
            except BusError:
                self._partitions = False
            except SystemdError:
                return False  # silent: it is asked again
            else:
                self._partitions = True
        return self._partitions

    def _question(self, unit: str, desired: ToRecord) -> UnitQuestion:
        started = desired.cgroup in self._started
        self._started.discard(desired.cgroup)
        asks = desired.known is None and not started
        return UnitQuestion(
            to_properties(desired.record),
            asks=asks,
            # Setting properties of an inactive unit would leave a file and a cgroup behind, and a
            # unit of the same name elsewhere is a different one: a scope that was started again in
            # another slice, or any in a container with its own systemd. The name of a slice says
            # where it is.
            locates=asks or not unit.endswith(".slice"),
            # systemd disables a controller that no unit asks for, and a unit without a quota does
            # not ask for `cpu`; setting the default weight does. What is on record has a weight.
            weighs=desired.ours
            and desired.known is None
            and CPU_WEIGHT not in desired.record.values,
        )

    def _is_active(self, unit: str, cgroup: str) -> bool:
        try:
            return self._systemd.control_group(unit) == cgroup
        except NoSuchUnitError:
            return False

    def remembered(self, cgroup: str) -> WriterRecord | None:
        """Return systemd's properties of the unit; see `PodCgroups.remembered`."""
        unit = unit_of(cgroup)
        try:
            if unit is None or not self._is_active(unit, cgroup):
                return None
            return read_record(self._systemd, unit)
        except SystemdError:
            # Only the cause of a drift depends on this, and a silent systemd is reported elsewhere.
            return None

    def forget(self, cgroup: str) -> None:
        """Reset the sets of the unit if the cgroup has one; see `PodCgroups.forget`.

        systemd keeps the properties of a service that has stopped, for its next start. Those of a
        scope end with it.
        """
        unit = unit_of(cgroup)
        if unit is None:
            return
        unset: tuple[Property, ...] = (allowed_cpus(EMPTY), allowed_memory_nodes(EMPTY))
        if self._partitions:
            unset = (*unset, cpuset_partition(MEMBER))
        try:
            runs_at = self._systemd.control_group(unit)
            if runs_at != cgroup and (runs_at or not unit.endswith(".service")):
                return
            names = [prop.name for prop in unset]
            shown = self._systemd.unit_properties(unit, *names)
            if not holds(dict(zip(names, shown, strict=True)), unset):
                self._systemd.set_properties(unit, unset)
        except NoSuchUnitError:
            # A service that is not loaded has its properties in files; setting them loads it.
            if unit.endswith(".service"):
                with suppress(NoSuchUnitError):
                    self._systemd.set_properties(unit, unset)

    def unit(self, name: str) -> UnitState | None:
        """Return the state of a unit; see `PodCgroups.unit`."""
        if self._systemd.active_state(name).stopped:
            return UnitState(running=False)
        try:
            return UnitState(running=True, cgroup=self._systemd.control_group(name))
        except NoSuchUnitError:  # it was stopped and unloaded meanwhile
            return UnitState(running=False)

    def remove(self, cgroup: str) -> ReleaseReport:
        """Stop the slice if it is empty; see `PodCgroups.remove`."""
        stays = inhabited(self._tree, cgroup)
        if stays is not None:
            return stays
        unit = cgroup.rpartition("/")[2]
        self._started.discard(cgroup)
        try:
            # Only the slice is stopped: processes that entered meanwhile keep running.
            if self._is_active(unit, cgroup):
                self._systemd.stop(unit)
        except SystemdError as error:
            return ReleaseReport(cgroup, removed=False, reason=f"cannot stop {unit}: {error}")
        return inhabited(self._tree, cgroup) or remove_directories(self._tree, cgroup)


def _without_partition(record: WriterRecord) -> WriterRecord:
    return replace(record, values={f: t for f, t in record.values.items() if f != PARTITION})


def _each(
    call: Callable[[Sequence[_Asked]], list[_Answer | SystemdError]], asked: Sequence[_Asked]
) -> list[_Answer | SystemdError]:
    """Return what systemd answers to each, the error for all of them if it does not answer."""
    try:
        return call(asked) if asked else []
    except SystemdError as error:
        return [error] * len(asked)


def inhabited(tree: CgroupTree, cgroup: str) -> ReleaseReport | None:
    """Return the report that a cgroup stays because processes live in it, None when none do."""
    if not is_populated(tree, cgroup):
        return None
    try:
        processes = _processes(tree, cgroup)
    except FileNotFoundError:
        return None
    shown = ", ".join(map(str, processes[:_NAMED_PROCESSES]))
    reason = (
        f"/{cgroup} stays: processes live in it ({shown or 'they are ending'}); they keep running "
        "in the node's shared pool; stop them, then it is removed"
    )
    return ReleaseReport(cgroup, removed=False, processes=processes, reason=reason)


def remove_directories(tree: CgroupTree, cgroup: str) -> ReleaseReport:
    """Remove a cgroup without processes, the cgroups in it first."""
    path = cgroup
    try:
        if not tree.exists(cgroup):  # systemd has removed it
            return ReleaseReport(cgroup, removed=True)
        for path in reversed((cgroup, *descendants(tree, cgroup))):
            with suppress(FileNotFoundError):
                tree.rmdir(path)
    except OSError as error:
        reason = f"cannot remove /{path}: {os.strerror(error.errno or 0)}; it is tried again"
        return ReleaseReport(cgroup, removed=False, reason=reason)
    return ReleaseReport(cgroup, removed=True)


def _processes(tree: CgroupTree, cgroup: str) -> tuple[int, ...]:
    found = set(tree.procs(cgroup))
    for path in descendants(tree, cgroup):
        with suppress(FileNotFoundError):
            found.update(tree.procs(path))
    return tuple(sorted(found))
