"""Comparing the observed with the desired: each difference with its cause and its pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.reconcile.desired.settings import Role
from agent.reconcile.report import Difference
from cgroupfs.controllers import NEEDED
from cgroupfs.verify import GONE, Cause, name_writers, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.reconcile.desired.settings import DesiredCgroup
    from cgroupfs.plan import Setting
    from cgroupfs.state import CgroupState
    from cgroupfs.tree import CgroupTree
    from cgroupfs.verify import CgroupDifference, WriterRecords
    from sysfs.mask import Mask

#: A runtime chooses the controllers of its subgroup; only the sets matter there.
_SUBGROUP_NEEDS: Final = ("cpuset",)


def assess(
    tree: CgroupTree,
    recorded: Callable[[str], WriterRecords],
    desired: Sequence[DesiredCgroup],
    needed: Sequence[str] = NEEDED,
) -> tuple[Difference, ...]:
    """Return what the kernel does not enforce.

    `recorded` returns what systemd and the runtime have on record of a cgroup; it is called for
    those that differ. `needed` are the controllers that every cgroup must have.
    A container's cgroup that is gone is not a difference: the container has exited.
    """
    drifts = _drifts(tree, desired, needed)
    unexplained = {drift.cgroup for drift in drifts if _may_be_explained(drift)}
    drifts = name_writers(drifts, {path: recorded(path) for path in unexplained})
    owners = {item.setting.cgroup: item for item in desired}
    return tuple(
        _problem(drift, owners.get(drift.cgroup))
        for drift in drifts
        if not _ended(tree, drift, owners.get(drift.cgroup))
    )


def as_desired(setting: Setting, state: CgroupState) -> bool:
    """Return whether a cgroup shows exactly what is desired, its effective sets included."""
    free = setting.or_unset
    return (
        _has_set(setting.cpus, state.cpus, state.cpus_effective, or_unset=free)
        and _has_set(setting.mems, state.mems, state.mems_effective, or_unset=free)
        and (setting.cpu_max is None or setting.cpu_max == state.cpu_max)
        and not differing_values(setting, state)
    )


def _has_set(desired: Mask | None, file: Mask | None, now: Mask | None, *, or_unset: bool) -> bool:
    if desired is None or desired == file == now:
        return True
    return or_unset and (not file or desired <= file)


def differing_values(setting: Setting, state: CgroupState) -> tuple[str, ...]:
    """Return the single-value files that do not show what is desired."""
    if not (setting.values or setting.defaults):
        return ()
    desired, shown = setting.values_beside(state.values), state.values
    return tuple(file for file in desired if shown.get(file) != desired[file])


def _drifts(
    tree: CgroupTree, desired: Iterable[DesiredCgroup], needed: Sequence[str]
) -> tuple[CgroupDifference, ...]:
    main: list[Setting] = []
    inner: list[Setting] = []
    for item in desired:
        (inner if item.role is Role.SUBGROUP else main).append(item.setting)
    found = verify(tree, main, needed=needed)
    if not inner:
        return found
    of_subgroups = tuple(name for name in _SUBGROUP_NEEDS if name in needed)
    return (*found, *verify(tree, inner, needed=of_subgroups))


def _ended(tree: CgroupTree, drift: CgroupDifference, owner: DesiredCgroup | None) -> bool:
    # The directory of a cgroup that is being removed may still exist without its files.
    if owner is None or owner.role is Role.POD or drift.found is not None:
        return False
    return drift.file == GONE or not tree.exists(drift.cgroup)


def _may_be_explained(drift: CgroupDifference) -> bool:
    return drift.cause is Cause.UNKNOWN and drift.found is not None


def _problem(drift: CgroupDifference, owner: DesiredCgroup | None) -> Difference:
    problem = Difference(
        drift.cgroup,
        drift.detail,
        drift.cause,
        file=drift.file,
        desired=drift.desired,
        found=drift.found,
    )
    if owner is None:
        return problem
    return replace(problem, pod=owner.pod, container=owner.container)
