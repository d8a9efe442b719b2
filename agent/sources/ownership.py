"""Which source a pod belongs to and what ends it, beside the decision itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.decision import Decision, Reason, Rejection
from agent.pods.identity import name_and_uid
from agent.pods.lifetime import lifetime_of

if TYPE_CHECKING:
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.allocations.origin import Source
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


def belongs_elsewhere(ledger: Ledger, pod: Pod, owner: Source, removal: str) -> Decision:
    """Return the rejection of a pod whose uid belongs to another source."""
    allocation = ledger.allocations[pod.uid]
    rejection = Rejection(
        Reason.CONFLICT,
        f"pod {name_and_uid(allocation)} belongs to {owner} of the source {owner.name}",
        remedy=f"{removal} to end that pod first, or give the new pod a uid of its own",
    )
    return Decision(pod.uid, ledger, cause=rejection)
