"""Which part of the cgroup tree has to be observed for one change.

Observing all cgroups costs time in proportion to the containers of the host, while most changes
concern one pod. Cgroups that are left out are not compared, so no CPU that a change gives to a pod
may depend on them:

- a part is observed only after all cgroups were observed and enforced, and as long as every change
  since was enforced too. After any failure the next change observes all cgroups;
- a pod without exclusive CPUs takes none from other pods, so only its own cgroups are observed, all
  of them, and read back;
- when CPUs change hands (a pod that changed, or a pod that was asked for, has exclusive CPUs, or
  the shared pool changed), any container may run on CPUs that are about to be given away: one that
  started meanwhile, one that another process moved or widened. A previous observation is not proof.
  But no container has more CPUs than the cgroups above it. So the boundaries are observed: the
  cgroups of the QoS classes, in which all pods of a class inherit the shared pool, and the own
  cgroup of every Guaranteed pod that does not inherit the pool, too. Observed in full are the pods
  that changed, those that run in the shared pool beside exclusive CPUs of their own, and those
  bound to cgroups outside of the pods';
- where another process changed the own cgroup of such a pod, all cgroups are observed after all,
  and where a pod of another class than Guaranteed has CPUs of its own, so that its class does not
  confine; the cgroup of a class is repaired, and confines all that is inside again;
- the cgroup of a removed pod is observed, since it stays as long as processes live in it.

What another process changed or started meanwhile in the part that was left out is found by the
next comparison, which covers all cgroups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.shared_map import differences
from agent.pods.model import QosClass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from collections.abc import Set as AbstractSet

    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.bindings import Binding, Bindings
    from agent.reconcile.desired.classes import PodClasses
    from agent.reconcile.desired.state import Desired
    from sysfs.mask import Mask


class AffectedPods(Struct, frozen=True):
    """A part of the tree: the cgroups of `pods` (uids) and of `gone` pods.

    Of the pods of `boundaries` (uids) only the pod's own cgroup is observed. With `orphaned` also
    the cgroups of Guaranteed pods that are not in the ledger.
    """

    pods: frozenset[str]
    gone: tuple[PodAllocation, ...] = ()
    boundaries: frozenset[str] = frozenset()
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

    `before` was enforced in full (None: unknown), the pods `uids` are observed in any case,
    `shares` returns whether a container of a pod (uid) runs in a shared pool, `inheriting` are the
    pods (uids) that a cgroup above them confines. `all_pods` is the cgroup of all pods, `classes`
    are those of the pods in `after`.
    """
    if before is None:
        return None
    old, new = before.ledger.allocations, after.ledger.allocations
    # An allocation may be made again with the same content; nearly all are the same object.
    changed = [each for each in differences(old, new) if old.get(each) != new.get(each)]
    concerned = {*changed, *_rebound(before.bindings, after.bindings), *uids}
    pods = {each for each in concerned if each in new}
    gone = tuple(old[each] for each in changed if each in old)
    exclusive = any(new[each].exclusive_cpus for each in pods)
    if not exclusive and before.shared_pool == after.shared_pool:
        return AffectedPods(frozenset(pods), gone)
    splits = any(new[each].exclusive_cpus for each in pods & inheriting)
    if splits or classes.split or any(map(_splits_its_class, gone)):
        return None
    pods |= {each.pod_uid for each in _elsewhere(after.bindings, all_pods) if each.pod_uid in new}
    guaranteed = classes.guaranteed - pods - inheriting
    pods |= {
        each for each in guaranteed if new[each].exclusive_cpus and shares(each, before.shared_pool)
    }
    return AffectedPods(frozenset(pods), gone, guaranteed - pods, orphaned=True)


def _splits_its_class(pod: PodAllocation) -> bool:
    return pod.qos is not QosClass.GUARANTEED and bool(pod.exclusive_cpus)


def _elsewhere(bindings: Iterable[Binding], all_pods: str) -> Iterable[Binding]:
    return (one for one in bindings if not one.cgroup.startswith(f"{all_pods}/"))


def _rebound(old: Bindings, new: Bindings) -> set[str]:
    """Return the pods (uids) that a changed binding concerns.

    Of two nested cgroups the inner one counts, whichever pod it is bound to.
    """
    if old == new:
        return set()
    differing = set(old) ^ set(new)
    beside = {one.pod_uid for one in new for each in differing if _nested(one, each)}
    return {each.pod_uid for each in differing} | beside


def _nested(one: Binding, other: Binding) -> bool:
    first, second = f"{one.cgroup}/", f"{other.cgroup}/"
    return first.startswith(second) or second.startswith(first)
