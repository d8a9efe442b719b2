"""Which part of the cgroup tree has to be observed for one change.

Observing all cgroups costs time in proportion to the pods of the host, while most changes concern
one pod. Cgroups that are left out are not compared, so no CPU that a change gives to a pod may
depend on them:

- the cache is used only after all cgroups were observed and enforced, and as long as every change
  since was enforced too. After any failure the next change observes all cgroups;
- all cgroups are observed when a pod that changed, or the pod that was asked for, has exclusive
  CPUs. Any container may run on CPUs that are about to be given away: a shared container, one that
  started meanwhile, an exclusive one that another process widened. A previous observation is not
  proof;
- any other pod runs in the node's shared pool. It takes no CPUs from other pods, so only its own
  cgroups are observed, all of them, and read back;
- when only the pool changed (the CPUs of a pod went back to it), all cgroups in the pool are
  observed: the pods whose own cgroup includes it, and orphaned cgroups. Pods that run only on CPUs
  of their own do not gain or lose any;
- the cgroup of a removed pod is observed, since it stays as long as processes live in it.

What another process changed or started meanwhile in the part that was left out is found by the
next comparison, which covers all cgroups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.shared_map import differences

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.managers.allocations.bindings import Binding, Bindings
    from agent.managers.allocations.ledger import PodAllocation
    from agent.reconcile.desired.state import Desired
    from sysfs.mask import Mask


class AffectedPods(Struct, frozen=True):
    """A part of the tree: the cgroups of `pods` (uids) and of `gone` pods.

    With `orphaned` also the cgroups of all pods that are not in the ledger.
    """

    pods: frozenset[str]
    gone: tuple[PodAllocation, ...] = ()
    orphaned: bool = False


def scope_of(
    before: Desired | None,
    after: Desired,
    uid: str | None,
    shares: Callable[[str, Mask], bool],
) -> AffectedPods | None:
    """Return what has to be observed so that the kernel enforces `after`; None is everything.

    `before` was enforced in full (None: unknown), the pod `uid` is observed in any case,
    `shares` returns whether a container of a pod (uid) runs in a shared pool.
    """
    if before is None:
        return None
    old, new = before.ledger.allocations, after.ledger.allocations
    # An allocation may be made again with the same content; nearly all are the same object.
    changed = [each for each in differences(old, new) if old.get(each) != new.get(each)]
    concerned = {*changed, *_rebound(before.bindings, after.bindings)}
    if uid is not None:
        concerned.add(uid)
    pods = {each for each in concerned if each in new}
    if any(new[each].exclusive_cpus for each in pods):
        return None
    gone = tuple(old[each] for each in changed if each in old)
    if before.shared_pool == after.shared_pool:
        return AffectedPods(frozenset(pods), gone)
    pods.update(each for each in new if shares(each, before.shared_pool))
    return AffectedPods(frozenset(pods), gone, orphaned=True)


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
