"""Plans of moves: which running pods would have to move.

In go the rules and the ledger. `plan` makes room for a pod that does not fit, by one or two moves.
`defragment` gives one NUMA node more free CPUs, for no pod in particular. Both yield None while
they try, and at last the best `MovePlan` that they found. Always true:

1. Every step of a plan was tried as it will be made (`agent.managers.moves`), on the ledger that
   the step before leaves. The last step that is tried for a pod is its admission.
2. Not every place of a pod is tried: a plan may exist where none is found, or a better one.
3. The number of trials is bounded. A plan that the bound cut off says so (`MovePlan.limited`).
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

#: The most trials. `plan` counts combinations of pods that allow moves, some five decisions each;
#: `defragment` counts pairs of a pod and a node, one or two decisions each.
MOST_TRIED: Final = 2000
#: The most pods that `plan` then tries as if they allowed more than they do.
MOST_OTHERS: Final = 50
#: The most pods that a plan moves for a pod.
MOST_MOVES: Final = 2
#: The most pods that are moved to defragment.
MOST_DEFRAGMENTING: Final = 8


class MovePlan(Struct, frozen=True):
    """Moves, in the order in which they have to be made."""

    moves: tuple[Move, ...] = ()
    #: What the pod to make room for would get after them; None where nothing that was tried makes
    #: room, and always None from `defragment`.
    allocation: PodAllocation | None = None
    #: Where nothing makes room: pods each of which alone would, with the value that its annotation
    #: lacks.
    would_help: tuple[tuple[str, Movable], ...] = ()
    #: `MOST_TRIED` or `MOST_OTHERS` cut the search off.
    limited: bool = False
    #: An upper bound of the bytes of pinned memory that leave their nodes.
    memory: int = 0

    @property
    def cost(self) -> tuple[int, int, int]:
        """The moves, the bytes of memory and the CPUs that move; the smaller cost is the better."""
        cpus = sum(len(move.after.cpus - move.before.cpus) for move in self.moves)
        return len(self.moves), self.memory, cpus


def plan(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[MovePlan | None]:
    """Yield None while plans for a pod are tried, then the best, without moves if none makes room.

    Pods that allow it are tried alone, then two together. Of plans with as many moves the one that
    moves the least memory, then the fewest CPUs, is taken. Pure; device plugins are not asked.
    """
    now = decided(rules, ledger, pod).allocation
    if now is not None:
        yield MovePlan(allocation=now)
        return
    pods = [each for each in ledger.allocations.values() if sets_of(each) and each.uid != pod.uid]
    # Small pods first: they are the cheapest to move, in case not all can be tried.
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
       their admission. That gives their new places. A pod that gets its own again is not moved.
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
    """Try moves in this order, then the admission; return the plan if nothing is rejected."""
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
    """Return an upper bound of the bytes of a pod's pinned memory that leave their nodes."""
    return sum(size for _, size in leaving(before.allocations[after.uid], after))


def defragment(rules: EffectivePolicy, ledger: Ledger) -> Iterator[MovePlan | None]:
    """Yield None while moves are tried, then those after which one NUMA node has more free CPUs.

    Each is the best move of one pod to another node that was tried. It is the one after which

    1. one node has the most free CPUs,
    2. then the most free CPUs are in whole cores;
    3. then the one that moves the least memory, then the fewest CPUs.

    A pod moves once. The moves end where none helps. Pure; device plugins are not asked.
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
            # Again as it will be made: only the new place is free, not the whole node.
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
    """Yield the pods that may still move, with each node that lacks some of their CPUs."""
    gone = {move.uid for move in moves}
    for existing in ledger.allocations.values():
        stays = existing.uid in gone or not existing.exclusive_cpus
        if stays or isinstance(movable(existing, allowed(existing)), Rejection):
            continue
        for node in rules.machine.node_mask:
            place = PodSets(rules.machine.cpus.cpus_in_nodes(Mask.of(node)), Mask.of(node))
            if not existing.exclusive_cpus <= place.cpus:
                yield existing, place
