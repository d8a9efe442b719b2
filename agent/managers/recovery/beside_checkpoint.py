"""Recovery of allocations from cgroups when the checkpoint is missing or outdated.

A checkpoint may be lost, or older than the running pods: a backup, a snapshot, a restored file. A
running pod that is not in the checkpoint keeps the CPUs and memory nodes that its cgroups show
(`agent.managers.recovery.from_cgroups`). If the checkpoint allocates the same CPUs to another pod,
the kernel takes precedence: the other pod is recovered from its own cgroups, or loses its
allocation if these show no exclusive CPUs. If both pods run on the same CPUs, the cgroups of
neither show an exclusive allocation; the checkpoint then takes precedence, and a note reports it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import remove
from agent.managers.cpu.parts import exclusive_cpus, shared_cpus
from agent.managers.effective_policy import charged
from agent.managers.recovery.from_cgroups import contradictions, shown_allocation
from agent.pods.identity import name_and_uid
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.effective_policy import EffectivePolicy
    from agent.managers.recovery.from_cgroups import ObservedContainer, ObservedPod


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
    pool = shared_cpus(rules, ledger) if ledger.allocations else EMPTY
    observed = [pod for pod in pods if pod.uid in ledger.allocations or pod.uid not in orphaned]
    unknown = [pod for pod in observed if pod.uid not in ledger.allocations]
    found: dict[str, PodAllocation] = {}
    notes: list[str] = []
    for pod in unknown:
        others = _others(observed, pod)
        allocation = shown_allocation(rules, pod, others, pool)
        if allocation is not None:
            found[pod.uid] = allocation
        notes += contradictions(rules, pod, others)
        notes += _beside_known(ledger, pod, observed)
    rest, displaced = _displace(rules, ledger, found, observed)
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
    union = EMPTY
    for cgroup in cgroups:
        union |= cgroup.cpus
    return union


def _displace(
    rules: EffectivePolicy,
    ledger: Ledger,
    found: dict[str, PodAllocation],
    pods: Sequence[ObservedPod],
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
            shown = None if pod is None else shown_allocation(rules, pod, _others(pods, pod))
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
