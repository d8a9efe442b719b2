"""Which CPUs there are: present, online, isolated, without a tick, of which kind, and in groups.

CPUs of a group share something: a core, a cluster, a die, a package, a last-level cache.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from sysfs.files import InconsistentTree, MalformedFile, MissingFile, SysfsError
from sysfs.host import CoreKind
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sysfs.files import SysfsTree

CPU_DIRECTORY: Final = "sys/devices/system/cpu"

CORE_LISTS: Final = ("core_cpus_list", "thread_siblings_list")

CORE_MAPS: Final = ("core_cpus", "thread_siblings")

CLUSTER_LISTS: Final = ("cluster_cpus_list",)

CLUSTER_MAPS: Final = ("cluster_cpus",)

DIE_LISTS: Final = ("die_cpus_list",)

DIE_MAPS: Final = ("die_cpus",)

PACKAGE_LISTS: Final = ("package_cpus_list", "core_siblings_list")

PACKAGE_MAPS: Final = ("package_cpus", "core_siblings")
#: Package ids are what the firmware gives, up to the largest `int` of the kernel.
HIGHEST_PACKAGE: Final = (1 << 31) - 1


class Topology(Struct, frozen=True):
    """Group of each online CPU, by CPU id; a CPU that is not a key has no such group.

    Values of `cores`, `clusters` and `dies` are the lowest online CPU of the group, values of
    `packages` the kernel's package ids.
    """

    cores: dict[int, int]
    clusters: dict[int, int]
    dies: dict[int, int]
    packages: dict[int, int]


def read_topology(tree: SysfsTree, online: Mask) -> Topology:
    """Read `cpuN/topology` of every online CPU.

    Each group is read once, from its lowest online CPU: the kernel keeps sibling sets
    symmetric, and sets that are seen to overlap raise `InconsistentTree`. Fallbacks:

    - `thread_siblings*` for `core_cpus*`, `core_siblings*` for `package_cpus*`, hexadecimal
      maps for lists (kernels before 5.3, before 2.6.26);
    - `cluster_id` or its files absent or -1: no cluster;
    - `die_id` absent: no die; -1: the package is its one die;
    - `physical_package_id` absent or -1: see `_named_packages`.

    Of clusters, dies and packages a file that is odd costs its own fact. Where no CPU at all lists
    its threads each is a core, with a warning. Raises `MissingFile` where only some do, what else
    is wrong with such a list, `InconsistentTree` where the threads of one core are in two packages.
    """
    cores = tuple(_core_groups(tree, online))
    packages = _named_packages(_packages(tree, online, cores))
    return Topology(
        cores=_cores(tree, cores, packages),
        clusters=_clusters(tree, online),
        dies=_dies(tree, online, packages),
        packages=packages,
    )


def sibling_groups(online: Mask, read: Callable[[int], tuple[str, Mask] | None]) -> Iterator[Mask]:
    """Yield the groups, cut down to online CPUs, reading each from its lowest CPU.

    `read` returns a CPU's sibling set and the path it was read from, or None where the CPU has
    no such group. Raises `InconsistentTree` if a set lacks the CPU itself or overlaps another.
    """
    pending = online
    seen = Mask()
    while pending:
        cpu = pending.lowest
        found = read(cpu)
        if found is None:
            pending -= Mask(1 << cpu)
            continue
        path, siblings = found
        group = siblings & online
        if cpu not in group:
            raise InconsistentTree(path, _lacks(cpu, siblings))
        if not group.isdisjoint(seen):
            raise InconsistentTree(path, _overlaps(group, group & seen))
        yield group
        seen |= group
        pending -= group


def optional_groups(
    tree: SysfsTree, online: Mask, read: Callable[[int], tuple[str, Mask] | None], without: str
) -> tuple[Mask, ...]:
    """Return the groups as `sibling_groups` does, where no group is worth the whole host.

    A set that cannot be read or lacks its CPU is as good as absent: the CPU is in a group where
    the set of another names it. Groups that overlap contradict each other, so none of them
    counts. Both are warnings that end in `without`.
    """
    groups: list[Mask] = []
    pending, seen = online, Mask()
    while pending:
        cpu = pending.lowest
        pending -= Mask(1 << cpu)
        found = tree.optional(partial(read, cpu), None, without)
        if found is None:
            continue
        path, siblings = found
        group = siblings & online
        if cpu not in group:
            tree.warn(path, _lacks(cpu, siblings), without)
            continue
        if not group.isdisjoint(seen):
            tree.warn(path, _overlaps(group, group & seen), without)
            groups = [other for other in groups if other.isdisjoint(group)]
        else:
            groups.append(group)
        seen |= group
        pending -= group
    return tuple(groups)


def _lacks(cpu: int, siblings: Mask) -> str:
    return f"CPU {cpu} is not in its own group, which is {siblings or 'empty'}"


def _overlaps(group: Mask, common: Mask) -> str:
    return f"CPUs {common} are in two groups, of which {group} is one"


def _siblings(
    tree: SysfsTree, cpu: int, lists: tuple[str, ...], maps: tuple[str, ...]
) -> tuple[str, Mask] | None:
    directory = f"{CPU_DIRECTORY}/cpu{cpu}/topology/"
    return tree.find_named_set(
        [directory + name for name in lists], [directory + name for name in maps]
    )


def _core_groups(tree: SysfsTree, online: Mask) -> Iterable[Mask]:
    try:
        return tuple(sibling_groups(online, lambda cpu: _threads(tree, cpu)))
    except MissingFile:
        if any(_siblings(tree, cpu, CORE_LISTS, CORE_MAPS) for cpu in online):
            raise
    path = tree.path(f"{CPU_DIRECTORY}/cpu{online.lowest}/topology/{CORE_LISTS[0]}")
    tree.warn(path, "none of the CPUs lists its threads", "each CPU is a core of its own")
    return [Mask(1 << cpu) for cpu in online]


def _threads(tree: SysfsTree, cpu: int) -> tuple[str, Mask]:
    found = _siblings(tree, cpu, CORE_LISTS, CORE_MAPS)
    if found is None:
        path = tree.path(f"{CPU_DIRECTORY}/cpu{cpu}/topology/{CORE_LISTS[0]}")
        raise MissingFile(path, f"CPU {cpu} is online, so it must list the threads of its core")
    return found


def _cores(tree: SysfsTree, groups: Iterable[Mask], packages: dict[int, int]) -> dict[int, int]:
    cores: dict[int, int] = {}
    for group in groups:
        if len({packages[cpu] for cpu in group}) > 1:
            path = tree.path(f"{CPU_DIRECTORY}/cpu{group.lowest}/topology")
            raise InconsistentTree(path, f"threads {group} of one core are in two packages")
        cores.update(dict.fromkeys(group, group.lowest))
    return cores


def _packages(tree: SysfsTree, online: Mask, cores: Iterable[Mask]) -> dict[int, int]:
    """Return the package id of each CPU, -1 without one.

    The lists only spare reading the id of every CPU: one that is odd costs nothing. A CPU whose
    id is odd is in the package of the other threads of its core.
    """
    packages: dict[int, int] = {}
    unknown = pending = online
    while pending:
        group = _package_mates(tree, pending.lowest) & pending
        package = _package_id(tree, group.lowest)
        pending -= group
        if package is not None:
            packages.update(dict.fromkeys(group, package))
            unknown -= group
    for core in cores if unknown else ():
        known = (packages[cpu] for cpu in core - unknown)
        packages.update(dict.fromkeys(core & unknown, next(known, -1)))
    return packages


def _package_mates(tree: SysfsTree, cpu: int) -> Mask:
    own = Mask(1 << cpu)
    without = "packages go by physical_package_id alone"
    found = tree.optional(lambda: _siblings(tree, cpu, PACKAGE_LISTS, PACKAGE_MAPS), None, without)
    if found is None:
        return own
    path, mates = found
    if cpu not in mates:
        tree.warn(path, _lacks(cpu, mates), without)
        return own
    return mates


def _package_id(tree: SysfsTree, cpu: int) -> int | None:
    """Return the kernel's id, -1 without one, None where it is odd."""
    name = f"{CPU_DIRECTORY}/cpu{cpu}/topology/physical_package_id"

    def read() -> int:
        package = tree.find_integer(name)
        if package is not None and package > HIGHEST_PACKAGE:
            raise MalformedFile(tree.path(name), str(package), f"an id up to {HIGHEST_PACKAGE}")
        return -1 if package is None else max(package, -1)

    return tree.optional(read, None, "the package is that of the core's other threads, or unknown")


def _named_packages(packages: dict[int, int]) -> dict[int, int]:
    """Give the CPUs without a package id (-1: s390, older ppc64) one package of their own.

    Its id is the lowest that no other package has, which is 0 where no CPU has an id.
    """
    used = set(packages.values())
    if -1 not in used:
        return packages
    free = next(number for number in range(len(used) + 1) if number not in used)
    return {cpu: free if package < 0 else package for cpu, package in packages.items()}


def _clusters(tree: SysfsTree, online: Mask) -> dict[int, int]:
    clusters: dict[int, int] = {}
    without = "no cluster is known by it"
    for group in optional_groups(
        tree, online, lambda cpu: _siblings(tree, cpu, CLUSTER_LISTS, CLUSTER_MAPS), without
    ):
        number = _group_id(tree, group.lowest, "cluster_id", without)
        if number is not None and number >= 0:
            clusters.update(dict.fromkeys(group, group.lowest))
    return clusters


def _dies(tree: SysfsTree, online: Mask, packages: dict[int, int]) -> dict[int, int]:
    """Group by package and `die_id`: on Arm `die_cpus_list` holds one CPU and the id is -1."""
    first: dict[tuple[int, int], int] = {}
    dies: dict[int, int] = {}
    without = "no die is known by it"
    for group in optional_groups(
        tree, online, lambda cpu: _siblings(tree, cpu, DIE_LISTS, DIE_MAPS), without
    ):
        lowest = group.lowest
        number = _group_id(tree, lowest, "die_id", without)
        if number is not None:
            die = first.setdefault((packages[lowest], number), lowest)
            dies.update(dict.fromkeys(group, die))
    return dies


def _group_id(tree: SysfsTree, cpu: int, name: str, without: str) -> int | None:
    file = f"{CPU_DIRECTORY}/cpu{cpu}/topology/{name}"
    return tree.optional(lambda: tree.find_integer(file), None, without)


UNCORE_LEVEL: Final = 3
#: Where x86 and most Arm machines have their L3 (L1d, L1i, L2, L3): asked first.
_USUAL_INDEX: Final = 3
#: The size of a cache as the kernel prints it, in KiB.
_SIZE: Final = re.compile(r"([1-9][0-9]{0,11})K", re.ASCII)


def read_uncore(tree: SysfsTree, online: Mask) -> dict[int, int]:
    """Return the lowest online CPU that shares the level 3 cache, by CPU id.

    A CPU whose `cache` directory is absent or has no level 3 is not a key: it has no uncore
    cache, and grouping by cache uses the package instead. So do the CPUs of sets that
    contradict each other.
    """
    groups: dict[int, int] = {}
    without = "no level 3 cache is known by it"
    for group in optional_groups(tree, online, lambda cpu: _shared(tree, cpu), without):
        groups.update(dict.fromkeys(group, group.lowest))
    return groups


def read_uncore_sizes(tree: SysfsTree, uncore: Mapping[int, int]) -> dict[int, int]:
    """Return the size in bytes of each level 3 cache, by its id as `read_uncore` returns them.

    Read once of each cache, from its lowest CPU (`cpuN/cache/indexM/size`, `32768K`). A cache whose
    file is absent or odd is not a key.
    """
    sizes: dict[int, int] = {}
    for cache in sorted(set(uncore.values())):
        found = tree.optional(partial(_size, tree, cache), None, "the size of a cache is not known")
        if found is not None:
            sizes[cache] = found
    return sizes


def _size(tree: SysfsTree, cpu: int) -> int | None:
    directory = f"{CPU_DIRECTORY}/cpu{cpu}/cache"
    index = _uncore_index(tree, directory)
    name = f"{directory}/index{index}/size"
    text = None if index is None else tree.find(name)
    if text is None:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        raise MalformedFile(tree.path(name), text, "a size such as 32768K")
    return int(found[1]) << 10


def _shared(tree: SysfsTree, cpu: int) -> tuple[str, Mask] | None:
    directory = f"{CPU_DIRECTORY}/cpu{cpu}/cache"
    index = _uncore_index(tree, directory)
    if index is None:
        return None
    name = f"{directory}/index{index}/shared_cpu"
    return tree.find_named_set((f"{name}_list",), (f"{name}_map",))


def _uncore_index(tree: SysfsTree, directory: str) -> int | None:
    if _is_uncore(tree, directory, _USUAL_INDEX):
        return _USUAL_INDEX
    for index in tree.numbered(directory, "index"):
        if index != _USUAL_INDEX and _is_uncore(tree, directory, index):
            return index
    return None


def _is_uncore(tree: SysfsTree, directory: str, index: int) -> bool:
    return tree.find_integer(f"{directory}/index{index}/level") == UNCORE_LEVEL


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
