"""Moves: running pods get other CPUs and memory nodes, so that another pod has room.

In go the ledger and a `Move`, out comes a decision (`moved`): the pod is decided again with only
its new place free. In goes a pod that does not fit, out comes the best `MovePlan` that was tried,
of at most two moves (`plan`); without such a pod, moves that give one NUMA node more free CPUs
(`defragment`). Always true:

1. A pod moves only if its annotation allows that, and only to what is free at that time. It keeps
   its amounts and every quality that it has (`agent.managers.quality`); a pod with devices does not
   move.
2. A move is made as a whole or rejected; a rejected one changes nothing. A move is rejected if the
   pod or its new place has changed since the plan; the moves before it stay.
3. Every step of a plan was tried, on the ledger that the step before leaves. Untried divisions of
   several containers or pods may be better.
"""

from __future__ import annotations

from itertools import chain, combinations, permutations
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import allocated, remove
from agent.managers.allocation import KUBELET, PodSets
from agent.managers.amounts import nodes_text
from agent.managers.capacity import free_cpus
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.quality import verdict
from agent.managers.resize import carried
from agent.managers.rules import released
from agent.managers.specification import specification_of
from agent.managers.trials import decided
from agent.pods.model import MOVE, ContainerKind, Movable, full_name
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

#: The most combinations of pods that are tried for a plan, each some five decisions, and the most
#: pods that are tried in addition although they do not allow it.
MOST_COMBINATIONS: Final = 2000
MOST_OTHERS: Final = 50
#: The most pods that a plan moves, for a pod and to defragment.
MOST_MOVES: Final = 2
MOST_DEFRAGMENTING: Final = 8


class Move(Struct, frozen=True):
    """One pod that moves: what it has, and what it would have."""

    uid: str
    before: PodSets
    after: PodSets


class MovePlan(Struct, frozen=True):
    """The moves that make room for a pod, in the order in which they have to be made."""

    moves: tuple[Move, ...] = ()
    #: What the pod would get after them; None where nothing that was tried makes room.
    allocation: PodAllocation | None = None
    #: Else: pods each of which alone would make room, with the value that its annotation lacks.
    would_help: tuple[tuple[str, Movable], ...] = ()
    #: `MOST_COMBINATIONS` were tried, and there are more.
    limited: bool = False
    #: The pinned bytes of the containers whose memory leaves a node.
    memory: int = 0

    @property
    def cost(self) -> tuple[int, int, int]:
        """The better of two plans has the smaller cost."""
        cpus = sum(len(move.after.cpus - move.before.cpus) for move in self.moves)
        return len(self.moves), self.memory, cpus


def sets_of(allocation: PodAllocation) -> PodSets:
    """Return a pod's exclusive CPUs and the NUMA nodes of its pinned memory."""
    containers = (block for container in allocation.containers for block in container.memory)
    blocks = (*allocation.memory, *containers)
    return PodSets(allocation.exclusive_cpus, Mask.union(block.nodes for block in blocks))


def allowed(allocation: PodAllocation) -> Movable | None:
    """Return what the annotation of a pod lets move, None for nothing."""
    text = allocation.annotations.get(MOVE)
    return None if text is None else Movable(text)


def moved(
    rules: EffectivePolicy, ledger: Ledger, move: Move, allows: Movable | None = None
) -> Decision:
    """Decide on a move; raises `KeyError` for a pod that is not admitted.

    `allows` replaces the pod's annotation, for trials. Pure; a pod at its new place already stays.
    """
    existing = ledger.allocations[move.uid]
    present = sets_of(existing)
    if present == move.after:
        return Decision(move.uid, ledger, allocation=existing, already_admitted=True)
    allows = allows or allowed(existing)
    cause = _obstacle(existing, allows)
    if cause is None and present != move.before:
        has, planned = _text(present), _text(move.before)
        message = f"pod {full_name(existing)} has {has}, and had {planned} in the plan"
        cause = _infeasible(message, "make a new plan")
    pod = specification_of(existing)
    if cause is not None or pod is None:
        return Decision(move.uid, ledger, cause=cause, pod=pod)
    draft = rules.draft(released(rules, ledger, move.uid), rules.demand(pod))
    draft.only = move.after
    decision = allocated(rules, draft, ledger)
    if decision.allocation is None:
        return decision
    allocation = carried(existing, decision.allocation)
    cause = _loss(rules, existing, allocation, move.after, allows)
    if cause is not None:
        return Decision(move.uid, ledger, cause=cause, demand=decision.demand, pod=pod)
    ledger = decision.ledger.with_allocation(allocation)
    return replace(decision, allocation=allocation, ledger=ledger, resized=True)


def _obstacle(existing: PodAllocation, allows: Movable | None) -> Rejection | None:
    """Return why a pod cannot move at all, None if it can."""
    name = full_name(existing)
    if allows is None:
        message = f"pod {name} does not allow moves"
        return _infeasible(message, f"admit it with the annotation {MOVE}: {Movable.CPUS}")
    if not existing.spec:
        remedy = "admit the specification that it was started with first"
        return _infeasible(f"the specification of pod {name} is not known", remedy)
    if existing.source is not None and existing.source.name == KUBELET:
        return _infeasible(f"pod {name} belongs to a kubelet, which keeps its sets")
    # A running container does not get devices that are delivered again.
    others = any(each.devices or each.others for each in existing.containers)
    if existing.others or others:
        return _infeasible(f"pod {name} has devices, which do not move")
    return None


def _loss(
    rules: EffectivePolicy,
    existing: PodAllocation,
    allocation: PodAllocation,
    sets: PodSets,
    allows: Movable | None,
) -> Rejection | None:
    """Return what a pod would lose at its new place, None if nothing."""
    name, would = full_name(existing), sets_of(allocation)
    if would != sets:
        message = f"pod {name} would get {_text(would)}, not the planned {_text(sets)}"
        return _infeasible(message, "make a new plan")
    if _shape(existing) != _shape(allocation):
        message = f"the policy would give pod {name} other resources than when it was admitted"
        return _infeasible(message, "remove the pod and admit it again")
    left = Mask.union(before.mems - after.mems for before, after in _moving(existing, allocation))
    left |= sets_of(existing).nodes - sets.nodes
    if left and allows is not Movable.MEMORY:
        message = f"memory of pod {name} would leave {nodes_text(left)}"
        return _infeasible(message, f"admit it with the annotation {MOVE}: {Movable.MEMORY}")
    had = {(each.container, each.quality) for each in verdict(rules, existing) if each.met}
    for each in verdict(rules, allocation):
        if each.why and (each.container, each.quality) in had:
            message = f"container {each.container} would no longer be {each.quality}: {each.why}"
            return _infeasible(message)
    return None


def _shape(allocation: PodAllocation) -> list[object]:
    """Return what of an allocation does not depend on its place."""
    count = None if allocation.cpus is None else len(allocation.cpus)
    budget = count, bool(allocation.memory)
    containers = (
        (
            each.isolation,
            len(each.cpus or EMPTY),
            bool(each.memory) or each.kind is ContainerKind.INIT,
        )
        for each in allocation.containers
    )
    return [budget, *containers]


def _moving(
    existing: PodAllocation, allocation: PodAllocation
) -> Iterator[tuple[ContainerAllocation, ContainerAllocation]]:
    """Yield the containers whose pinned memory leaves nodes, before and after."""
    for before, after in zip(existing.containers, allocation.containers, strict=True):
        # Memory of an init container is released when it ends.
        if before.memory and before.mems - after.mems:
            yield before, after


def _text(sets: PodSets) -> str:
    memory = [f"memory of {nodes_text(sets.nodes)}"] if sets.nodes else []
    return " and ".join([f"CPUs {sets.cpus}" if sets.cpus else "no CPUs", *memory])


def _infeasible(message: str, remedy: str = "") -> Rejection:
    return Rejection(Reason.INFEASIBLE, message, remedy=remedy)


def plan(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[MovePlan | None]:
    """Yield None after each trial, then the plan.

    Pods that allow it are tried alone, then two together. Of plans with as many moves the one that
    moves the least memory, then the fewest CPUs, is taken. Pure; device plugins are not asked.
    """
    now = decided(rules, ledger, pod).allocation
    if now is not None:
        yield MovePlan(allocation=now)
        return
    pods = [each for each in ledger.allocations.values() if sets_of(each) and each.uid != pod.uid]
    # Small pods first: they are the cheapest to move, should not all be tried.
    pods.sort(key=lambda each: len(each.exclusive_cpus))
    movable = [each.uid for each in pods if _obstacle(each, allowed(each)) is None]
    counts = range(1, MOST_MOVES + 1)
    tried = chain.from_iterable(combinations(movable, count) for count in counts)
    best, limited = None, False
    for number, uids in enumerate(tried):
        if best is not None and len(uids) > len(best.moves):
            break
        limited = number == MOST_COMBINATIONS
        if limited:
            break
        found = _tried(rules, ledger, pod, uids)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
        yield None
    if best is not None:
        yield replace(best, limited=limited)
        return
    would_help: list[tuple[str, Movable]] = []
    others = [
        each
        for each in pods
        if allowed(each) is not Movable.MEMORY and _obstacle(each, Movable.MEMORY) is None
    ]
    for each in others[:MOST_OTHERS]:
        for allows in Movable:
            if _tried(rules, ledger, pod, (each.uid,), allows) is not None:
                would_help.append((each.uid, allows))
                break
        yield None
    yield MovePlan(would_help=tuple(would_help), limited=limited)


def _tried(
    rules: EffectivePolicy,
    ledger: Ledger,
    pod: Pod,
    uids: Collection[str],
    allows: Movable | None = None,
) -> MovePlan | None:
    """Return the moves of some pods that make room for a pod, None if these do not.

    1. The pod is admitted without them, then they are admitted again beside it, in the order of
       their admission. That gives their new places.
    2. They are moved there one after the other, in the first order in which each place is free;
       then the pod is admitted.
    """
    left = ledger
    for uid in uids:
        left = remove(rules, left, uid)
    beside = decided(rules, left, pod)
    moves: list[Move] = []
    for uid in (each for each in ledger.allocations if each in uids):
        existing = ledger.allocations[uid]
        specification = specification_of(existing)
        if not beside.admitted or specification is None:
            return None
        beside = decided(rules, beside.ledger, specification)
        if beside.allocation is None:
            return None
        move = Move(uid, sets_of(existing), sets_of(beside.allocation))
        moves += [move] if move.before != move.after else []
    found = (_made(rules, ledger, pod, order, allows) for order in permutations(moves))
    return next(filter(None, found), None)


def _made(
    rules: EffectivePolicy,
    ledger: Ledger,
    pod: Pod,
    moves: tuple[Move, ...],
    allows: Movable | None,
) -> MovePlan | None:
    """Try moves in this order, then the admission; return the plan if all are admitted."""
    memory = 0
    for move in moves:
        decision = moved(rules, ledger, move, allows)
        if decision.allocation is None:
            return None
        moving = _moving(ledger.allocations[move.uid], decision.allocation)
        memory += sum(block.size for _, after in moving for block in after.memory)
        ledger = decision.ledger
    allocation = decided(rules, ledger, pod).allocation
    return None if allocation is None else MovePlan(moves, allocation, memory=memory)


def defragment(rules: EffectivePolicy, ledger: Ledger) -> Iterator[tuple[Move, ...] | None]:
    """Yield None after each trial, then moves after which one NUMA node has more free CPUs.

    Each is the best of all moves of one pod to one node: the one after which a node has the most
    free CPUs, then the most are in whole cores, then with the fewest that move. A pod moves once.
    The moves end where none helps. Pure; device plugins are not asked.
    """
    moves: list[Move] = []
    tried = 0
    while len(moves) < MOST_DEFRAGMENTING:
        now, best = _free(rules, ledger), None
        gone = {move.uid for move in moves}
        for existing in ledger.allocations.values():
            idle = not existing.exclusive_cpus or existing.uid in gone
            if idle or _obstacle(existing, allowed(existing)) is not None:
                continue
            for node in rules.machine.node_mask:
                tried += 1
                if tried > MOST_COMBINATIONS:
                    break
                found = _on_node(rules, ledger, existing, node)
                yield None
                if found is None:
                    continue
                move, after = found
                free = _free(rules, after)
                rank = (*free, -len(move.after.cpus))
                if free > now and (best is None or rank > best[0]):
                    best = rank, move, after
        if best is None:
            break
        _, move, ledger = best
        moves.append(move)
    yield tuple(moves)


def _free(rules: EffectivePolicy, ledger: Ledger) -> tuple[int, int]:
    """Return the most free CPUs of one NUMA node, and how many are in whole cores."""
    free = free_cpus(rules, ledger)
    return free.on_one_node, free.whole_cores


def _on_node(
    rules: EffectivePolicy, ledger: Ledger, existing: PodAllocation, node: int
) -> tuple[Move, Ledger] | None:
    """Return the move of a pod to one NUMA node and the ledger after it, None if it is rejected."""
    pod = specification_of(existing)
    if pod is None:
        return None
    draft = rules.draft(released(rules, ledger, existing.uid), rules.demand(pod))
    draft.only = PodSets(rules.machine.cpus.cpus_in_nodes(Mask.of(node)), Mask.of(node))
    place = allocated(rules, draft, ledger).allocation
    if place is None:
        return None
    move = Move(existing.uid, sets_of(existing), sets_of(place))
    decision = moved(rules, ledger, move)
    return (move, decision.ledger) if decision.resized else None
