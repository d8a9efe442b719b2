"""Requests to move a pod, and the documents of plans.

In go a request or a `MovePlan`, out come a `Move` for `agent.managers.moves` or the answer. What is
wrong with a request raises a `MoveError`; nothing is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.api.documents.moves import (
    DefragmentDocument,
    HelpfulPodDocument,
    MoveDocument,
    MovesDocument,
)
from agent.api.views import rejection_document
from agent.managers.allocation import PodSets
from agent.managers.capacity import free_cpus
from agent.managers.moves import Move, moved, sets_of
from agent.managers.specification import specification_of
from agent.pods.model import MOVE, full_name
from agent.server.errors import MoveError, PressureError
from agent.yaml import Mistake
from cgroupfs.load import CPU_PRESSURE, MEMORY_PRESSURE
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.api.documents.moves import MoveRequest
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.move_plans import MovePlan
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from cgroupfs.load import CgroupLoad

_ALL: Final = 100.0


class AskedMove(Struct, frozen=True):
    """A requested move, not yet compared with what the pod has."""

    move: Move
    #: In percent, as in the request.
    pressure: float

    def check_pressure(self, loads: Iterable[tuple[str | None, CgroupLoad]]) -> None:
        """Raise `PressureError` if tasks of the pod wait too often; an unknown share is 0."""
        for _, load in loads:
            for file in (CPU_PRESSURE, MEMORY_PRESSURE):
                share = load.get(file, {}).get("avg10", 0.0)
                if share > self.pressure:
                    raise PressureError(file, share, self.pressure)


def move_of(uid: str, request: MoveRequest) -> AskedMove:
    """Return what a request asks for; raises `MoveError`."""
    mistakes: list[Mistake] = []

    def mask(key: str, text: str) -> Mask:
        try:
            return Mask.parse(text)
        except ValueError as error:
            mistakes.append(Mistake(key, str(error)))
            return EMPTY

    before = PodSets(mask("cpus", request.cpus), mask("nodes", request.nodes))
    after = PodSets(mask("newCpus", request.new_cpus), mask("newNodes", request.new_nodes))
    if not 0 <= request.pressure <= _ALL:
        mistakes.append(Mistake("pressure", "it is a share in percent, from 0 to 100"))
    if mistakes:
        raise MoveError("the request is not valid", tuple(mistakes))
    return AskedMove(Move(uid, before, after), request.pressure)


def moving_pod(allocation: PodAllocation) -> Pod:
    """Return the specification of a pod that is to move; raises `MoveError`."""
    pod = specification_of(allocation)
    if pod is None:
        name = full_name(allocation)
        raise MoveError(f"the specification of pod {name} is not known, so it does not move")
    return pod


def moves_document(
    decision: Decision,
    pod: Pod,
    plan: MovePlan,
    pods: Mapping[str, PodAllocation],
    moving: Mapping[str, int | None],
) -> MovesDocument:
    """Return the answer to a request for a plan.

    `decision` is that without moves, `pods` are the admitted ones by uid, `moving` the bytes that
    the kernel has of them on the nodes that they leave.
    """
    sets = None if plan.allocation is None else sets_of(plan.allocation)
    return MovesDocument(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        fits=decision.admitted,
        cpus=None if sets is None else str(sets.cpus),
        nodes=None if sets is None else str(sets.nodes),
        moves=tuple(_move_documents(plan.moves, pods, moving)),
        rejection=None if decision.rejection is None else rejection_document(decision.rejection),
        would_help=tuple(
            HelpfulPodDocument(
                uid=uid,
                name=pods[uid].name,
                namespace=pods[uid].namespace,
                annotation=MOVE,
                value=value,
            )
            for uid, value in plan.would_help
        ),
        limited=plan.limited,
    )


def defragment_document(
    rules: EffectivePolicy,
    ledger: Ledger,
    plan: MovePlan,
    moving: Mapping[str, int | None],
) -> DefragmentDocument:
    """Return the answer to a request to defragment; `moving` as in `moves_document`."""
    after = ledger
    for move in plan.moves:
        after = moved(rules, after, move).ledger
    return DefragmentDocument(
        moves=tuple(_move_documents(plan.moves, ledger.allocations, moving)),
        free=free_cpus(rules, ledger),
        then=free_cpus(rules, after),
        limited=plan.limited,
    )


def _move_documents(
    moves: Iterable[Move], pods: Mapping[str, PodAllocation], moving: Mapping[str, int | None]
) -> Iterator[MoveDocument]:
    for each in moves:
        yield MoveDocument(
            uid=each.uid,
            name=pods[each.uid].name,
            namespace=pods[each.uid].namespace,
            cpus=str(each.before.cpus),
            new_cpus=str(each.after.cpus),
            nodes=str(each.before.nodes),
            new_nodes=str(each.after.nodes),
            bytes=moving[each.uid],
        )
