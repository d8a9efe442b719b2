"""Which container a cgroup is: the rules by which a cgroup in a pod's own is identified.

In go the pod, its cgroups, and the files of a container runtime; out comes for each cgroup the
container, and how that is known (`IdentifiedBy`). The first of these rules that says something
counts:

1. The cgroup was bound to a container (`numawarden bind`).
2. Its directory has exactly the name of a container of the pod.
3. The files of a container runtime name it (`ContainerIdentifier`): a container, the pod's sandbox,
   or an ephemeral container, which the pod's specification does not have.
4. The unit, or the directory without its suffix, has the name of a container, or ends with that
   name after one of `-`, `_`, `.`, `@` (`db.scope`, `shop-db.service`, `run@db.service`). The
   longest such name counts. Ids of runtimes (`cri-containerd-<id>.scope`) are no names.
5. The pod has only one container.
6. All containers of the pod have the same settings: the cgroup may be any of them.
7. The cgroup has exactly the CPUs of one container, which no other container of the pod and no
   other unknown cgroup has: it was identified before the agent was restarted.

Any other cgroup is unknown: it gets the pod's safe default (`desired.container.default_settings`)
and is reported. A sandbox and an ephemeral container get the default as well and are not reported:
they have no part in the allocation.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.reconcile.container_settings import all_alike
from cgroupfs.names import RUNTIME_SUBGROUPS, Runtime, parse_container
from cgroupfs.settings import CPU_MAX, CPUS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from agent.managers.allocation import PodAllocation
    from agent.runtimes import ContainerIdentifier, RuntimeName
    from cgroupfs.tree import CgroupTree


_SEPARATORS: Final = "-_.@"
_NAMED_BY_USERS: Final = (Runtime.SYSTEMD, Runtime.PLAIN)


class IdentifiedBy(StrEnum):
    """How it is known which container a cgroup is."""

    BOUND = "bound"
    RUNTIME = "by the runtime's files"
    NAME = "by its name"
    ONLY = "the only container"
    ALIKE = "all containers have the same settings"
    CPUS = "by the CPUs it has"
    SANDBOX = "the pod's sandbox"
    #: The runtime's files name a container that the pod's specification does not have.
    EPHEMERAL = "an ephemeral container"
    UNKNOWN = "unknown"


class Subgroup(Struct, frozen=True):
    """A cgroup with sets of its own that a runtime made inside a container's for the process."""

    cgroup: str
    #: Whether it has a `cpu.max` of its own, too.
    quota: bool


class Located(Struct, frozen=True):
    """A container's cgroup."""

    cgroup: str
    #: The container's name; None for ALIKE, SANDBOX, EPHEMERAL and UNKNOWN.
    container: str | None
    identity: IdentifiedBy
    #: What the runtime made inside it (crun's `container`).
    subgroups: tuple[Subgroup, ...] = ()


def subgroups(
    tree: CgroupTree, cgroup: str, released: Collection[str] = ()
) -> tuple[Subgroup, ...]:
    """Return the cgroups inside a container's that have sets of their own.

    These are the ones that a runtime made there, and those of `released`, which were bound before,
    that lie in it. One without the cpuset controller follows the container and is left out.
    """
    paths = [f"{cgroup}/{name}" for name in RUNTIME_SUBGROUPS]
    if released:
        paths.extend(sorted({p for p in released if p.startswith(f"{cgroup}/")} - {*paths}))
    # Nearly no container has one, and an error for each missing one costs more than the look.
    present = (_subgroup(tree, path) for path in paths if tree.exists(path))
    return tuple(subgroup for subgroup in present if subgroup is not None)


def _subgroup(tree: CgroupTree, path: str) -> Subgroup | None:
    try:
        cpus, cpu_max = tree.read_many(path, (CPUS, CPU_MAX))
    except FileNotFoundError:
        return None
    return None if cpus is None else Subgroup(path, cpu_max is not None)


def identify(
    pod: PodAllocation, cgroups: Iterable[str], finder: ContainerIdentifier | None = None
) -> tuple[tuple[str | None, IdentifiedBy], ...]:
    """Return which container each unbound cgroup is, and how that is known (rules 2 to 6).

    The containers of a pod that was recovered from its cgroups are named after the directories.
    """
    by_name = [_by_name(pod, cgroup, finder) for cgroup in cgroups]
    if None not in by_name:
        return tuple(answer for answer in by_name if answer is not None)
    alike = bool(pod.containers) and all_alike(pod)
    otherwise = (None, IdentifiedBy.ALIKE if alike else IdentifiedBy.UNKNOWN)
    return tuple(answer or otherwise for answer in by_name)


def _by_name(
    pod: PodAllocation, cgroup: str, finder: ContainerIdentifier | None
) -> tuple[str | None, IdentifiedBy] | None:
    """Return which container a cgroup is by rules 2 to 5, None where these do not say."""
    directory = cgroup.rpartition("/")[2]
    # 2.
    if pod.container(directory) is not None:
        return directory, IdentifiedBy.NAME
    # 3.
    if finder is not None:
        runtime_name = finder.container_of(pod, cgroup)
        if runtime_name is not None:
            return _by_runtime(pod, runtime_name)
    # 4.
    name = name_match(directory, (container.name for container in pod.containers))
    if name is not None:
        return name, IdentifiedBy.NAME
    # 5.
    if len(pod.containers) == 1:
        return pod.containers[0].name, IdentifiedBy.ONLY
    return None


def _by_runtime(pod: PodAllocation, name: RuntimeName) -> tuple[str | None, IdentifiedBy]:
    if name.container is None:
        return None, IdentifiedBy.SANDBOX
    if pod.container(name.container) is not None:
        return name.container, IdentifiedBy.RUNTIME
    return None, IdentifiedBy.EPHEMERAL


def name_match(directory: str, names: Iterable[str]) -> str | None:
    """Return the longest of the names that matches a cgroup's directory (rule 4)."""
    parsed = parse_container(directory)
    if parsed is None or parsed.runtime not in _NAMED_BY_USERS:
        return None
    return max((name for name in names if _matches(parsed.id, name)), key=len, default=None)


def _matches(stem: str, name: str) -> bool:
    return stem == name or (stem.endswith(name) and stem[-len(name) - 1] in _SEPARATORS)


def by_cpus(tree: CgroupTree, pod: PodAllocation, located: list[Located]) -> list[Located]:
    """Return a pod's cgroups, with those identified that only their CPUs distinguish (rule 7)."""
    unknown = [one.cgroup for one in located if one.identity is IdentifiedBy.UNKNOWN]
    if not unknown:
        return located
    shown = {cgroup: own_cpus(tree, cgroup) for cgroup in unknown}
    times_shown = Counter(shown.values())
    times_allocated = Counter(str(container.cpus) for container in pod.containers)
    identified = {one.container for one in located}
    names = {
        cpus: container.name
        for container in pod.containers
        if container.cpus
        and container.name not in identified
        and times_allocated[cpus := str(container.cpus)] == 1
        and times_shown[cpus] == 1
    }
    return [
        replace(one, container=names[cpus], identity=IdentifiedBy.CPUS)
        if (cpus := shown.get(one.cgroup, "")) in names
        else one
        for one in located
    ]


def own_cpus(tree: CgroupTree, cgroup: str) -> str:
    """Return the CPUs that a cgroup has of its own, "" where it has none or has ended."""
    try:
        return (tree.read_many(cgroup, (CPUS,))[0] or "").strip()
    except FileNotFoundError:
        return ""
