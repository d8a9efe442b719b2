"""Recovery of allocations from cgroups when the checkpoint is missing or outdated.

A checkpoint may be lost, or older than the running pods: a backup, a snapshot, a restored file.

A pod cgroup with processes in it, whose CPUs no other cgroup shows, is evidence that these CPUs
were allocated to its pod; so are memory nodes written into it. The pod gets an allocation of both
without a name: no task is moved or stopped, and no other pod gets them. The first specification
of its uid that asks for as much completes it (`agent.managers.readmission`); removing
the pod frees it. CPUs that are shared, reserved or not online are not evidence of an allocation:
such pods run on unchanged and are admitted again. The amount of memory is known if `memory.max`
is set. Cgroups do not show devices.

If the checkpoint allocates the same CPUs to another pod, the kernel takes precedence: the other pod
is recovered from its own cgroups, or loses its allocation if these show no exclusive CPUs. If both
pods run on the same CPUs, the cgroups of neither show an exclusive allocation; the checkpoint then
takes precedence, and a note reports it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import remove
from agent.managers.allocation import (
    ContainerAllocation,
    Isolation,
    MemoryBlock,
    Origin,
    PodAllocation,
)
from agent.managers.cpu.manager import exclusive_cpus, shared_cpus
from agent.managers.memory.state import charged_blocks
from agent.managers.pools import pod_pools
from agent.managers.rules import charged
from agent.pods.model import MEMORY, ContainerKind, QosClass, name_and_uid
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy


class ObservedContainer(Struct, frozen=True):
    """One cgroup as the kernel shows it: its directory's name, CPUs and memory nodes.

    Empty sets are unset. `in_effect` is False when `cpuset.cpus.effective` differs from the CPUs.
    `memory` is the limit in bytes, 0 without a limit: the request of a Guaranteed container.
    `inherits`: the CPUs are those of a cgroup above.
    """

    name: str
    cpus: Mask
    mems: Mask
    in_effect: bool = True
    memory: int = 0
    inherits: bool = False


class ObservedPod(Struct, frozen=True):
    """A pod cgroup that has processes, with its container cgroups."""

    uid: str
    qos: QosClass
    own: ObservedContainer
    containers: tuple[ObservedContainer, ...]


def describe_recovered(allocation: PodAllocation) -> str:
    """Return what was recovered and what is unknown: `CPUs 1,9, memory on nodes 0`."""
    blocks = [block for _, block in charged_blocks(allocation)]
    parts = [f"CPUs {allocation.exclusive_cpus}"] if allocation.exclusive_cpus else []
    if blocks:
        nodes = EMPTY
        for block in blocks:
            nodes |= block.nodes
        parts.append(f"memory on nodes {nodes}")
    if any(not block.size for block in blocks):
        parts.append("how much of it is not known and not counted")
    return ", ".join(parts)


def shown_allocation(
    rules: EffectivePolicy,
    pod: ObservedPod,
    others: Sequence[ObservedContainer],
    shared: Collection[Mask] = (),
) -> PodAllocation | None:
    """Return the allocation without a name that a pod's cgroups show, None when they show none.

    `others` are the cgroups of all other pods. `shared` are the node's shared pool and those of
    `agent.pools` with pods in them, as known from a checkpoint: a cgroup with exactly the CPUs of
    one has no exclusive CPUs.
    """
    # In other classes named containers alone have CPUs of their own, and no memory is pinned.
    guaranteed = pod.qos is QosClass.GUARANTEED
    containers = tuple(
        _container(
            rules,
            seen,
            pod,
            exclusive=seen.cpus not in shared and _is_exclusive(rules, seen, others),
        )
        for seen in pod.containers
    )
    whole = guaranteed and pod.own.cpus not in shared and _is_exclusive(rules, pod.own, others)
    if not whole and not any(one.cpus is not None or one.memory for one in containers):
        return None
    return PodAllocation(
        uid=pod.uid,
        name="",
        namespace="",
        qos=pod.qos,
        spec_digest="",
        containers=containers,
        cpus=pod.own.cpus if whole else None,
        memory=_pinned(rules, pod.own) if guaranteed and pod.own.memory else (),
        origin=Origin.RECOVERED,
    )


def contradictions(
    rules: EffectivePolicy, pod: ObservedPod, others: Sequence[ObservedContainer]
) -> Iterator[str]:
    """Yield the cgroups that look like an allocation and contradict another pod's cgroups."""
    for seen in pod.containers if rules.static_cpus else ():
        if not seen.cpus or not seen.cpus <= rules.assignable_cpus:
            continue
        overlapping = [o for o in others if seen.cpus & o.cpus]
        if not seen.in_effect:
            yield f"pod {pod.uid}: {seen.name} shows CPUs {seen.cpus}, which are not effective"
        elif overlapping and not any(seen.cpus <= other.cpus for other in overlapping):
            yield (
                f"pod {pod.uid}: {seen.name} shows CPUs {seen.cpus}, some of them as another pod"
            )


def _is_exclusive(
    rules: EffectivePolicy, seen: ObservedContainer, others: Iterable[ObservedContainer]
) -> bool:
    """Return whether a set of CPUs can only be an exclusive allocation.

    The node's shared pool contains the reserved CPUs, or is shown by several pods, or (with
    `strict-cpu-reservation` and a single pod in it) is indistinguishable from an allocation: then
    it counts as exclusive, which keeps other pods away until the pod is admitted or removed.
    """
    if not rules.static_cpus:
        return False
    own = bool(seen.cpus) and not seen.inherits
    possible = own and seen.in_effect and seen.cpus <= rules.assignable_cpus
    return possible and not any(seen.cpus & other.cpus for other in others)


def _pinned(rules: EffectivePolicy, seen: ObservedContainer) -> tuple[MemoryBlock, ...]:
    """Return a block on the nodes that the cgroup shows, of size 0 if the cgroup has no limit."""
    nodes = seen.mems & rules.memory.mask
    return (MemoryBlock(MEMORY, seen.memory, nodes),) if rules.static_memory and nodes else ()


def _container(
    rules: EffectivePolicy, seen: ObservedContainer, pod: ObservedPod, *, exclusive: bool
) -> ContainerAllocation:
    shared = any(seen.cpus & other.cpus for other in pod.containers if other is not seen)
    isolation = Isolation.POD if shared else Isolation.CONTAINER
    return ContainerAllocation(
        name=seen.name,
        kind=ContainerKind.APP,
        isolation=isolation if exclusive else Isolation.HOST,
        cpus=seen.cpus if exclusive else None,
        memory=_pinned(rules, seen) if pod.qos is QosClass.GUARANTEED else (),
    )


class Displaced(Struct, frozen=True):
    """An allocation of the checkpoint that was displaced by a running pod.

    The checkpoint allocates CPUs `lost` to pod `uid`, but pod `by` (a uid) runs on them. `kept` are
    the CPUs that the cgroups of pod `uid` show, with which the pod is recovered; empty if the pod
    no longer has an allocation.
    """

    uid: str
    name: str
    namespace: str
    lost: Mask
    by: str
    kept: Mask

    def __str__(self) -> str:
        if self.kept:
            left = f"recovered with CPUs {self.kept}, as its cgroups show; admit the pod to confirm"
        else:
            left = (
                "it no longer has an allocation, its processes run in the node's shared pool; "
                "admit the pod again"
            )
        return (
            f"the checkpoint allocates CPUs {self.lost} to pod {name_and_uid(self)}, but pod "
            f"{self.by} runs there: {left}"
        )


class Recovery(Struct, frozen=True):
    """A ledger with the allocations recovered from cgroups.

    `recovered` are the uids of the recovered pods, `displaced` the allocations of the checkpoint
    that were replaced. `notes` has one line for each contradiction between cgroups.
    """

    ledger: Ledger
    recovered: tuple[str, ...] = ()
    displaced: tuple[Displaced, ...] = ()
    notes: tuple[str, ...] = ()


def recover(
    rules: EffectivePolicy,
    ledger: Ledger,
    pods: Iterable[ObservedPod],
    orphaned: Collection[str] = (),
) -> Recovery:
    """Return a checkpoint's ledger (or an empty ledger) with the running pods that are not in it.

    `orphaned` are uids of pods that are known not to be in the ledger: their cgroups are not
    evidence of an allocation and are about to be confined to the shared pool.
    """
    if not rules.static_cpus and not rules.static_memory:
        return Recovery(ledger)
    # Without a checkpoint the shared pool is unknown: a lone pod in it counts as exclusive.
    shared: Collection[Mask] = ()
    if ledger.allocations:
        node = shared_cpus(rules, ledger)
        # A pool without pods may have been given away since the checkpoint.
        pools = pod_pools(rules, ledger.allocations.values(), node)
        shared = {node, *(pool.cpus for pool in pools.values())}
    observed = [pod for pod in pods if pod.uid in ledger.allocations or pod.uid not in orphaned]
    unknown = [pod for pod in observed if pod.uid not in ledger.allocations]
    found: dict[str, PodAllocation] = {}
    notes: list[str] = []
    for pod in unknown:
        others = _others(observed, pod)
        allocation = shown_allocation(rules, pod, others, shared)
        if allocation is not None:
            found[pod.uid] = allocation
        notes += contradictions(rules, pod, others)
        notes += _beside_known(ledger, pod, observed)
    rest, displaced = _displace(rules, ledger, found, observed, shared)
    return Recovery(_with(rules, rest, found.values()), tuple(found), displaced, tuple(notes))


def _others(pods: Iterable[ObservedPod], pod: ObservedPod) -> tuple[ObservedContainer, ...]:
    """Return all cgroups of the other pods."""
    return tuple(one for each in pods if each is not pod for one in (each.own, *each.containers))


def _beside_known(ledger: Ledger, pod: ObservedPod, pods: Iterable[ObservedPod]) -> Iterator[str]:
    """Yield the pods of the checkpoint whose exclusive CPUs this pod's cgroups show as well."""
    for other in pods:
        allocation = ledger.allocations.get(other.uid)
        if allocation is None or not allocation.exclusive_cpus:
            continue
        both = allocation.exclusive_cpus & _union(other.containers) & _union(pod.containers)
        if both:
            yield (
                f"cgroups of pod {pod.uid} show CPUs {both}, which the checkpoint allocates to pod "
                f"{other.uid}; that pod runs there too and keeps them"
            )


def _union(cgroups: Iterable[ObservedContainer]) -> Mask:
    return Mask.union(cgroup.cpus for cgroup in cgroups)


def _displace(
    rules: EffectivePolicy,
    ledger: Ledger,
    found: dict[str, PodAllocation],
    pods: Sequence[ObservedPod],
    shared: Collection[Mask],
) -> tuple[Ledger, tuple[Displaced, ...]]:
    """Remove allocations that conflict with `found`; pods recovered instead are added to `found`.

    A pod recovered with other CPUs than the checkpoint's may displace the next pod. Each pod is
    removed once, so the loop ends.
    """
    running = {(pod.uid, pod.qos): pod for pod in pods}
    displaced: list[Displaced] = []
    waiting = deque(found.values())
    while waiting:
        one = waiting.popleft()
        for old in _conflicting(ledger, one):
            ledger = remove(rules, ledger, old.uid)
            pod = running.get((old.uid, old.qos))
            others = () if pod is None else _others(pods, pod)
            shown = None if pod is None else shown_allocation(rules, pod, others, shared)
            kept = EMPTY if shown is None else shown.exclusive_cpus
            if shown is not None and kept:
                found[old.uid] = replace(
                    shown, name=old.name, namespace=old.namespace, source=old.source
                )
                waiting.append(found[old.uid])
            lost = old.exclusive_cpus & one.exclusive_cpus
            displaced.append(Displaced(old.uid, old.name, old.namespace, lost, one.uid, kept))
    return ledger, tuple(displaced)


def _conflicting(ledger: Ledger, one: PodAllocation) -> tuple[PodAllocation, ...]:
    if not exclusive_cpus(ledger) & one.exclusive_cpus:
        return ()
    return tuple(
        each for each in ledger.allocations.values() if each.exclusive_cpus & one.exclusive_cpus
    )


def _with(rules: EffectivePolicy, ledger: Ledger, allocations: Iterable[PodAllocation]) -> Ledger:
    for allocation in allocations:
        ledger = charged(rules, ledger, allocation)
    return ledger
