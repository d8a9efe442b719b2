"""The cgroups of pods and of their containers, as they are in the tree now.

In go the tree, the ledger, the bindings and the files of a container runtime; out comes, for each
pod, its cgroup with those of its containers (`agent.reconcile.identify` says which is which), and
the cgroups that belong to no pod (`agent.reconcile.orphans`). Container runtimes make the cgroups
of containers, so these are found and never created here.

A binding says that a cgroup, in the pod's or elsewhere, is a certain container of a pod. A cgroup
that was bound before is released. Of a boundary only the pod's own cgroup is looked at.
"""

from __future__ import annotations

from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from agent.reconcile import orphans
from agent.reconcile.identify import IdentifiedBy, Located, by_cpus, identify, subgroups
from agent.reconcile.placement import pod_cgroups
from cgroupfs.names import Tier, containers_of
from cgroupfs.tree import is_within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.bindings import Bindings
    from agent.managers.ledger import Ledger
    from agent.reconcile.orphans import OrphanedCgroup
    from agent.reconcile.scope import AffectedPods
    from agent.runtimes import ContainerIdentifier
    from cgroupfs.names import Layout
    from cgroupfs.tree import CgroupTree

_BY_CGROUP: Final = attrgetter("cgroup")


class LocatedPod(Struct, frozen=True):
    """A pod's cgroup, and those of its containers."""

    cgroup: str
    exists: bool
    containers: tuple[Located, ...] = ()
    #: Whether only the pod's own cgroup was looked at, so that its containers are not known.
    boundary: bool = False


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


#: What was identified by names alone, by the uid of the pod: the allocation, the cgroups as they
#: were listed (and whether each has others inside), and the result. It holds while the first two
#: are the same. Where CPUs or the files of a runtime were read, nothing is kept.
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

    `finder` reads the files of a runtime, `known` is what was identified before and is kept up to
    date. Raises `OSError` as the tree does, but not for missing cgroups.
    """
    allocations, known = ledger.allocations, {} if known is None else known
    # 1. Forget ended pods once more pods are known than there are.
    if len(known) > len(allocations):
        for uid in known.keys() - allocations.keys():
            del known[uid]
    # 2. The pods' own cgroups.
    boundaries = frozenset[str]() if scope is None else scope.boundaries
    if scope is not None:
        allocations = {uid: allocations[uid] for uid in (*scope.pods, *boundaries)}
    paths, unnamed = pod_cgroups(tree, layout, allocations)
    # 3. The containers in them, but for those of which only the boundary counts.
    observed = {uid: path for uid, path in paths.items() if uid not in boundaries}
    bound = _bound(tree, layout, ledger, bindings, observed)
    released = frozenset(bindings.released)
    pods = {
        uid: LocatedPod(path, tree.exists(path), boundary=True)
        if uid in boundaries
        else _identified_pod(
            tree, allocations[uid], path, bound.get(uid, {}), finder, known, released
        )
        for uid, path in paths.items()
    }
    # 4. What belongs to no pod. For one change only that of Guaranteed pods is looked for: in the
    #    other QoS classes it inherits the shared pool, and has no CPUs that the change gives away.
    used = frozenset(paths.values())
    if scope is None:
        orphaned = orphans.of_ended_pods(tree, layout, used)
    elif scope.orphaned:
        orphaned = orphans.of_ended_pods(tree, layout, used, (Tier.GUARANTEED,))
    else:
        orphaned = orphans.of_pods(tree, layout, scope.gone, used)
    unbound = orphans.of_bindings(tree, layout, ledger, bindings)
    return IdentifiedCgroups(pods, (*orphaned, *unbound), unnamed, _classes(layout), layout.pods())


def _classes(layout: Layout) -> Mapping[Tier, str]:
    """Return the cgroups of the QoS classes that have one.

    Guaranteed pods with CPUs of their own stand beside these, those without in the shared cgroup,
    where the layout has one.
    """
    without = (Tier.GUARANTEED, *(() if layout.shares else (Tier.SHARED,)))
    return {tier: layout.tier(tier) for tier in Tier if tier not in without}


def _bound(
    tree: CgroupTree,
    layout: Layout,
    ledger: Ledger,
    bindings: Bindings,
    paths: Mapping[str, str],
) -> dict[str, dict[str, str]]:
    """Return the bound cgroups of the pods of `paths`: {pod uid: {cgroup: container}}.

    A binding counts while its pod is in the ledger and its cgroup exists, inside its pod's cgroup
    or outside of all pods'. Of two nested bound cgroups the inner one is the container, so the
    bindings of other pods whose cgroups lie in one of these pods' are looked at, too.
    """
    if not bindings:
        return {}
    allocations = ledger.allocations
    outer = tuple(binding.cgroup for binding in bindings if binding.pod_uid in paths)
    candidates = [
        binding
        for binding in bindings
        if (binding.pod_uid in paths or is_within(binding.cgroup, outer))
        and binding.is_of(allocations)
    ]
    homes, _ = pod_cgroups(
        tree, layout, {binding.pod_uid: allocations[binding.pod_uid] for binding in candidates}
    )
    valid = {
        binding.cgroup: binding
        for binding in candidates
        if (home := homes.get(binding.pod_uid)) is not None
        and _may_be_of(layout, home, binding.cgroup)
        and tree.exists(binding.cgroup)
    }
    bound: dict[str, dict[str, str]] = {}
    for cgroup, binding in valid.items():
        if not any(_is_below(other, cgroup) for other in valid):
            bound.setdefault(binding.pod_uid, {})[cgroup] = binding.container
    return bound


def _may_be_of(layout: Layout, home: str, cgroup: str) -> bool:
    """Return whether a cgroup is in a pod's own one (`home`), or outside of all pods'."""
    return _is_below(cgroup, home) or not is_within(cgroup, (layout.pods(),))


def _is_below(cgroup: str, above: str) -> bool:
    return cgroup.startswith(f"{above}/")


def _identified_pod(
    tree: CgroupTree,
    pod: PodAllocation,
    path: str,
    bound: Mapping[str, str],
    finder: ContainerIdentifier | None,
    known: KnownContainers,
    released: frozenset[str],
) -> LocatedPod:
    """Return a pod with its containers.

    `path` is its cgroup, `bound` has the containers by the cgroups that are bound to them,
    `released` are the cgroups of former bindings.
    """
    try:
        listed = tree.listed(path)
    except FileNotFoundError:
        listed = None
    # 1. What is known holds while nothing has changed.
    before = None if bound or released else known.get(pod.uid)
    if before is not None and before[0] is pod and before[1] == listed and before[2].cgroup == path:
        return before[2]
    # 2. The bound containers.
    located = [
        Located(cgroup, container, IdentifiedBy.BOUND, subgroups(tree, cgroup, released))
        for cgroup, container in bound.items()
    ]
    # 3. The others. A cgroup around a bound one is no container, and is left as it is.
    inside = containers_of(path, listed or {})
    unbound = [
        cgroup
        for cgroup in inside
        if not any(inner == cgroup or _is_below(inner, cgroup) for inner in bound)
    ]
    for cgroup, (name, identity) in zip(unbound, identify(pod, unbound, finder), strict=True):
        below = subgroups(tree, cgroup, released) if inside[cgroup] else ()
        located.append(Located(cgroup, name, identity, below))
    located = by_cpus(tree, pod, located)
    identified = LocatedPod(path, listed is not None, tuple(sorted(located, key=_BY_CGROUP)))
    # 4. Keep the result if every container was identified by name.
    plain = inside and not (bound or released or any(inside.values()))
    if listed and plain and all(_is_told_by_name(one, finder) for one in located):
        known[pod.uid] = pod, listed, identified
    return identified


def _is_told_by_name(located: Located, finder: ContainerIdentifier | None) -> bool:
    """Return whether a cgroup was identified by neither its CPUs nor the runtime's files.

    Where a runtime's files are read, that holds for a cgroup with the name of its container alone.
    """
    if finder is not None:
        return located.container == located.cgroup.rpartition("/")[2]
    return located.identity not in (IdentifiedBy.CPUS, IdentifiedBy.UNKNOWN)
