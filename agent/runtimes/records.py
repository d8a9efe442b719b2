"""What a runtime has on record of a container's settings.

runc writes its state (`state.json`, libcontainer's `State.config.cgroups`) together with the
cgroup, at the start and at every update. crun writes a copy of the bundle at the start and nothing
at an update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.runtimes.files import RuntimeFileError, read_json
from cgroupfs.state import DEFAULT_PERIOD_US, CpuMax, WriterRecord
from sysfs.mask import Mask

if TYPE_CHECKING:
    from pathlib import Path


class _Cgroups(Struct):
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    cpu_quota: int = 0
    cpu_period: int = 0


class _Config(Struct):
    cgroups: _Cgroups


class _State(Struct):
    config: _Config


def read_state(path: Path) -> WriterRecord:
    """Return what runc's `state.json` says.

    Raises `RuntimeFileError` when it is unusable, `FileNotFoundError` when there is none.
    """
    cgroups = read_json(path, _State).config.cgroups
    return recorded(
        path, cgroups.cpuset_cpus, cgroups.cpuset_mems, cgroups.cpu_quota, cgroups.cpu_period
    )


def recorded(path: Path, cpus: str, mems: str, quota: int, period: int) -> WriterRecord:
    """Return settings as a record.

    A runtime does not write values that are "" or 0; a quota of -1 means unlimited. Raises
    `RuntimeFileError` on values that the kernel would not accept.
    """
    try:
        return WriterRecord(
            Mask.parse(cpus) or None, Mask.parse(mems) or None, _cpu_max(quota, period)
        )
    except ValueError as error:
        raise RuntimeFileError(path, f"it is damaged ({error})") from error


def _cpu_max(quota: int, period: int) -> CpuMax | None:
    if not quota and not period:
        return None
    return CpuMax(quota if quota > 0 else None, period or DEFAULT_PERIOD_US)
