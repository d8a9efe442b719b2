"""Cgroups that have CPUs of a pod and belong to none: those of ended pods and of former bindings.

In go the tree, the ledger and the bindings; out come `OrphanedCgroup`s, which are confined to the
shared pool. The processes in them, and those that start there next, would use CPUs that may be
given to other pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.reconcile.identify import own_cpus, subgroups
from agent.reconcile.placement import pod_cgroups
from cgroupfs.names import Tier, containers
from cgroupfs.state import is_populated
from cgroupfs.tree import is_within, join

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from agent.managers.allocation import PodAllocation
    from agent.managers.bindings import Bindings
    from agent.managers.ledger import Ledger
    from cgroupfs.names import Layout
    from cgroupfs.tree import CgroupTree


class OrphanedCgroup(Struct, frozen=True):
    """A cgroup that belongs to no pod of the ledger."""

    cgroup: str
    #: The cgroups of containers in it.
    containers: tuple[str, ...]
    #: Whether it lies outside the pods' cgroups, and was bound to a container before.
    bound: bool = False


def of_ended_pods(
    tree: CgroupTree, layout: Layout, used: Collection[str], tiers: Iterable[Tier] = Tier
) -> Iterator[OrphanedCgroup]:
    """Yield the cgroups of pods in some QoS classes that are not among the `used` ones."""
    for tier in tiers:
        above = layout.tier(tier)
        try:
            names = tree.children(above)
        except FileNotFoundError:
            continue
        for path in (join(above, name) for name in names):
            if path not in used and layout.parse_pod(path) is not None:
                yield OrphanedCgroup(path, containers(tree, path))


def of_pods(
    tree: CgroupTree, layout: Layout, ended: Iterable[PodAllocation], used: Collection[str]
) -> Iterator[OrphanedCgroup]:
    """Yield the cgroups of these ended pods that exist still, and that no pod of the ledger has."""
    paths, _ = pod_cgroups(tree, layout, {pod.uid: pod for pod in ended})
    for path in paths.values():
        if path not in used and tree.exists(path):
            yield OrphanedCgroup(path, containers(tree, path))


def of_bindings(
    tree: CgroupTree, layout: Layout, ledger: Ledger, bindings: Bindings
) -> Iterator[OrphanedCgroup]:
    """Yield cgroups outside the pods' that were bound, and have processes or CPUs set.

    Such a cgroup has the CPUs of its former container until it is confined.
    """
    inner: set[str] = set()
    for cgroup in given_up(layout, ledger, bindings):
        if cgroup not in inner and (is_populated(tree, cgroup) or own_cpus(tree, cgroup)):
            below = tuple(subgroup.cgroup for subgroup in subgroups(tree, cgroup))
            inner.update(below)
            yield OrphanedCgroup(cgroup, below, bound=True)


def given_up(layout: Layout, ledger: Ledger, bindings: Bindings) -> tuple[str, ...]:
    """Return the cgroups outside the pods' that are no longer bound, sorted.

    A cgroup in a pod's cgroup has no more CPUs than the pod; a cgroup in or around a bound one is
    covered by the binding. Both are left out.
    """
    pods = ledger.allocations
    bound = [binding.cgroup for binding in bindings if binding.is_of(pods)]
    return tuple(
        cgroup
        for cgroup in bindings.given_up(pods)
        if not is_within(cgroup, (layout.pods(), *bound))
        and not any(is_within(inner, (cgroup,)) for inner in bound)
    )
