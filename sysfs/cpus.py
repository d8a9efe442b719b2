"""Which CPUs there are: present, online, isolated, without a tick, and of which kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sysfs.errors import MissingFile
from sysfs.host import CoreKind
from sysfs.mask import EMPTY, Mask
from sysfs.siblings import CPU_DIRECTORY

if TYPE_CHECKING:
    from sysfs.files import Tree

#: PMUs of hybrid x86 processors, each with the list of its cores (kernel 5.13 and later).
HYBRID_PMUS: Final = (
    ("cpu_core", CoreKind.PERFORMANCE),
    ("cpu_atom", CoreKind.EFFICIENCY),
    ("cpu_lowpower", CoreKind.EFFICIENCY),
)


class CpuSets(Struct, frozen=True):
    """CPUs by state; `online` is a part of `present`, the others may name absent CPUs."""

    present: Mask
    online: Mask
    isolated: Mask
    nohz_full: Mask


def read_cpu_sets(tree: Tree) -> CpuSets:
    """Read which CPUs exist and in which state they are.

    Fallbacks: without `present`, the `cpuN` directories; without `online`, `cpuN/online`, and
    where that is absent or empty a CPU is online if it has a `topology` directory; without
    `isolated` or `nohz_full` (also `(null)`), none. `offline` is not read: it lists ids up to
    the kernel's limit. Raises `MissingFile` if no CPU is found or none is online.
    """
    present = tree.find_list(f"{CPU_DIRECTORY}/present")
    if present is None:
        present = Mask.from_ids(tree.numbered(CPU_DIRECTORY, "cpu"))
    online = tree.find_list(f"{CPU_DIRECTORY}/online")
    if online is None:
        online = Mask.from_ids(cpu for cpu in present if _is_online(tree, cpu))
    if not online & present:
        raise MissingFile(
            tree.path(f"{CPU_DIRECTORY}/online"),
            "no online CPU was found; name the directory that contains sys/",
        )
    return CpuSets(
        present=present,
        online=online & present,
        isolated=tree.find_list(f"{CPU_DIRECTORY}/isolated") or EMPTY,
        nohz_full=tree.find_list(f"{CPU_DIRECTORY}/nohz_full") or EMPTY,
    )


def read_core_kinds(tree: Tree, online: Mask) -> dict[int, CoreKind]:
    """Return the kind of each CPU that is not STANDARD, by CPU id.

    On x86 the lists of the PMUs `cpu_core` and `cpu_atom`; elsewhere `cpuN/cpu_capacity`: where
    the capacities differ, CPUs of the highest are PERFORMANCE and all others EFFICIENCY.
    """
    kinds: dict[int, CoreKind] = {}
    for pmu, kind in HYBRID_PMUS:
        members = tree.find_list(f"sys/devices/{pmu}/cpus") or EMPTY
        kinds.update(dict.fromkeys(members & online, kind))
    return kinds or _kinds_by_capacity(tree, online)


def _kinds_by_capacity(tree: Tree, online: Mask) -> dict[int, CoreKind]:
    # All CPUs have the file or none has (arch_topology), so one look spares 4,095 more.
    if tree.find(f"{CPU_DIRECTORY}/cpu{online.lowest}/cpu_capacity") is None:
        return {}
    capacities = {
        cpu: tree.find_integer(f"{CPU_DIRECTORY}/cpu{cpu}/cpu_capacity") for cpu in online
    }
    known = {capacity for capacity in capacities.values() if capacity is not None}
    if len(known) == 1:
        return {}
    highest = max(known)
    return {
        cpu: CoreKind.PERFORMANCE if capacity == highest else CoreKind.EFFICIENCY
        for cpu, capacity in capacities.items()
        if capacity is not None
    }


def _is_online(tree: Tree, cpu: int) -> bool:
    state = tree.find(f"{CPU_DIRECTORY}/cpu{cpu}/online")
    if not state:
        return tree.is_directory(f"{CPU_DIRECTORY}/cpu{cpu}/topology")
    return tree.find_integer(f"{CPU_DIRECTORY}/cpu{cpu}/online") == 1
