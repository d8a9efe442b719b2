"""Plans of moves: which running pods would have to move.

In go the ledger and a pod that does not fit, out comes the best `MovePlan` that was tried, of at
most two moves (`plan`); without such a pod, moves that give one NUMA node more free CPUs
(`defragment`). Always true:

1. Every step of a plan was tried as it will be made (`agent.managers.moves`), on the ledger that
   the step before leaves, and at last the admission of the pod.
2. Not every place of a pod is tried: a plan may exist where none is found, or a better one.
3. A search ends after `MOST_TRIED` trials; what it has found then says so.
"""

from __future__ import annotations

from itertools import combinations, islice, permutations
from math import comb
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import remove
from agent.managers.allocation import PodSets
from agent.managers.capacity import free_cpus
from agent.managers.decision import Rejection
from agent.managers.moves import Move, allowed, leaving, movable, moved, moved_within, sets_of
from agent.managers.trials import decided
from agent.pods.model import Movable, Pod
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.managers.allocation import PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy

#: The most trials: of a plan the combinations of pods, each some five decisions; of defragmenting
#: the pods on other nodes, each one decision or two.
MOST_TRIED: Final = 2000
#: The most pods that are tried in addition although they do not allow it.
MOST_OTHERS: Final = 50
#: The most pods that a plan moves, for a pod and to defragment.
MOST_MOVES: Final = 2
MOST_DEFRAGMENTING: Final = 8


class MovePlan(Struct, frozen=True):
    """Moves, in the order in which they have to be made."""

    moves: tuple[Move, ...] = ()
    #: What the pod to make room for would get after them; None where nothing that was tried makes
    #: room, and without such a pod.
    allocation: PodAllocation | None = None
    #: Where nothing makes room: pods each of which alone would, with the value that its annotation
    #: lacks.
    would_help: tuple[tuple[str, Movable], ...] = ()
    #: There are more combinations of pods than were tried.
    limited: bool = False
    #: The most bytes of pinned memory that leave a node.
    memory: int = 0

    @property
    def cost(self) -> tuple[int, int, int]:
        """The better of two plans has the smaller cost."""
        cpus = sum(len(move.after.cpus - move.before.cpus) for move in self.moves)
        return len(self.moves), self.memory, cpus


def plan(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[MovePlan | None]:
    """Yield None after each trial, then the plan that makes room for a pod.

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
    moving = [spec for each in pods if isinstance(spec := movable(each, allowed(each)), Pod)]
    best, limited, left = None, False, MOST_TRIED
    for count in range(1, MOST_MOVES + 1):
        for chosen in islice(combinations(moving, count), left):
            found = _room(rules, ledger, pod, chosen)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
            yield None
        left -= comb(len(moving), count)
        limited = left < 0
        if best is not None or limited:
            break
    if best is not None:
        yield replace(best, limited=limited)
        return
    would_help: list[tuple[str, Movable]] = []
    stay = [each for each in pods if allowed(each) is not Movable.MEMORY]
    others = [spec for each in stay if isinstance(spec := movable(each, Movable.MEMORY), Pod)]
    for other in others[:MOST_OTHERS]:
        for allows in Movable:
            if _room(rules, ledger, pod, (other,), allows) is not None:
                would_help.append((other.uid, allows))
                break
        yield None
    yield MovePlan(would_help=tuple(would_help), limited=limited or len(others) > MOST_OTHERS)


def _room(
    rules: EffectivePolicy,
    ledger: Ledger,
    pod: Pod,
    chosen: Sequence[Pod],
    allows: Movable | None = None,
) -> MovePlan | None:
    """Return the moves of chosen pods that make room for a pod, None if these do not.

    1. The pod is admitted without them, then they are admitted again beside it, in the order of
       their admission. That gives their new places; one may get its own again, and stays.
    2. They are moved there one after the other, in the first order in which each place is free;
       then the pod is admitted.
    """
    specifications = {each.uid: each for each in chosen}
    without = ledger
    for uid in specifications:
        without = remove(rules, without, uid)
    decision = decided(rules, without, pod)
    if not decision.admitted:
        return None
    moves: list[Move] = []
    for uid in [uid for uid in ledger.allocations if uid in specifications]:
        decision = decided(rules, decision.ledger, specifications[uid])
        if decision.allocation is None:
            return None
        move = Move(uid, sets_of(ledger.allocations[uid]), sets_of(decision.allocation))
        if move.before != move.after:
            moves.append(move)
    found = (_tried(rules, ledger, pod, order, allows) for order in permutations(moves))
    return next(filter(None, found), None)


def _tried(
    rules: EffectivePolicy,
    ledger: Ledger,
    pod: Pod,
    moves: tuple[Move, ...],
    allows: Movable | None,
) -> MovePlan | None:
    """Make moves in this order, then admit the pod; return the plan if nothing is rejected."""
    memory = 0
    for move in moves:
        decision = moved(rules, ledger, move, allows)
        if decision.allocation is None:
            return None
        memory += _memory(ledger, decision.allocation)
        ledger = decision.ledger
    allocation = decided(rules, ledger, pod).allocation
    return None if allocation is None else MovePlan(moves, allocation, memory=memory)


def _memory(before: Ledger, after: PodAllocation) -> int:
    """Return the most bytes of pinned memory of a pod that leave a node."""
    return sum(size for _, size in leaving(before.allocations[after.uid], after))


def defragment(rules: EffectivePolicy, ledger: Ledger) -> Iterator[MovePlan | None]:
    """Yield None after each trial, then moves after which one NUMA node has more free CPUs.

    Each is the best of all moves of one pod to another node: the one after which a node has the
    most free CPUs, then the most are in whole cores, then that which moves the least memory, then
    the fewest CPUs. A pod moves once. The moves end where none helps. Pure; device plugins are not
    asked.
    """
    done = MovePlan()
    free = free_cpus(rules, ledger)
    left = MOST_TRIED
    while len(done.moves) < MOST_DEFRAGMENTING and not done.limited:
        best = None
        trials = list(_elsewhere(rules, ledger, done.moves))
        for existing, place in trials[:left]:
            decision = moved_within(rules, ledger, existing, place)
            yield None
            if decision.allocation is None:
                continue
            then = free_cpus(rules, decision.ledger)
            move = Move(existing.uid, sets_of(existing), sets_of(decision.allocation))
            found = MovePlan((move,), memory=_memory(ledger, decision.allocation))
            rank = (-then.on_one_node, -then.whole_cores, found.cost)
            if then.on_one_node <= free.on_one_node or (best is not None and rank >= best[0]):
                continue
            # As it will be made, with no more than the new place free.
            decision = moved(rules, ledger, move)
            if decision.admitted:
                best = rank, found, decision.ledger, then
        left -= len(trials)
        done = replace(done, limited=left < 0)
        if best is None:
            break
        _, found, ledger, free = best
        moves, memory = (*done.moves, *found.moves), done.memory + found.memory
        done = replace(done, moves=moves, memory=memory)
    yield done


def _elsewhere(
    rules: EffectivePolicy, ledger: Ledger, moves: Sequence[Move]
) -> Iterator[tuple[PodAllocation, PodSets]]:
    """Yield the pods that may still move, with each node that has not all of what they have."""
    gone = {move.uid for move in moves}
    for existing in ledger.allocations.values():
        stays = existing.uid in gone or not existing.exclusive_cpus
        if stays or isinstance(movable(existing, allowed(existing)), Rejection):
            continue
        for node in rules.machine.node_mask:
            place = PodSets(rules.machine.cpus.cpus_in_nodes(Mask.of(node)), Mask.of(node))
            if not existing.exclusive_cpus <= place.cpus:
                yield existing, place
