"""What a tree of cgroups is set to, to compare before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.guest.inside.kernel import Cgroup
    from tests.guest.inside.workloads import Workload

#: The settings that the agent owns, and what came of them.
FILES: Final = (
    "cgroup.subtree_control",
    "cpu.max",
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.mems",
    "cpuset.mems.effective",
)


def settings(top: Cgroup) -> dict[str, str]:
    """Return the settings of every cgroup below `top`, by file name relative to it."""
    return {
        str(file.relative_to(top.path)): file.read_text().strip()
        for name in FILES
        for file in sorted(top.path.rglob(name))
    }


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return what changed between two snapshots; "-" stands for a file that is not there."""
    return {
        name: (before.get(name, "-"), after.get(name, "-"))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    }


def touched(workloads: Iterable[Workload]) -> list[str]:
    """Return the names of workloads that no longer run as they did."""
    return [workload.name for workload in workloads if not workload.untouched]
