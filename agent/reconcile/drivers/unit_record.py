"""The resource properties of a unit: what systemd has on record, and what it should have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cgroupfs.errors import CgroupValueError
from cgroupfs.plan import is_below_use
from cgroupfs.state import CPU_WEIGHT, DEFAULT_WEIGHT, MEMORY_MAX, NO_LIMIT, CpuMax, WriterRecord
from systemd.errors import ProtocolError
from systemd.properties import (
    INFINITY,
    allowed_cpus,
    allowed_memory_nodes,
    bytes_mask,
    cpu_quota,
    cpu_weight,
    memory_max,
    written_quota,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.reconcile.desired.settings import DesiredCgroup
    from cgroupfs.state import CgroupState
    from sysfs.mask import Mask
    from systemd.bus import Systemd
    from systemd.properties import Property

_SUFFIXES: Final = (".slice", ".scope", ".service")
_SETS: Final = ("AllowedCPUs", "AllowedMemoryNodes")
#: What the kernel shows of a value that was never set.
_UNSET: Final = {CPU_WEIGHT: DEFAULT_WEIGHT, MEMORY_MAX: NO_LIMIT}


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
    if record.cpu_max is not None:
        properties.extend(cpu_quota(record.cpu_max.quota_us, record.cpu_max.period_us))
    if CPU_WEIGHT in record.values:
        properties.append(cpu_weight(int(record.values[CPU_WEIGHT])))
    if MEMORY_MAX in record.values:
        limit = record.values[MEMORY_MAX]
        properties.append(memory_max(None if limit == NO_LIMIT else int(limit)))
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
    names = ("CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec", *_SETS, "CPUWeight", "MemoryMax")
    shown = dict(zip(names, systemd.unit_properties(unit, *names), strict=True))
    cpus, mems = (_mask(shown, name) for name in _SETS)
    quota, period = _number(shown, "CPUQuotaPerSecUSec"), _number(shown, "CPUQuotaPeriodUSec")
    try:
        cpu_max = CpuMax(*written_quota(quota, period))
    except CgroupValueError as error:
        raise ProtocolError("CPUQuotaPerSecUSec", (quota, period)) from error
    return WriterRecord(
        cpus=cpus,
        mems=mems,
        cpu_max=cpu_max,
        values={
            CPU_WEIGHT: _text(_number(shown, "CPUWeight"), DEFAULT_WEIGHT),
            MEMORY_MAX: _text(_number(shown, "MemoryMax"), NO_LIMIT),
        },
    )


def _text(number: int, unset: str) -> str:
    return unset if number == INFINITY else str(number)


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

    systemd always rewrites `cpu.max`, `cpu.weight` and `memory.max`, so these are recorded as
    shown, unless (`whole` False) another program records them.
    """
    setting, shown = item.setting, state.values
    cpus, mems = setting.sets_beside(state.cpus, state.mems)
    if not whole:
        return WriterRecord(cpus, mems, setting.cpu_max)
    kept = {f: shown[f] for f, unset in _UNSET.items() if shown.get(f, unset) != unset}
    desired = {
        file: text
        for file, text in setting.values_beside(shown).items()
        if file in _UNSET and not is_below_use(text, state.in_use, file)
    }
    return WriterRecord(cpus, mems, setting.cpu_max or state.cpu_max, kept | desired)
