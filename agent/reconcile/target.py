"""What the kernel should enforce, and which part of it has to be observed for one change.

`Desired` is what should be enforced, `usable` what of a ledger the host can enforce now, and
`scope_of` returns which pods a change affects; `PodClasses` are the pods by their QoS class, as far
as the cgroups of the classes depend on them.

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

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocation import NO_BINDINGS, Isolation
from agent.managers.ledger import Taken, differences
from agent.managers.violations import ADMIT_AGAIN
from agent.pods.model import CPU, HUGEPAGES_PREFIX, MEMORY, QosClass
from cgroupfs.names import Tier
from sysfs.host import union_of
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from agent.managers.allocation import (
        Binding,
        Bindings,
        ContainerAllocation,
        MemoryBlock,
        PodAllocation,
    )
    from agent.managers.ledger import Ledger
    from sysfs.host import Host, WithheldCpus
    from sysfs.mask import Mask


class Requested(Struct, frozen=True):
    """What some pods request together: CPUs in millicores, memory and huge pages in bytes."""

    millis: int = 0
    memory: int = 0
    huge_pages: int = 0

    def changed(self, new: Iterable[PodAllocation], gone: Iterable[PodAllocation]) -> Requested:
        """Return the sum with pods that came and without those that went."""
        millis, memory, pages = self.millis, self.memory, self.huge_pages
        for sign, pods in ((1, new), (-1, gone)):
            for pod in pods:
                millis += sign * (pod.cpu.request_millis or 0)
                memory += sign * pod.requests.get(MEMORY, 0)
                pages += sign * huge_pages_of(pod.requests)
        return Requested(millis, memory, pages)


def huge_pages_of(amounts: Mapping[str, int]) -> int:
    """Return the bytes of huge pages of all sizes among amounts by resource."""
    return sum(size for name, size in amounts.items() if name.startswith(HUGEPAGES_PREFIX))


class PodClasses(Struct, frozen=True):
    """Which pods are Guaranteed, which of other classes have CPUs of their own, what they request.

    `guaranteed` and `split` are uids. The sums of requests are those of the Burstable pods, of the
    Guaranteed ones, and of those of these without CPUs of their own. Made again from the one
    before, a value costs as much as the ledger changed.
    """

    allocations: Mapping[str, PodAllocation] = MappingProxyType({})
    guaranteed: frozenset[str] = frozenset()
    split: frozenset[str] = frozenset()
    burstable: Requested = Requested()
    all_guaranteed: Requested = Requested()
    sharing: Requested = Requested()

    def of(self, allocations: Mapping[str, PodAllocation]) -> PodClasses:
        """Return the classes of other allocations."""
        old = self.allocations
        changed = differences(old, allocations)
        if not changed:
            return self
        gone = [old[uid] for uid in changed if uid in old]
        new = [allocations[uid] for uid in changed if uid in allocations]
        return PodClasses(
            allocations,
            (self.guaranteed - _uids(gone)) | {pod.uid for pod in new if _is_guaranteed(pod)},
            (self.split - _uids(gone))
            | {pod.uid for pod in new if pod.exclusive_cpus and not _is_guaranteed(pod)},
            self.burstable.changed(filter(_is_burstable, new), filter(_is_burstable, gone)),
            self.all_guaranteed.changed(filter(_is_guaranteed, new), filter(_is_guaranteed, gone)),
            self.sharing.changed(filter(_shares, new), filter(_shares, gone)),
        )

    def split_classes(self) -> frozenset[Tier]:
        """Return the classes in which a pod has CPUs of its own, so that others cannot inherit.

        No policy allocates them so; a recovered or imported allocation may be one.
        """
        return frozenset(Tier(str(self.allocations[uid].qos)) for uid in self.split)

    def of_tier(self, tier: Tier) -> Requested:
        """Return what the pods of a class request, or the pods in the shared cgroup.

        BestEffort pods request nothing.
        """
        return {Tier.BURSTABLE: self.burstable, Tier.SHARED: self.sharing}.get(tier, Requested())


NO_PODS = PodClasses()


def _uids(pods: list[PodAllocation]) -> set[str]:
    return {pod.uid for pod in pods}


def _is_guaranteed(pod: PodAllocation) -> bool:
    return pod.qos is QosClass.GUARANTEED


def _is_burstable(pod: PodAllocation) -> bool:
    return pod.qos is QosClass.BURSTABLE


def _shares(pod: PodAllocation) -> bool:
    return _is_guaranteed(pod) and not pod.exclusive_cpus


def usable(ledger: Ledger, host: Host, known: Ledger | None = None) -> Ledger:
    """Return a ledger as the host can enforce it; the same object when nothing is missing.

    `known` is a ledger that this host can enforce in full: its allocations are not checked again.

    The kernel runs a cgroup none of whose CPUs it may use on its parent's CPUs, which other pods
    use too. So a container that lost all of its CPUs, offline or withheld, runs on what is left of
    its pod's budget, or in the node's shared pool, until the CPUs are back. The allocations
    themselves do not change. Offline CPUs stay in a set that has others, so that they come back by
    themselves; withheld ones do not: another cgroup's partition is made only of CPUs that no set
    beside it lists.
    """
    # The kernel rejects a cpuset.mems that names a node without memory.
    nodes = host.nodes_with_memory
    allocations = ledger.allocations
    new = allocations if known is None else differences(known.allocations, allocations)
    fitting = {uid: _pod(allocations[uid], host, nodes) for uid in new if uid in allocations}
    reduced = {
        uid: allocation for uid, allocation in fitting.items() if allocation is not allocations[uid]
    }
    if not reduced:
        return ledger
    left = MappingProxyType({**allocations, **reduced})
    exclusive = EMPTY
    for allocation in left.values():
        exclusive |= allocation.exclusive_cpus
    return replace(ledger, allocations=left).with_part(CPU, Taken(exclusive))


def _pod(allocation: PodAllocation, host: Host, nodes: Mask) -> PodAllocation:
    if allocation.exclusive_cpus <= host.usable and _all_there(allocation, nodes):
        return allocation
    budget = allocation.cpus if allocation.cpus is None else _running(allocation.cpus, host)
    containers = tuple(_container(one, budget, host, nodes) for one in allocation.containers)
    return replace(
        allocation,
        cpus=budget,
        memory=_present(allocation.memory, nodes),
        containers=containers,
        idle=allocation.idle - host.withheld_cpus,
    )


def _container(
    allocation: ContainerAllocation, budget: Mask | None, host: Host, nodes: Mask
) -> ContainerAllocation:
    memory = _present(allocation.memory, nodes)
    allocation = replace(allocation, memory_nodes=allocation.memory_nodes & nodes)
    if allocation.cpus is None:
        return replace(allocation, memory=memory)
    own = _running(allocation.cpus, host)
    if own is not None:
        return replace(allocation, memory=memory, cpus=own)
    isolation = Isolation.HOST if budget is None else Isolation.POD
    return replace(
        allocation, memory=memory, cpus=budget, isolation=isolation, quota_disabled=False
    )


def _running(cpus: Mask, host: Host) -> Mask | None:
    """Return the CPUs that pods can have, offline ones included; None when none of them runs."""
    return cpus & (host.usable | host.offline) if cpus & host.usable else None


def lacking(ledger: Ledger, withheld: Iterable[WithheldCpus]) -> Mapping[str, str]:
    """Return a sentence with its remedy, by uid, for each pod that has withheld CPUs."""
    found: dict[str, str] = {}
    gone = tuple(withheld)
    for uid, allocation in ledger.allocations.items() if gone else ():
        own = allocation.exclusive_cpus
        concerned = [replace(each, cpus=each.cpus & own) for each in gone if each.cpus & own]
        if concerned:
            left = own - union_of(concerned)
            rest = f"has only {left} of its {own}" if left else "runs in the node's shared pool"
            places, remedies = map(str, concerned), (each.remedy for each in concerned)
            found[uid] = (
                f"{' and '.join(places)}, so the pod {rest}; {', '.join(remedies)}, "
                f"or {ADMIT_AGAIN}"
            )
    return MappingProxyType(found)


def _all_there(allocation: PodAllocation, nodes: Mask) -> bool:
    blocks = (*allocation.memory, *(block for one in allocation.containers for block in one.memory))
    allowed = (one.memory_nodes for one in allocation.containers)
    return all(each <= nodes for each in (*allowed, *(block.nodes for block in blocks)))


def _present(blocks: Iterable[MemoryBlock], nodes: Mask) -> tuple[MemoryBlock, ...]:
    left = (replace(block, nodes=block.nodes & nodes) for block in blocks)
    return tuple(block for block in left if block.nodes)


class Desired(Struct, frozen=True):
    """What the kernel should enforce: allocations, the node's shared pool, explicit bindings.

    `capacity` is what the node has (`agent.managers.host.machine_capacity`), by which the cgroup of
    all pods is limited; without it that is not. `lacking` says what the ledger lacks of what pods
    were allocated, since it is withheld: a sentence by uid.
    """

    ledger: Ledger
    shared_pool: Mask
    bindings: Bindings = NO_BINDINGS
    capacity: Mapping[str, int] = MappingProxyType({})
    lacking: Mapping[str, str] = MappingProxyType({})


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
    if before is None or before.capacity != after.capacity:
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
