"""Which part of the tree has to be looked at for one change.

Looking at everything costs as much as there is on the host, while most changes concern one pod.
What is left out is not compared with anything, so nothing that a change gives may depend on it:

- memory counts only after everything was looked at and enforced, and as long as each change since
  was enforced too. After any trouble the next look is at everything;
- as soon as a pod that changed, or that somebody asks for, holds exclusive CPUs, everything is
  looked at. Anybody may be on CPUs that are about to be given away: a shared container, one that
  started meanwhile, an exclusive one that somebody widened. Nobody is trusted to be elsewhere
  because he once was;
- any other pod is given the node's shared pool, which is everybody's. It takes nothing from
  anybody, so only its own cgroups are looked at, whole and read back;
- when the pool changed without that (the CPUs of a pod went back to it), whatever runs in the pool
  is looked at: the pods whose own cgroup includes it, and what is left of removed pods. Pods that
  run on CPUs of their own only have nothing to gain or lose;
- of a pod that is gone its cgroup is looked at, which stays as long as processes live there.

What somebody else undid meanwhile in the part that was left out, and what started there, is found
by the next comparison, which leaves nothing out.
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

    With `leftovers` those of all pods that are not in the ledger.
    """

    pods: frozenset[str]
    gone: tuple[PodAllocation, ...] = ()
    leftovers: bool = False


def scope_of(
    before: Desired | None,
    after: Desired,
    uid: str | None,
    shares: Callable[[str, Mask], bool],
) -> AffectedPods | None:
    """Return what has to be looked at so that the kernel enforces `after`; None is everything.

    `before` was enforced in full (None: nothing is known to be), `uid` is looked at in any case,
    `shares` tells of a pod (uid) whether something in it runs in a shared pool.
    """
    if before is None:
        return None
    old, new = before.ledger.allocations, after.ledger.allocations
    # Equal allocations may be made again; nearly all are the very same.
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
    return AffectedPods(frozenset(pods), gone, leftovers=True)


def _rebound(old: Bindings, new: Bindings) -> set[str]:
    """Return the pods (uids) that a changed binding concerns.

    Of two cgroups that lie in each other the inner one counts, whoever it is bound for.
    """
    if old == new:
        return set()
    differing = set(old) ^ set(new)
    beside = {one.pod_uid for one in new for each in differing if _nested(one, each)}
    return {each.pod_uid for each in differing} | beside


def _nested(one: Binding, other: Binding) -> bool:
    first, second = f"{one.cgroup}/", f"{other.cgroup}/"
    return first.startswith(second) or second.startswith(first)
