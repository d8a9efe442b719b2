"""Which pods have to be observed so that the kernel enforces one change.

Observing all cgroups costs time in proportion to the containers of the host, while most changes
concern one pod. What is left out is not compared, so no CPU that a change gives to a pod may depend
on it. `scope_of` returns what to observe (`AffectedPods`), by the first rule that applies:

1. Everything, unless all cgroups were once observed and enforced, and so was each later change; and
   where the node's capacity changed.
2. If the change takes no CPUs from other pods: the cgroups of the pods that it concerns.
3. Everything, if a pod of another QoS class than Guaranteed has CPUs of its own: it splits its
   class, whose cgroup then is no boundary between the pods inside.
4. Else CPUs change hands: a pod that the change concerns has exclusive CPUs, or the shared pool
   changed. Any container may run on CPUs that are about to be given away: one that started
   meanwhile, one that another process moved or widened. A former observation is not proof. But no
   container has more CPUs than the cgroups above it, so the boundaries are observed: the cgroups of
   the QoS classes, in which the pods of a class inherit the shared pool, and the own cgroup of each
   Guaranteed pod that does not inherit the pool. Observed in full are the pods that the change
   concerns, those that have containers in the shared pool beside exclusive CPUs, and those bound to
   cgroups outside of the pods'. The cgroup of a removed pod is observed, since it stays as long as
   processes live in it.

What another process changed or started meanwhile in the part that is left out is found by the next
comparison, which observes everything. Where an observed boundary was changed by another process,
the enforcer observes everything, too; the cgroup of a class is repaired, and confines what is
inside again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.ledger import differences
from agent.pods.model import QosClass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet

    from agent.managers.allocation import PodAllocation
    from agent.managers.bindings import Binding, Bindings
    from agent.reconcile.pod_classes import PodClasses
    from agent.reconcile.target import Desired
    from sysfs.mask import Mask


class AffectedPods(Struct, frozen=True):
    """The part of the tree that is observed."""

    #: The uids of pods that are observed in full.
    pods: frozenset[str]
    #: The former allocations of pods that were removed or changed.
    gone: tuple[PodAllocation, ...] = ()
    #: The uids of pods of which only their own cgroup is observed.
    boundaries: frozenset[str] = frozenset()
    #: Whether the cgroups of Guaranteed pods that are not in the ledger are observed, too.
    orphaned: bool = False


def scope_of(
    before: Desired | None,
    after: Desired,
    uids: Collection[str],
    shares: Callable[[str, Mask], bool],
    inheriting: AbstractSet[str],
    all_pods: str,
    classes: PodClasses,
) -> AffectedPods | None:
    """Return what has to be observed so that the kernel enforces `after`; None is everything.

    `before` was enforced in full (None: unknown). Of the pods `uids` those in the ledger are
    observed in any case, as are those whose pool of shared CPUs changed. `shares` returns whether a
    container of a pod (uid) runs in a shared pool, `inheriting` are the pods (uids) that inherit
    the pool from a cgroup above. `all_pods` is the cgroup of all pods, `classes` are those of the
    pods in `after`.
    """
    # 1.
    if before is None or before.capacity != after.capacity:
        return None
    old, new = before.ledger.allocations, after.ledger.allocations
    # `differences` compares objects: an allocation may be made again with the same content.
    changed = [uid for uid in differences(old, new) if old.get(uid) != new.get(uid)]
    concerned = {*changed, *_rebound(before.bindings, after.bindings), *uids}
    if before.pools or after.pools:
        concerned |= {uid for uid in new if before.pools.get(uid) != after.pools.get(uid)}
    pods = {uid for uid in concerned if uid in new}
    gone = tuple(old[uid] for uid in changed if uid in old)
    # 2.
    exclusive = any(new[uid].exclusive_cpus for uid in pods)
    if not exclusive and before.shared_pool == after.shared_pool:
        return AffectedPods(frozenset(pods), gone)
    # 3.
    splits = any(new[uid].exclusive_cpus for uid in pods & inheriting)
    if splits or classes.split or any(map(_splits_its_class, gone)):
        return None
    # 4.
    elsewhere = (one for one in after.bindings if not one.cgroup.startswith(f"{all_pods}/"))
    pods |= {binding.pod_uid for binding in elsewhere if binding.pod_uid in new}
    guaranteed = classes.guaranteed - pods - inheriting
    pods |= {
        uid for uid in guaranteed if new[uid].exclusive_cpus and shares(uid, before.shared_pool)
    }
    return AffectedPods(frozenset(pods), gone, guaranteed - pods, orphaned=True)


def _splits_its_class(pod: PodAllocation) -> bool:
    return pod.qos is not QosClass.GUARANTEED and bool(pod.exclusive_cpus)


def _rebound(old: Bindings, new: Bindings) -> set[str]:
    """Return the pods (uids) that a changed binding concerns.

    Of two nested cgroups the inner one is the container: a changed binding also concerns the pods
    that cgroups inside and around it are bound to.
    """
    if old == new:
        return set()
    differing = set(old) ^ set(new)
    nested = {one.pod_uid for one in new for other in differing if _are_nested(one, other)}
    return {binding.pod_uid for binding in differing} | nested


def _are_nested(one: Binding, other: Binding) -> bool:
    first, second = f"{one.cgroup}/", f"{other.cgroup}/"
    return first.startswith(second) or second.startswith(first)
