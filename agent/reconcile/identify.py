"""Which cgroup is which container.

Containers are started by container runtimes, so their cgroups are found, not created. In go the
cgroups that exist, the pods of the ledger, bindings and the files of a runtime; out comes each
pod's cgroup with those of its containers, and the cgroups of pods that the ledger does not have.
A cgroup directly in a pod's, or one that was bound, is identified by the first of these rules that
says something:

1. It was bound to a container (`numawarden bind`).
2. Its directory is called exactly as a container of the pod.
3. The files of a container runtime name it (`ContainerIdentifier`): a container, the pod's sandbox,
   or an ephemeral container, which the pod's specification does not have.
4. The unit or directory without suffix is called as a container, or ends with the name after one of
   `-`, `_`, `.`, `@` (`db.scope`, `shop-db.service`, `run@db.service`). The longest such name wins;
   runtimes' ids (`cri-containerd-<id>.scope`) are no names.
5. The pod has only one container.
6. All containers of the pod have the same settings: it may be any of them.
7. It shows exactly the CPUs of one container, which no other container of the pod has and no
   other unknown cgroup shows: it was identified before the agent was restarted.

Any other cgroup is unknown: it gets the pod's safe default (`desired.container.default_settings`)
and is reported. A sandbox and an ephemeral container get the default as well and are not reported:
they have no part in the allocation.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agent.pods.model import QosClass
from agent.reconcile.quota import all_alike
from cgroupfs.errors import CgroupNameError
from cgroupfs.names import (
    RUNTIME_SUBGROUPS,
    Runtime,
    Tier,
    containers,
    containers_of,
    parse_container,
)
from cgroupfs.settings import CPU_MAX, CPUS
from cgroupfs.state import EVENTS
from cgroupfs.tree import join

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.managers.allocation import Binding, Bindings, PodAllocation
    from agent.managers.ledger import Ledger
    from agent.reconcile.target import AffectedPods
    from agent.runtimes import ContainerIdentifier, RuntimeName
    from cgroupfs.names import Layout
    from cgroupfs.tree import CgroupTree


_SEPARATORS: Final = "-_.@"
_TIERS: Final = {qos: Tier(str(qos)) for qos in QosClass}
_BY_CGROUP: Final = attrgetter("cgroup")
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


class LocatedPod(Struct, frozen=True):
    """A pod's cgroup, and those of its containers."""

    cgroup: str
    exists: bool
    containers: tuple[Located, ...] = ()
    #: Whether only the pod's own cgroup was looked at, so that its containers are not known.
    boundary: bool = False


class OrphanedCgroup(Struct, frozen=True):
    """A pod cgroup without a pod in the ledger, with the container cgroups in it."""

    cgroup: str
    containers: tuple[str, ...]
    #: Whether it lies outside the pods' cgroups, and was bound to a container before.
    bound: bool = False


class IdentifiedCgroups(Struct, frozen=True):
    """The cgroups of the ledger's pods, and the orphaned cgroups."""

    #: By uid.
    pods: Mapping[str, LocatedPod]
    orphaned: tuple[OrphanedCgroup, ...] = ()
    #: Why a pod cannot have a cgroup, by uid: the uid is not usable as a name.
    unnamed: Mapping[str, str] = MappingProxyType({})
    #: The cgroups of the QoS classes that have one.
    classes: Mapping[Tier, str] = MappingProxyType({})
    #: The cgroup of all pods.
    all_pods: str = ""


#: What was identified without a look at CPUs or the runtime's files, by the uid of the pod: its
#: allocation, the cgroups as they were listed (and whether each has others inside), and the result,
#: which holds while the first two are the same.
KnownContainers: TypeAlias = "dict[str, tuple[PodAllocation, Mapping[str, bool], LocatedPod]]"


def identify_cgroups(
    tree: CgroupTree,
    layout: Layout,
    ledger: Ledger,
    bindings: Bindings,
    finder: ContainerIdentifier | None = None,
    scope: AffectedPods | None = None,
    known: KnownContainers | None = None,
) -> IdentifiedCgroups:
    """Return the cgroups of every pod, or of those in `scope`.

    `known` is what was identified before. Raises `OSError` as the tree does, but not for missing
    cgroups.
    """
    allocations = ledger.allocations
    known = {} if known is None else known
    for uid in known.keys() - allocations.keys() if len(known) > len(allocations) else ():
        del known[uid]
    if scope is not None:
        allocations = {uid: allocations[uid] for uid in (*scope.pods, *scope.boundaries)}
    paths, unnamed = _paths(tree, layout, allocations)
    boundaries = frozenset[str]() if scope is None else scope.boundaries
    inner = {uid: path for uid, path in paths.items() if uid not in boundaries}
    bound = _bound(tree, layout, ledger, bindings, inner)
    released = frozenset(bindings.released)
    pods = {
        uid: LocatedPod(path, tree.exists(path), boundary=True)
        if uid in boundaries
        else _identified_pod(
            tree, allocations[uid], path, bound.get(uid, {}), finder, known, released
        )
        for uid, path in paths.items()
    }
    if scope is None:
        left = tuple(_orphaned(tree, layout, set(paths.values())))
    elif scope.orphaned:
        # Orphaned cgroups of the other classes inherit the shared pool: they hold no CPUs.
        left = tuple(_orphaned(tree, layout, set(paths.values()), (Tier.GUARANTEED,)))
    else:
        left = _left_of(tree, layout, scope.gone, set(paths.values()))
    others = (*left, *_strays(tree, layout, ledger, bindings))
    return IdentifiedCgroups(pods, others, unnamed, _classes(layout), layout.pods())


def _classes(layout: Layout) -> Mapping[Tier, str]:
    """Return the cgroups of the QoS classes; Guaranteed pods with CPUs are siblings of these."""
    without = (Tier.GUARANTEED, *(() if layout.shares else (Tier.SHARED,)))
    return {tier: layout.tier(tier) for tier in Tier if tier not in without}


def pod_cgroup(tree: CgroupTree, layout: Layout, pod: PodAllocation) -> str:
    """Return the path of a pod's cgroup; raises `CgroupNameError` on an unusable uid.

    Where a cgroup exists, that place counts: whether a pod has CPUs of its own may change, and may
    have been decided under another layout. One that does not exist is placed by what the pod has.
    """
    path = layout.pod(pod.uid, _TIERS[pod.qos])
    if not layout.shares or pod.qos is not QosClass.GUARANTEED:
        return path
    shared = layout.pod(pod.uid, Tier.SHARED)
    if tree.exists(shared) or not (pod.exclusive_cpus or tree.exists(path)):
        return shared
    return path


def subgroups(
    tree: CgroupTree, cgroup: str, released: Collection[str] = ()
) -> tuple[Subgroup, ...]:
    """Return the cgroups inside a container's that have sets of their own.

    These are the ones that a runtime made there, and those of `released` that lie in it. A cgroup
    without the cpuset controller follows the container and is left out.
    """
    paths = [f"{cgroup}/{name}" for name in RUNTIME_SUBGROUPS]
    if released:
        paths.extend(sorted({p for p in released if p.startswith(f"{cgroup}/")} - {*paths}))
    found: list[Subgroup] = []
    for path in paths:
        # Nearly no container has one, and an error for each missing one costs more than the look.
        subgroup = _subgroup(tree, path) if tree.exists(path) else None
        if subgroup is not None:
            found.append(subgroup)
    return tuple(found)


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
    found = [_recognized(pod, cgroup, finder) for cgroup in cgroups]
    if None not in found:
        return tuple(each for each in found if each is not None)
    alike = bool(pod.containers) and all_alike(pod)
    other = (None, IdentifiedBy.ALIKE if alike else IdentifiedBy.UNKNOWN)
    return tuple(each or other for each in found)


def _recognized(
    pod: PodAllocation, cgroup: str, finder: ContainerIdentifier | None
) -> tuple[str | None, IdentifiedBy] | None:
    """Return which container a cgroup is by rules 2 to 5, None where these do not say."""
    directory = cgroup.rpartition("/")[2]
    if pod.container(directory) is not None:
        return directory, IdentifiedBy.NAME
    if finder is not None:
        said = finder.container_of(pod, cgroup)
        if said is not None:
            return _as_said(pod, said)
    named = name_match(directory, (c.name for c in pod.containers))
    if named is not None:
        return named, IdentifiedBy.NAME
    if len(pod.containers) == 1:
        return pod.containers[0].name, IdentifiedBy.ONLY
    return None


def _as_said(pod: PodAllocation, said: RuntimeName) -> tuple[str | None, IdentifiedBy]:
    if said.container is None:
        return None, IdentifiedBy.SANDBOX
    if pod.container(said.container) is not None:
        return said.container, IdentifiedBy.RUNTIME
    return None, IdentifiedBy.EPHEMERAL


def name_match(directory: str, names: Iterable[str]) -> str | None:
    """Return the longest of the names that matches a cgroup's directory (rule 4)."""
    parsed = parse_container(directory)
    if parsed is None or parsed.runtime not in _NAMED_BY_USERS:
        return None
    matching = [name for name in names if _called(parsed.id, name)]
    return max(matching, key=len, default=None)


def _called(stem: str, name: str) -> bool:
    return stem == name or (stem.endswith(name) and stem[-len(name) - 1] in _SEPARATORS)


def _paths(
    tree: CgroupTree, layout: Layout, allocations: Mapping[str, PodAllocation]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the pods' cgroups by uid, and the reasons of those that cannot have one."""
    paths: dict[str, str] = {}
    unnamed: dict[str, str] = {}
    for uid, pod in allocations.items():
        try:
            paths[uid] = pod_cgroup(tree, layout, pod)
        except CgroupNameError as error:
            unnamed[uid] = str(error)
    return paths, unnamed


def _bound(
    tree: CgroupTree,
    layout: Layout,
    ledger: Ledger,
    bindings: Bindings,
    paths: Mapping[str, str],
) -> dict[str, dict[str, str]]:
    """Return {pod uid: {cgroup: container}} of the bindings that can be enforced.

    These are the bindings of the pods of `paths`, and those of other pods nested in them: of two
    nested cgroups the inner one is the container.
    """
    if not bindings:
        return {}
    near = _near(bindings, paths)
    others = {
        b.pod_uid: ledger.allocations[b.pod_uid] for b in near if b.pod_uid in ledger.allocations
    }
    homes, _ = _paths(tree, layout, others)
    valid = {
        binding.cgroup: binding
        for binding in near
        if (path := homes.get(binding.pod_uid)) is not None
        and binding.is_of(ledger.allocations)
        and _may_be_of(layout, path, binding.cgroup)
        and tree.exists(binding.cgroup)
    }
    bound: dict[str, dict[str, str]] = {}
    for cgroup, binding in valid.items():
        # Of two nested cgroups the inner one is the container.
        if not any(other.startswith(f"{cgroup}/") for other in valid):
            bound.setdefault(binding.pod_uid, {})[cgroup] = binding.container
    return bound


def _near(bindings: Bindings, paths: Mapping[str, str]) -> tuple[Binding, ...]:
    own = tuple(f"{binding.cgroup}/" for binding in bindings if binding.pod_uid in paths)
    return tuple(
        binding
        for binding in bindings
        if binding.pod_uid in paths or f"{binding.cgroup}/".startswith(own)
    )


def _may_be_of(layout: Layout, own: str, cgroup: str) -> bool:
    return cgroup.startswith(f"{own}/") or not f"{cgroup}/".startswith(f"{layout.pods()}/")


def _identified_pod(
    tree: CgroupTree,
    pod: PodAllocation,
    path: str,
    bound: dict[str, str],
    finder: ContainerIdentifier | None,
    known: KnownContainers,
    released: frozenset[str],
) -> LocatedPod:
    try:
        listed = tree.listed(path)
    except FileNotFoundError:
        listed = None
    before = None if bound or released else known.get(pod.uid)
    if before is not None and before[0] is pod and before[1] == listed and before[2].cgroup == path:
        return before[2]
    found = containers_of(path, listed or {})
    located = [
        Located(cgroup, container, IdentifiedBy.BOUND, subgroups(tree, cgroup, released))
        for cgroup, container in bound.items()
    ]
    # A cgroup around a bound one is not a container itself; its settings stay as they are.
    unbound = [
        cgroup
        for cgroup in found
        if not bound
        or not (cgroup in bound or any(inner.startswith(f"{cgroup}/") for inner in bound))
    ]
    identified = zip(unbound, identify(pod, unbound, finder), strict=True)
    located += [
        Located(cgroup, name, identity, subgroups(tree, cgroup, released) if found[cgroup] else ())
        for cgroup, (name, identity) in identified
    ]
    located = _by_cpus(tree, pod, located)
    result = LocatedPod(path, listed is not None, tuple(sorted(located, key=_BY_CGROUP)))
    plain = found and not (bound or released or any(found.values()))
    if listed and plain and all(_is_final(member, finder) for member in located):
        known[pod.uid] = pod, listed, result
    return result


def _is_final(member: Located, finder: ContainerIdentifier | None) -> bool:
    """Return whether neither the cgroup's CPUs nor the runtime's files were asked what it is."""
    if finder is not None:
        return member.container == member.cgroup.rpartition("/")[2]
    return member.identity not in (IdentifiedBy.CPUS, IdentifiedBy.UNKNOWN)


def _by_cpus(tree: CgroupTree, pod: PodAllocation, located: list[Located]) -> list[Located]:
    """Identify the cgroups that only their CPUs distinguish (rule 7)."""
    unknown = [member.cgroup for member in located if member.identity is IdentifiedBy.UNKNOWN]
    if not unknown:
        return located
    shown = {cgroup: _cpus_of(tree, cgroup) for cgroup in unknown}
    texts = Counter(shown.values())
    allocated = Counter(str(one.cpus) for one in pod.containers)
    taken = {member.container for member in located}
    names = {
        str(one.cpus): one.name
        for one in pod.containers
        if one.cpus
        and one.name not in taken
        and allocated[str(one.cpus)] == 1
        and texts[str(one.cpus)] == 1
    }
    return [
        replace(member, container=names[text], identity=IdentifiedBy.CPUS)
        if (text := shown.get(member.cgroup, "")) in names
        else member
        for member in located
    ]


def _cpus_of(tree: CgroupTree, cgroup: str) -> str:
    try:
        return (tree.read_many(cgroup, (CPUS,))[0] or "").strip()
    except FileNotFoundError:  # it has ended
        return ""


def _strays(
    tree: CgroupTree, layout: Layout, ledger: Ledger, bindings: Bindings
) -> Iterator[OrphanedCgroup]:
    """Yield cgroups outside the pods' that are no longer bound, and have processes or CPUs set.

    Such a cgroup has the CPUs of its former container until it is confined, both for the processes
    in it and for those that start there next, while these CPUs may be given to other pods.
    """
    inner: set[str] = set()
    for cgroup in given_up(layout, ledger, bindings):
        if cgroup not in inner and (runs(tree, cgroup) or _cpus_of(tree, cgroup)):
            below = tuple(each.cgroup for each in subgroups(tree, cgroup))
            inner.update(below)
            yield OrphanedCgroup(cgroup, below, bound=True)


def given_up(layout: Layout, ledger: Ledger, bindings: Bindings) -> tuple[str, ...]:
    """Return the cgroups outside the pods' that are no longer bound, sorted.

    A cgroup in a pod's cgroup has no more CPUs than the pod; a cgroup in or around a bound one is
    covered by the binding. Both are left out.
    """
    living = ledger.allocations
    bound = [f"{binding.cgroup}/" for binding in bindings if binding.is_of(living)]
    return tuple(
        cgroup
        for cgroup in bindings.given_up(living)
        if not f"{cgroup}/".startswith(f"{layout.pods()}/")
        and not any(b.startswith(f"{cgroup}/") or f"{cgroup}/".startswith(b) for b in bound)
    )


def runs(tree: CgroupTree, cgroup: str) -> bool:
    """Return whether processes live in a cgroup or below."""
    try:
        return "populated 1" in tree.read(cgroup, EVENTS)
    except FileNotFoundError:
        return False


def _left_of(
    tree: CgroupTree, layout: Layout, gone: Iterable[PodAllocation], known: set[str]
) -> tuple[OrphanedCgroup, ...]:
    paths, _ = _paths(tree, layout, {pod.uid: pod for pod in gone})
    return tuple(
        OrphanedCgroup(path, containers(tree, path))
        for path in paths.values()
        if path not in known and tree.exists(path)
    )


def _orphaned(
    tree: CgroupTree, layout: Layout, known: set[str], tiers: Iterable[Tier] = Tier
) -> Iterator[OrphanedCgroup]:
    for tier in tiers:
        above = layout.tier(tier)
        try:
            names = tree.children(above)
        except FileNotFoundError:
            continue
        for path in (join(above, name) for name in names):
            if path not in known and layout.parse_pod(path) is not None:
                yield OrphanedCgroup(path, containers(tree, path))
