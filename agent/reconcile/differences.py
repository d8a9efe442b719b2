"""Comparing the kernel with what is wanted: problems with their cause and the pod they concern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.reconcile.desired.settings import Role
from agent.reconcile.report import Problem
from cgroupfs.controllers import NEEDED
from cgroupfs.verify import GONE, Cause, name_writers, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agent.reconcile.desired.settings import Wanted
    from cgroupfs.plan import Setting
    from cgroupfs.state import State
    from cgroupfs.tree import Tree
    from cgroupfs.verify import Drift, Records
    from sysfs.mask import Mask

#: A runtime enables what it likes for its subgroup; only the sets matter there.
_SUBGROUP_NEEDS: Final = ("cpuset",)


def assess(
    tree: Tree,
    recorded: Callable[[str], Records],
    wanted: Sequence[Wanted],
    needed: Sequence[str] = NEEDED,
) -> tuple[Problem, ...]:
    """Return what the kernel does not honour.

    `recorded` tells what others have on record of a cgroup; it is asked for those that differ.
    `needed` are the controllers without which no cgroup is as it should be.
    A container's cgroup that is gone is no problem: the container has ended.
    """
    drifts = _drifts(tree, wanted, needed)
    unexplained = {drift.cgroup for drift in drifts if _may_be_explained(drift)}
    drifts = name_writers(drifts, {path: recorded(path) for path in unexplained})
    owners = {item.setting.cgroup: item for item in wanted}
    return tuple(
        _problem(drift, owners.get(drift.cgroup))
        for drift in drifts
        if not _ended(tree, drift, owners.get(drift.cgroup))
    )


def as_wanted(setting: Setting, state: State) -> bool:
    """Tell whether a cgroup that was read shows exactly what is wanted, in effect too."""
    free = setting.or_unset
    return (
        _has_set(setting.cpus, state.cpus, state.cpus_effective, or_unset=free)
        and _has_set(setting.mems, state.mems, state.mems_effective, or_unset=free)
        and (setting.cpu_max is None or setting.cpu_max == state.cpu_max)
        and not differing_values(setting, state)
    )


def _has_set(wanted: Mask | None, file: Mask | None, now: Mask | None, *, or_unset: bool) -> bool:
    if wanted is None or wanted == file == now:
        return True
    return or_unset and (not file or wanted <= file)


def differing_values(setting: Setting, state: State) -> tuple[str, ...]:
    """Return the files of one value that show something else than is wanted."""
    if not (setting.values or setting.defaults):
        return ()
    wanted, shown = setting.values_beside(state.values), state.values
    return tuple(file for file in wanted if shown.get(file) != wanted[file])


def _drifts(tree: Tree, wanted: Iterable[Wanted], needed: Sequence[str]) -> tuple[Drift, ...]:
    main: list[Setting] = []
    inner: list[Setting] = []
    for item in wanted:
        (inner if item.role is Role.SUBGROUP else main).append(item.setting)
    found = verify(tree, main, needed=needed)
    if not inner:
        return found
    of_subgroups = tuple(name for name in _SUBGROUP_NEEDS if name in needed)
    return (*found, *verify(tree, inner, needed=of_subgroups))


def _ended(tree: Tree, drift: Drift, owner: Wanted | None) -> bool:
    # A cgroup on its way out may still be there for the directory and not for its files.
    if owner is None or owner.role is Role.POD or drift.found is not None:
        return False
    return drift.file == GONE or not tree.exists(drift.cgroup)


def _may_be_explained(drift: Drift) -> bool:
    return drift.cause is Cause.UNKNOWN and drift.found is not None


def _problem(drift: Drift, owner: Wanted | None) -> Problem:
    problem = Problem(
        drift.cgroup,
        drift.detail,
        drift.cause,
        file=drift.file,
        wanted=drift.wanted,
        found=drift.found,
    )
    if owner is None:
        return problem
    return replace(problem, pod=owner.pod, container=owner.container)
