"""What a tree of cgroups is set to, to compare before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.guest.inside import machine
from tests.guest.inside.kernel import ids

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

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
    "hugetlb.2MB.max",
    "memory.max",
)
#: Set of pods and of QoS classes; of a container it is its runtime's.
WEIGHT: Final = "cpu.weight"


def settings(top: Cgroup) -> dict[str, str]:
    """Return the settings of every cgroup below `top`, by file name relative to it.

    A set of all CPUs is shown as unset: with either a cgroup has what its parent has, and a set
    cannot be unset while processes live there.
    """
    weights = (file for file in top.path.rglob(WEIGHT) if file.parent.name.startswith("kubepods"))
    files = [*(file for name in FILES for file in top.path.rglob(name)), *weights]
    shown = {file: file.read_text().strip() for file in sorted(files)}
    return {
        str(file.relative_to(top.path)): "" if _is_whole(file, text) else text
        for file, text in shown.items()
    }


def _is_whole(file: Path, text: str) -> bool:
    return file.name == "cpuset.cpus" and ids(text) == machine.cpus()


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
