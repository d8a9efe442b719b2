"""Moves: a running pod gets other CPUs and memory nodes.

In go the rules, the ledger and a `Move`, out comes a decision: the pod is decided again with only
its new place free. Which moves make room for another pod is planned in `agent.managers.move_plans`.
Always true:

1. A pod moves only if its annotation, or that of a trial, allows it, and only to what is free or
   its own. It keeps its amounts and every quality that it has (`agent.managers.quality`). A pod
   with devices stays.
2. A move is made as a whole or rejected; a rejected one changes nothing. It is rejected, too, if
   the pod is neither where the plan found it nor at its new place, or if that is no longer free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import allocated
from agent.managers.allocation import KUBELET, PodSets
from agent.managers.amounts import nodes_text
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.quality import verdict
from agent.managers.resize import carried
from agent.managers.rules import released
from agent.managers.specification import specification_of
from agent.pods.model import MOVE, ContainerKind, Movable, full_name
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.managers.allocation import MemoryBlock, PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


class Move(Struct, frozen=True):
    """One pod that moves: what it has, and what it would have."""

    uid: str
    before: PodSets
    after: PodSets


def sets_of(allocation: PodAllocation) -> PodSets:
    """Return a pod's exclusive CPUs and the NUMA nodes of its pinned memory."""
    containers = (block for container in allocation.containers for block in container.memory)
    return PodSets(allocation.exclusive_cpus, _nodes((*allocation.memory, *containers)))


def allowed(allocation: PodAllocation) -> Movable | None:
    """Return what the annotation of a pod lets move, None for nothing."""
    text = allocation.annotations.get(MOVE)
    return None if text is None else Movable(text)


def moved(
    rules: EffectivePolicy, ledger: Ledger, move: Move, allows: Movable | None = None
) -> Decision:
    """Decide on a move; raises `KeyError` for a pod that is not admitted.

    `allows` replaces the pod's annotation, for trials. A pod that is at its new place already stays
    as it is. Pure.
    """
    existing = ledger.allocations[move.uid]
    present, name = sets_of(existing), full_name(existing)
    if present == move.after:
        return Decision(move.uid, ledger, allocation=existing, already_admitted=True)
    if present != move.before:
        message = f"pod {name} has {_text(present)}, and had {_text(move.before)} in the plan"
        return Decision(move.uid, ledger, cause=_infeasible(message, _NEW_PLAN))
    decision = moved_within(rules, ledger, existing, move.after, allows)
    if decision.allocation is None:
        return decision
    would = sets_of(decision.allocation)
    if would != move.after:
        message = f"pod {name} would get {_text(would)}, not the planned {_text(move.after)}"
        return _rejected(decision, ledger, _infeasible(message, _NEW_PLAN))
    return decision


def moved_within(
    rules: EffectivePolicy,
    ledger: Ledger,
    existing: PodAllocation,
    place: PodSets,
    allows: Movable | None = None,
) -> Decision:
    """Decide an admitted pod again within some CPUs and memory nodes; it need not use all of them.

    `allows` as in `moved`. Pure.
    """
    allows = allows or allowed(existing)
    pod = movable(existing, allows)
    if isinstance(pod, Rejection):
        return Decision(existing.uid, ledger, cause=pod)
    draft = rules.draft(released(rules, ledger, existing.uid), rules.demand(pod))
    draft.only = place
    decision = allocated(rules, draft, ledger)
    if decision.allocation is None:
        return decision
    allocation = carried(existing, decision.allocation)
    loss = _loss(rules, existing, allocation, allows)
    if loss is not None:
        return _rejected(decision, ledger, loss)
    after = decision.ledger.with_same_requests(allocation)
    return replace(decision, allocation=allocation, ledger=after, resized=True)


def _rejected(decision: Decision, ledger: Ledger, cause: Rejection) -> Decision:
    return Decision(decision.uid, ledger, cause=cause, demand=decision.demand, pod=decision.pod)


def movable(existing: PodAllocation, allows: Movable | None) -> Pod | Rejection:
    """Return the specification of a pod that may move somewhere, else why it stays."""
    name = full_name(existing)
    if allows is None:
        message = f"pod {name} does not allow moves"
        return _infeasible(message, f"admit it with the annotation {MOVE}: {Movable.CPUS}")
    pod = specification_of(existing)
    if pod is None:
        remedy = "admit the specification that it was started with first"
        return _infeasible(f"the specification of pod {name} is not known", remedy)
    if existing.source is not None and existing.source.name == KUBELET:
        return _infeasible(f"pod {name} belongs to a kubelet, which keeps its sets")
    # Devices that are delivered again do not reach a container that runs.
    if existing.others or any(each.devices or each.others for each in existing.containers):
        return _infeasible(f"pod {name} has devices, which do not move")
    return pod


def _loss(
    rules: EffectivePolicy,
    existing: PodAllocation,
    allocation: PodAllocation,
    allows: Movable | None,
) -> Rejection | None:
    """Return what a pod would lose at its new place, None if nothing."""
    name = full_name(existing)
    if _amounts(existing) != _amounts(allocation):
        message = f"the policy would give pod {name} other resources than when it was admitted"
        return _infeasible(message, "remove the pod and admit it again")
    left = Mask.union(nodes for nodes, _ in leaving(existing, allocation))
    if left and allows is not Movable.MEMORY:
        message = f"memory of pod {name} would leave {nodes_text(left)}"
        return _infeasible(message, f"admit it with the annotation {MOVE}: {Movable.MEMORY}")
    had = {(each.container, each.quality) for each in verdict(rules, existing) if each.met}
    for each in verdict(rules, allocation):
        if not each.met and (each.container, each.quality) in had:
            what = f"container {each.container} of pod {name} would no longer be {each.quality}"
            return _infeasible(f"{what}: {each.why}")
    return None


def _amounts(allocation: PodAllocation) -> list[object]:
    """Return what of an allocation does not depend on its place."""
    count = None if allocation.cpus is None else len(allocation.cpus)
    return [
        (count, _sizes(allocation.memory)),
        *(
            (
                each.isolation,
                len(each.cpus or EMPTY),
                # What an init container had was released when it ended.
                None if each.kind is ContainerKind.INIT else _sizes(each.memory),
            )
            for each in allocation.containers
        ),
    ]


def _sizes(blocks: Iterable[MemoryBlock]) -> dict[str, int]:
    """Return the bytes by memory type."""
    return {block.type: block.size for block in blocks}


def leaving(existing: PodAllocation, allocation: PodAllocation) -> Iterator[tuple[Mask, int]]:
    """Yield the nodes that pinned memory leaves, and an upper bound of its bytes there.

    A pod with a budget is compared by the budget, since the parts of its containers are on the same
    nodes; any other pod container by container. A block counts as a whole.
    """
    pairs = [(existing.memory, allocation.memory)]
    if not existing.memory:
        containers = zip(existing.containers, allocation.containers, strict=True)
        pairs = [(before.memory, after.memory) for before, after in containers]
    for before, after in pairs:
        left = _nodes(before) - _nodes(after)
        if left:
            yield left, sum(block.size for block in before if block.nodes & left)


def _nodes(blocks: Iterable[MemoryBlock]) -> Mask:
    return Mask.union(block.nodes for block in blocks)


def _text(sets: PodSets) -> str:
    memory = [f"memory of {nodes_text(sets.nodes)}"] if sets.nodes else []
    return " and ".join([f"CPUs {sets.cpus}" if sets.cpus else "no CPUs", *memory])


_NEW_PLAN: Final = "make a new plan"


def _infeasible(message: str, remedy: str = "") -> Rejection:
    return Rejection(Reason.INFEASIBLE, message, remedy=remedy)
