"""Taking over what the kernel shows beside a checkpoint that does not know of it, or beside none.

A checkpoint may be lost, or be older than what runs: a backup, a snapshot, a file that was put
back. A pod that runs and that it does not know keeps what its cgroups show
(`agent.managers.recovery.from_cgroups`). Where the checkpoint gives the same CPUs to another pod,
the kernel is right: that pod is taken as its own cgroups show it or, where these show no CPUs that
are its alone, loses its allocation. Of two pods that both run on the same CPUs neither shows that
they are its own, so the checkpoint stays right, and that is noted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import remove
from agent.managers.effective_policy import shared_cpus
from agent.managers.memory.state import charge_allocation
from agent.managers.recovery.from_cgroups import contradictions, shown_allocation
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from agent.managers.allocations.ledger import Ledger, PodAllocation
    from agent.managers.effective_policy import EffectivePolicy
    from agent.managers.recovery.from_cgroups import ObservedContainer, ObservedPod


class Displaced(Struct, frozen=True):
    """An allocation of the checkpoint that gave way to what runs.

    Pod `uid` was given the CPUs `lost`, on which pod `by` (its uid) runs. `kept` are the CPUs that
    its own cgroups show, with which it is recovered; empty where it holds nothing any more.
    """

    uid: str
    name: str
    namespace: str
    lost: Mask
    by: str
    kept: Mask

    def __str__(self) -> str:
        if self.kept:
            left = f"its own cgroups show CPUs {self.kept}, which it keeps; admit it to confirm"
        else:
            left = (
                "it holds nothing any more, and what runs of it is in the node's shared pool; "
                "admit it again"
            )
        return (
            f"pod {self.namespace}/{self.name} (uid {self.uid}) was given CPUs {self.lost} by the "
            f"checkpoint, but pod {self.by} runs there: {left}"
        )


class Recovery(Struct, frozen=True):
    """A ledger with what the kernel shows.

    `recovered` are the uids of the pods whose allocations are taken from their cgroups, `displaced`
    what gave way to them. `notes` says, a line each, what the cgroups show against each other.
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
    """Return a checkpoint's ledger (or an empty one) with what pods show that run beside it.

    `orphaned` are uids of pods that are known to be none of the ledger: what they show is no
    evidence, for they are about to be confined to the shared pool.
    """
    if not rules.static_cpus and not rules.static_memory:
        return Recovery(ledger)
    # Without a checkpoint the pool is not known: a lone pod in it is taken to hold it.
    pool = shared_cpus(rules, ledger) if ledger.allocations else EMPTY
    seen = [pod for pod in pods if pod.uid in ledger.allocations or pod.uid not in orphaned]
    unknown = [pod for pod in seen if pod.uid not in ledger.allocations]
    found: dict[str, PodAllocation] = {}
    notes: list[str] = []
    for pod in unknown:
        others = _others(seen, pod)
        allocation = shown_allocation(rules, pod, others, pool)
        if allocation is not None:
            found[pod.uid] = allocation
        notes += contradictions(rules, pod, others)
        notes += _beside_known(ledger, pod, seen)
    rest, displaced = _give_way(rules, ledger, found, seen)
    return Recovery(_with(rules, rest, found.values()), tuple(found), displaced, tuple(notes))


def _others(pods: Iterable[ObservedPod], pod: ObservedPod) -> tuple[ObservedContainer, ...]:
    """Return all cgroups of the other pods."""
    return tuple(seen for each in pods if each is not pod for seen in (each.own, *each.containers))


def _beside_known(ledger: Ledger, pod: ObservedPod, pods: Iterable[ObservedPod]) -> Iterator[str]:
    """Yield which pods of the checkpoint run on CPUs of their own that this pod shows as well."""
    for other in pods:
        allocation = ledger.allocations.get(other.uid)
        if allocation is None or not allocation.exclusive_cpus:
            continue
        both = allocation.exclusive_cpus & _union(other.containers) & _union(pod.containers)
        if both:
            yield (
                f"pod {pod.uid} shows CPUs {both}, which the checkpoint gives to pod {other.uid}, "
                "which runs there too: they stay that pod's"
            )


def _union(cgroups: Iterable[ObservedContainer]) -> Mask:
    union = EMPTY
    for seen in cgroups:
        union |= seen.cpus
    return union


def _give_way(
    rules: EffectivePolicy,
    ledger: Ledger,
    found: dict[str, PodAllocation],
    pods: Sequence[ObservedPod],
) -> tuple[Ledger, tuple[Displaced, ...]]:
    """Take out of a ledger what conflicts with `found`; what is recovered instead is added there.

    A pod that is recovered with other CPUs than the checkpoint's may displace the next one. Each
    is taken out once, so this ends.
    """
    running = {(pod.uid, pod.qos): pod for pod in pods}
    displaced: list[Displaced] = []
    waiting = deque(found.values())
    while waiting:
        one = waiting.popleft()
        for held in _conflicting(ledger, one):
            ledger = remove(rules, ledger, held.uid)
            pod = running.get((held.uid, held.qos))
            shown = None if pod is None else shown_allocation(rules, pod, _others(pods, pod))
            kept = EMPTY if shown is None else shown.exclusive_cpus
            if shown is not None and kept:
                found[held.uid] = replace(shown, name=held.name, namespace=held.namespace)
                waiting.append(found[held.uid])
            lost = held.exclusive_cpus & one.exclusive_cpus
            displaced.append(Displaced(held.uid, held.name, held.namespace, lost, one.uid, kept))
    return ledger, tuple(displaced)


def _conflicting(ledger: Ledger, one: PodAllocation) -> tuple[PodAllocation, ...]:
    if not ledger.exclusive_cpus & one.exclusive_cpus:
        return ()
    return tuple(
        held for held in ledger.allocations.values() if held.exclusive_cpus & one.exclusive_cpus
    )


def _with(rules: EffectivePolicy, ledger: Ledger, allocations: Iterable[PodAllocation]) -> Ledger:
    for allocation in allocations:
        memory = charge_allocation(rules.memory, ledger.memory, allocation)
        ledger = ledger.with_allocation(allocation).with_memory(memory)
    return ledger
