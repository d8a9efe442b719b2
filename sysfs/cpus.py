"""Which CPUs there are: present, online, isolated, without a tick, and of which kind."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from sysfs.files import InconsistentTree, MalformedFile, MissingFile, SysfsError
from sysfs.host import CoreKind
from sysfs.mask import EMPTY, Mask
from sysfs.siblings import CPU_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sysfs.files import SysfsTree

#: PMUs of hybrid x86 processors, each with the list of its cores (kernel 5.13 and later).
HYBRID_PMUS: Final = (
    ("cpu_core", CoreKind.PERFORMANCE),
    ("cpu_atom", CoreKind.EFFICIENCY),
    ("cpu_lowpower", CoreKind.EFFICIENCY),
)
#: The register in which an Arm CPU says which model it is (kernel 4.7 and later).
MIDR: Final = "regs/identification/midr_el1"
_REGISTER: Final = re.compile(r"0x[0-9a-f]{1,16}", re.ASCII)
#: Implementer (bits 31 to 24) and part number (bits 15 to 4) of MIDR_EL1.
_MODEL_BITS: Final = 0xFF00FFF0
_CLEAR_FALL: Final = 0.9
T = TypeVar("T")
_NO_KIND: Final = "no kind of core is known by it"


class CpuSets(Struct, frozen=True):
    """CPUs by state; `online` is a part of `present`, the others may name absent CPUs."""

    present: Mask
    online: Mask
    isolated: Mask
    nohz_full: Mask


def read_cpu_sets(tree: SysfsTree) -> CpuSets:
    """Read which CPUs exist and in which state they are.

    Fallbacks: without `present`, the `cpuN` directories; without `online`, `cpuN/online`, and
    where that is absent or empty a CPU is online if it has a `topology` directory; without
    `isolated` or `nohz_full` (also `(null)`), none. `offline` is not read: it lists ids up to
    the kernel's limit. A list that is odd, of CPUs present or online also one that is empty, is
    as good as absent. Raises `MissingFile` if no CPU is found or none is online,
    `InconsistentTree` if the CPUs online are not those present.
    """
    present = _some(tree, "present", "the cpuN directories are taken")
    if present is None:
        present = Mask.from_ids(tree.numbered(CPU_DIRECTORY, "cpu"))
    online = _some(tree, "online", "cpuN/online is taken")
    if online is None:
        online = Mask.from_ids(cpu for cpu in present if _is_online(tree, cpu))
        if not online:
            raise _no_cpu(tree)
    if not online & present:
        path = tree.path(f"{CPU_DIRECTORY}/online")
        raise InconsistentTree(path, f"CPUs {online} are online and CPUs {present} present")
    return CpuSets(
        present=present,
        online=online & present,
        isolated=_state(tree, "isolated", "no CPU counts as isolated"),
        nohz_full=_state(tree, "nohz_full", "every CPU counts as having a tick"),
    )


def _no_cpu(tree: SysfsTree) -> SysfsError:
    name = f"{CPU_DIRECTORY}/online"
    if tree.exists(name):
        found = "no online CPU was found, neither in it nor in cpuN/online"
        return InconsistentTree(tree.path(name), found)
    remedy = "no online CPU was found; name the directory that contains sys/"
    return MissingFile(tree.path(name), remedy)


def _some(tree: SysfsTree, state: str, without: str) -> Mask | None:
    name = f"{CPU_DIRECTORY}/{state}"
    found = tree.optional(lambda: tree.find_list(name), None, without)
    if found is not None and not found:
        tree.warn(tree.path(name), "it lists no CPU", without)
    return found or None


def _state(tree: SysfsTree, state: str, without: str) -> Mask:
    name = f"{CPU_DIRECTORY}/{state}"
    return tree.optional(lambda: tree.find_list(name), None, without) or EMPTY


def read_core_kinds(tree: SysfsTree, online: Mask) -> dict[int, CoreKind]:
    """Return the kind of each CPU that is not STANDARD, by CPU id.

    On x86 the lists of the PMUs `cpu_core` and `cpu_atom`. On Arm the model that each CPU states
    (MIDR_EL1: implementer and part number): where there are several models, CPUs of the one with
    the highest `cpu_capacity` are PERFORMANCE and all others EFFICIENCY. Elsewhere the capacities
    alone, split where they fall by more than a tenth: cores of one model differ by less.
    """
    kinds: dict[int, CoreKind] = {}
    for pmu, kind in HYBRID_PMUS:
        name = f"sys/devices/{pmu}/cpus"
        members = tree.optional(partial(tree.find_list, name), None, _NO_KIND) or EMPTY
        kinds.update(dict.fromkeys(members & online, kind))
    return kinds or _kinds_by_capacity(tree, online)


def _kinds_by_capacity(tree: SysfsTree, online: Mask) -> dict[int, CoreKind]:
    capacities = _of_cpus(tree, online, "cpu_capacity", tree.find_integer)
    if len(set(capacities.values())) <= 1:
        return {}
    models = _of_cpus(tree, online, MIDR, partial(_model, tree))
    if models:
        fastest = _fastest_models(capacities, models)
        known, fast = (
            online & Mask.from_ids(models),
            Mask.from_ids(cpu for cpu, model in models.items() if model in fastest),
        )
    else:
        known, fast = Mask.from_ids(capacities), _clearly_fastest(capacities)
    if not known - fast or not fast:
        return {}
    return {cpu: CoreKind.PERFORMANCE if cpu in fast else CoreKind.EFFICIENCY for cpu in known}


def _of_cpus(
    tree: SysfsTree, online: Mask, name: str, find: Callable[[str], T | None]
) -> dict[int, T]:
    """Return what a file of each CPU's directory says, by CPU id, where it says something."""
    # All CPUs have the file or none has (arch_topology), so one check spares 4,095 more.
    if not tree.exists(f"{CPU_DIRECTORY}/cpu{online.lowest}/{name}"):
        return {}
    found = {
        cpu: tree.optional(partial(find, f"{CPU_DIRECTORY}/cpu{cpu}/{name}"), None, _NO_KIND)
        for cpu in online
    }
    return {cpu: value for cpu, value in found.items() if value is not None}


def _model(tree: SysfsTree, name: str) -> int | None:
    """Return implementer and part number of a MIDR_EL1; variant and revision are no model."""
    text = tree.find(name)
    if text is None:
        return None
    if not _REGISTER.fullmatch(text):
        raise MalformedFile(tree.path(name), text, "a register such as 0x00000000410fd0c0")
    return int(text, 16) & _MODEL_BITS


def _fastest_models(capacities: Mapping[int, int], models: Mapping[int, int]) -> frozenset[int]:
    highest: dict[int, int] = {}
    for cpu, model in models.items():
        highest[model] = max(highest.get(model, 0), capacities.get(cpu, 0))
    most = max(highest.values())
    return frozenset(model for model, capacity in highest.items() if capacity == most)


def _clearly_fastest(capacities: Mapping[int, int]) -> Mask:
    """Return the CPUs above the first clear fall in capacity; all where there is none."""
    steps = sorted(set(capacities.values()), reverse=True)
    lowest = steps[0]
    for step in steps:
        if step < lowest * _CLEAR_FALL:
            break
        lowest = step
    return Mask.from_ids(cpu for cpu, capacity in capacities.items() if capacity >= lowest)


def _is_online(tree: SysfsTree, cpu: int) -> bool:
    name = f"{CPU_DIRECTORY}/cpu{cpu}"
    without = "a CPU with a topology counts as online"
    state = tree.optional(lambda: _find_switch(tree, f"{name}/online"), None, without)
    return tree.is_directory(f"{name}/topology") if state is None else state


def _find_switch(tree: SysfsTree, name: str) -> bool | None:
    return tree.find_integer(name) == 1 if tree.find(name) else None
