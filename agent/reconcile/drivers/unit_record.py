"""The resource properties of a unit: what systemd has on record, and what it should have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cgroupfs.errors import CgroupValueError
from cgroupfs.plan import is_below_use
from cgroupfs.settings import CPU_MAX, DEFAULT_WEIGHT, NO_LIMIT, SETS, VALUES, CpuMax
from cgroupfs.state import WriterRecord
from systemd.errors import ProtocolError
from systemd.properties import (
    INFINITY,
    allowed_cpus,
    allowed_memory_nodes,
    bytes_mask,
    cpu_quota,
    cpu_weight,
    number,
    written_quota,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.reconcile.desired.settings import DesiredCgroup
    from cgroupfs.settings import ValueFile
    from cgroupfs.state import CgroupState
    from sysfs.mask import Mask
    from systemd.bus import Systemd
    from systemd.properties import Property

_SUFFIXES: Final = (".slice", ".scope", ".service")
_PERIOD: Final = "CPUQuotaPeriodUSec"
#: The files of one value that systemd writes from a property.
_RECORDED: Final = {row.file: row for row in VALUES if row.unit_property}


def unit_of(cgroup: str) -> str | None:
    """Return the unit that a cgroup is named after, None when the name is not a unit's."""
    name = cgroup.rpartition("/")[2]
    return name if name.endswith(_SUFFIXES) else None


def to_properties(record: WriterRecord) -> tuple[Property, ...]:
    """Return the properties that make systemd write a record; what is None is not among them."""
    properties: list[Property] = []
    if record.cpus is not None:
        properties.append(allowed_cpus(record.cpus))
    if record.mems is not None:
        properties.append(allowed_memory_nodes(record.mems))
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
        if file in _RECORDED and not is_below_use(text, state.in_use, file)
    }
    return WriterRecord(cpus, mems, kept | desired)
