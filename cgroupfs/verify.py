"""Comparing the kernel's settings with the desired ones: the differences with their likely causes.

Nothing is written. A cgroup without a difference costs one walk of its path and five short reads,
so a pass over hundreds of containers takes milliseconds.

The kernel does not record which process changed a setting. The writer is deduced from the
`WriterRecords` that the caller passes: what systemd would write from its unit properties, and what
the container runtime set last or would send again. The rules, first match wins:

1. the file is missing: `controller lost` (an ancestor no longer passes it on);
2. the file shows what was desired but the effective set differs: `CPU offline` or
   `parent too narrow`, see `why_not_effective`; a memory limit was not written because more is in
   use: `in use`;
3. the file shows the runtime's value: `runtime update`, also where systemd has the same value. A
   runtime of the systemd driver sets a unit's properties before it writes the files, so both have
   the value, and the runtime is the one that changed it;
4. the file shows systemd's value: `reverted by systemd`, whether systemd wrote the file again or
   another process changed the unit's properties;
5. anything else: `unknown`.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from cgroupfs import controllers
from cgroupfs.plan import is_below_use
from cgroupfs.state import CPU_MAX, CPUS, CPUS_EFFECTIVE, MEMS, MEMS_EFFECTIVE, read_use
from cgroupfs.tree import ancestors
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cgroupfs.plan import Setting
    from cgroupfs.state import CpuMax
    from cgroupfs.tree import CgroupTree

_ISOLATED: Final = "cpuset.cpus.isolated"


class Cause(StrEnum):
    """Why a cgroup differs from what is desired."""

    REVERTED_BY_SYSTEMD = "reverted by systemd"
    RUNTIME_UPDATE = "runtime update"
    PARENT_TOO_NARROW = "parent too narrow"
    CPU_OFFLINE = "CPU offline"
    CONTROLLER_LOST = "controller lost"
    IN_USE = "in use"
    UNKNOWN = "unknown"


class Diagnosis(Struct, frozen=True):
    """A cause, and one sentence with its facts and the remedy."""

    cause: Cause
    detail: str


def online(tree: CgroupTree) -> Mask:
    """Return the online CPUs: the root's effective set and the CPUs of isolated partitions.

    Empty when the root does not show them (the controller is missing everywhere).
    """
    root, isolated = tree.read_many("", (CPUS_EFFECTIVE, _ISOLATED))
    return Mask.parse(root or "") | Mask.parse(isolated or "")


def why_not_effective(
    tree: CgroupTree, path: str, file: str, desired: Mask, effective: Mask
) -> Diagnosis:
    """Return why `effective` of `file` is not the `desired` that was written.

    `file` is `cpuset.cpus` or `cpuset.mems`. Checked in this order: CPUs that are offline, the
    topmost ancestor that lacks some of the set (those below it cannot have more), a partition.
    """
    if file == CPUS:
        offline = desired - online(tree)
        if offline and (desired - offline or effective) == effective:
            return Diagnosis(Cause.CPU_OFFLINE, _offline(offline, desired, effective))
    narrow = _too_narrow(tree, path, file, desired)
    if narrow is not None:
        above, has = narrow
        detail = (
            f"/{above} has only {has} of {desired} (missing {desired - has}), so the kernel uses "
            f"{effective} without an error; widen /{above} first"
        )
        return Diagnosis(Cause.PARENT_TOO_NARROW, detail)
    detail = (
        f"the kernel uses {effective} instead of {desired} though no cgroup above is narrower; "
        "look for a cpuset partition or a memory node gone offline"
    )
    return Diagnosis(Cause.UNKNOWN, detail)


def _offline(offline: Mask, desired: Mask, effective: Mask) -> str:
    if offline == desired:
        return (
            f"all of {desired} is offline, so the kernel uses the parent's {effective}; "
            "bring the CPUs online or remove the pod"
        )
    return f"{offline} of {desired} is offline; bring it online or remove the pod"


def _too_narrow(tree: CgroupTree, path: str, file: str, desired: Mask) -> tuple[str, Mask] | None:
    """Return the topmost ancestor that is too narrow, None for the root, which has no setting."""
    effective = CPUS_EFFECTIVE if file == CPUS else MEMS_EFFECTIVE
    for above in ancestors(path):
        text = tree.read_many(above, (effective,))[0]
        has = EMPTY if text is None else Mask.parse(text)
        if text is not None and not desired <= has:
            return (above, has) if above else None
    return None


_FILES: Final = (CPUS, CPUS_EFFECTIVE, MEMS, MEMS_EFFECTIVE, CPU_MAX)
#: The file `""` of a drift says that the cgroup itself is missing.
GONE: Final = ""


class WriterRecord(Struct, frozen=True):
    """What systemd or a runtime would write into a cgroup; None for files it would not write."""

    cpus: Mask | None = None
    mems: Mask | None = None
    cpu_max: CpuMax | None = None
    values: Mapping[str, str] = MappingProxyType({})

    def has(self, file: str, text: str) -> bool:
        """Return whether `text` of `file` is what this record would write."""
        value = {CPUS: self.cpus, MEMS: self.mems, CPU_MAX: self.cpu_max, **self.values}.get(file)
        return value is not None and str(value) == text


class WriterRecords(Struct, frozen=True):
    """What systemd (unit properties) and the runtime (its state or spec) have on record."""

    systemd: WriterRecord | None = None
    runtime: WriterRecord | None = None


class CgroupDifference(Struct, frozen=True):
    """One difference between what is desired and what the kernel shows.

    `file` is the file that differs (`*.effective` when the setting is written but not effective,
    `cgroup.subtree_control` for an ancestor that lost a controller, `""` when the cgroup is gone);
    `desired` and `found` are its texts, `found` None when the file does not exist.
    """

    cgroup: str
    file: str
    desired: str
    found: str | None
    cause: Cause
    detail: str


def verify(
    tree: CgroupTree,
    desired: Iterable[Setting],
    *,
    records: Mapping[str, WriterRecords] | None = None,
    needed: Sequence[str] = controllers.NEEDED,
) -> tuple[CgroupDifference, ...]:
    """Compare the kernel with what is desired; return an empty tuple when nothing differs.

    `records` maps cgroup paths to what systemd and the runtime have on record. Raises `OSError`
    only when the kernel rejects a read.
    """
    settings = tuple(desired)
    drifts = _lost_controllers(tree, settings, needed)
    for setting in settings:
        drifts.extend(_check(tree, setting))
    return name_writers(drifts, records or {})


def _lost_controllers(
    tree: CgroupTree, settings: Sequence[Setting], needed: Sequence[str]
) -> list[CgroupDifference]:
    above = dict.fromkeys(a for setting in settings for a in ancestors(setting.cgroup))
    return [drift for path in above if (drift := _lost(tree, path, needed)) is not None]


def _lost(tree: CgroupTree, path: str, needed: Sequence[str]) -> CgroupDifference | None:
    try:
        found = tree.read(path, controllers.ENABLED).split()
    except FileNotFoundError:
        return None
    lost = [name for name in needed if name not in found]
    if not lost:
        return None
    names = " and ".join(lost)
    detail = f"/{path} no longer passes {names} on to its children; enable it again"
    return CgroupDifference(
        path, controllers.ENABLED, " ".join(needed), " ".join(found), Cause.CONTROLLER_LOST, detail
    )


def _check(tree: CgroupTree, setting: Setting) -> list[CgroupDifference]:
    files = (*setting.values, *setting.defaults)
    try:
        texts = tree.read_many(setting.cgroup, (*_FILES, *files))
    except FileNotFoundError:
        return [_gone(setting.cgroup)]
    cpus, cpus_now, mems, mems_now, cpu_max = texts[: len(_FILES)]
    found: list[CgroupDifference | None] = []
    for file, mask, shown in (
        (CPUS, setting.cpus, (cpus, cpus_now)),
        (MEMS, setting.mems, (mems, mems_now)),
    ):
        if mask is not None:
            path, or_unset = setting.cgroup, setting.or_unset
            found.append(_check_set(tree, path, file, mask, shown, or_unset=or_unset))
    if setting.cpu_max is not None:
        found.append(_check_text(setting.cgroup, CPU_MAX, str(setting.cpu_max), cpu_max))
    if files:
        found.extend(
            _check_values(tree, setting, dict(zip(files, texts[len(_FILES) :], strict=True)))
        )
    return [drift for drift in found if drift is not None]


def _gone(path: str) -> CgroupDifference:
    detail = f"/{path} does not exist; it was removed, or never created"
    return CgroupDifference(path, GONE, "", None, Cause.UNKNOWN, detail)


def _check_set(
    tree: CgroupTree,
    path: str,
    file: str,
    desired: Mask,
    texts: tuple[str | None, str | None],
    *,
    or_unset: bool,
) -> CgroupDifference | None:
    text, now = texts
    shown = Mask.parse(text or "")
    if or_unset and (not shown or desired <= shown):
        return None
    goal = str(desired)
    drift = _check_text(path, file, goal, text)
    if drift is not None or now is None or now.strip() == goal:
        return drift
    effective = CPUS_EFFECTIVE if file == CPUS else MEMS_EFFECTIVE
    why = why_not_effective(tree, path, file, desired, Mask.parse(now))
    return CgroupDifference(path, effective, goal, now.strip(), why.cause, why.detail)


def _check_values(
    tree: CgroupTree, setting: Setting, texts: Mapping[str, str | None]
) -> Iterator[CgroupDifference]:
    shown = {file: text.strip() for file, text in texts.items() if text is not None}
    desired = setting.values_beside(shown)
    found = [_check_text(setting.cgroup, file, desired[file], texts[file]) for file in desired]
    differing = [drift for drift in found if drift is not None]
    in_use = read_use(tree, setting.cgroup, [drift.file for drift in differing])
    for drift in differing:
        if drift.found is not None and is_below_use(drift.desired, in_use, drift.file):
            yield replace(drift, cause=Cause.IN_USE, detail=_in_use(drift))
        else:
            yield drift


def _in_use(drift: CgroupDifference) -> str:
    # The current use is left out: it changes all the time, and an unchanged text is logged once.
    return (
        f"{drift.file} of /{drift.cgroup} shows {drift.found} instead of {drift.desired}: "
        "more than that is in use, and the kernel would kill processes for the limit; the limit is "
        "written once less is in use"
    )


def _check_text(path: str, file: str, goal: str, text: str | None) -> CgroupDifference | None:
    if text is None:
        detail = f"/{path} has no {file}: its controller was disabled above it"
        return CgroupDifference(path, file, goal, None, Cause.CONTROLLER_LOST, detail)
    shown = text.strip()
    if shown == goal:
        return None
    detail = f"{file} of /{path} shows {shown or 'nothing'} instead of {goal}"
    return CgroupDifference(path, file, goal, shown, Cause.UNKNOWN, detail)


def name_writers(
    drifts: Iterable[CgroupDifference], records: Mapping[str, WriterRecords]
) -> tuple[CgroupDifference, ...]:
    """Return the drifts with the cause `unknown` replaced by the likely writer.

    `records` maps cgroup paths to what systemd and the runtime have on record.
    """
    return tuple(
        _named(drift, records[drift.cgroup]) if drift.cgroup in records else drift
        for drift in drifts
    )


def _named(drift: CgroupDifference, known: WriterRecords) -> CgroupDifference:
    if _has(known.runtime, drift):
        cause, who = Cause.RUNTIME_UPDATE, "the container runtime has on record for the container"
    elif _has(known.systemd, drift):
        cause, who = Cause.REVERTED_BY_SYSTEMD, "systemd has on record for the unit"
    else:
        return drift
    return replace(drift, cause=cause, detail=f"{drift.detail}: that is what {who}")


def _has(record: WriterRecord | None, drift: CgroupDifference) -> bool:
    if record is None or drift.found is None:
        return False
    return record.has(drift.file, drift.found)
