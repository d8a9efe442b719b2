"""Whose a pod is: its source and its name, which one pod has at a time; and what ends it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.allocations.shared_map import differences
from agent.managers.decision import Decision, Reason, Rejection
from agent.pods.identity import full_name, name_and_uid
from agent.pods.lifetime import lifetime_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.allocations.origin import Source
    from agent.pods.identity import Named
    from agent.pods.model import Pod


def owner_after(owner: Source | None, asking: Source) -> Source:
    """Return who a pod of `owner` belongs to after `asking` asked for it, too.

    What belongs to nothing (`Source.key`) takes no pod over: a file keeps its pod if the API is
    asked for the same pod. A file takes over a pod of the API.
    """
    return asking if owner is None or asking.key else owner


def assigned(decision: Decision, before: Ledger, asking: Source) -> Decision:
    """Return a decision whose pod belongs to who asked for it; `before` is the ledger until then.

    A rejection, and a pod that belongs to that source already, stay as they are.
    """
    allocation = decision.allocation
    if allocation is None:
        return decision
    former = before.allocations.get(decision.uid)
    source = owner_after(None if former is None else former.source, asking)
    if allocation.source == source:
        return decision
    ledger = decision.ledger.with_source(decision.uid, source)
    return replace(decision, ledger=ledger, allocation=ledger.allocations[decision.uid])


def lasting(decision: Decision, pod: Pod) -> Decision:
    """Return a decision whose pod has the lifetime that its annotations ask for.

    A pod that is admitted again with the same lifetime stays as it is.
    """
    allocation = decision.allocation
    if allocation is None:
        return decision
    asked = lifetime_of(pod.annotations)
    if replace(allocation.lifetime, started=False) == asked:
        return decision
    ledger = decision.ledger.with_lifetime(decision.uid, asked)
    return replace(decision, ledger=ledger, allocation=ledger.allocations[decision.uid])


class PodNames:
    """The uids of the admitted pods by namespace and name; those without a name are left out.

    Asked about one ledger after the other, an answer costs as much as the ledger changed.
    """

    def __init__(self) -> None:
        self._allocations: Mapping[str, PodAllocation] = MappingProxyType({})
        self._uids: dict[tuple[str, str], dict[str, None]] = {}

    def others(self, ledger: Ledger, pod: Named) -> tuple[PodAllocation, ...]:
        """Return the admitted pods with the namespace and name of a pod that is not admitted."""
        self._take(ledger.allocations)
        if pod.uid in ledger.allocations or not pod.name:
            return ()
        uids = self._uids.get((pod.namespace, pod.name), {})
        return tuple(ledger.allocations[uid] for uid in uids)

    def _take(self, allocations: Mapping[str, PodAllocation]) -> None:
        old, self._allocations = self._allocations, allocations
        for uid in differences(old, allocations):
            if (former := old.get(uid)) is not None and former.name:
                known = self._uids[former.namespace, former.name]
                del known[uid]
                if not known:
                    del self._uids[former.namespace, former.name]
            if (now := allocations.get(uid)) is not None and now.name:
                self._uids.setdefault((now.namespace, now.name), {})[uid] = None


def name_taken(ledger: Ledger, pod: Pod, others: Sequence[PodAllocation]) -> Decision:
    """Return the rejection of a pod whose name `others` have."""
    if len(others) == 1:
        message = f"pod {name_and_uid(others[0])} is admitted and has that name"
        remedy = "remove it first, replace it (numawarden admit --replace), or rename the new pod"
    else:
        uids = ", ".join(other.uid for other in others)
        message = f"{len(others)} admitted pods are called {full_name(pod)}: {uids}"
        remedy = "remove them by their uids first, or rename the new pod"
    return Decision(pod.uid, ledger, cause=Rejection(Reason.CONFLICT, message, remedy=remedy))


def belongs_elsewhere(
    ledger: Ledger, pod: Pod, owner: Source, removal: str, *, uid: str | None = None
) -> Decision:
    """Return the rejection of a pod: that of its uid, or of `uid`, belongs to another source."""
    allocation, own = ledger.allocations[uid or pod.uid], "a uid" if uid is None else "a name"
    rejection = Rejection(
        Reason.CONFLICT,
        f"pod {name_and_uid(allocation)} belongs to {owner} of the source {owner.name}",
        remedy=f"{removal} to end that pod first, or give the new pod {own} of its own",
    )
    return Decision(pod.uid, ledger, cause=rejection)
