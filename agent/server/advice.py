"""What would let a rejected pod be admitted, and how many copies of a pod would be.

Both try decisions on the present ledger and change nothing. One question is answered at a time, a
decision in each turn of the loop, so that no other request waits for more than one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from agent.api.documents.admissions import FitDocument
from agent.api.views import rejection_document
from agent.managers.admission import remove
from agent.managers.advice import AdviceKind
from agent.managers.capacity import copy_of, fill, free_cpus, nodes_of
from agent.managers.decision import Reason
from agent.managers.resize import advise as advise_resize
from agent.managers.trials import advise
from agent.server.errors import BusyError
from agent.server.queue import Turns

if TYPE_CHECKING:
    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.rejections import FailedPodDocument, RejectionDocument
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import RejectionCause
    from agent.managers.ledger import Ledger
    from agent.managers.resize import OtherAmounts
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from agent.server.pod_records import RejectedPod
    from agent.server.state import AgentState
    from sysfs.mask import Mask

#: How many questions of a user may wait; of all users twice as many. A rejection beyond that is
#: answered without advice.
MOST_WAITING: Final = 16


class Advisor:
    """Answers questions about pods one at a time."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._answering = Turns(MOST_WAITING, 2 * MOST_WAITING)

    async def advised(
        self, pod: Pod, answer: AdmissionDocument, replaced: PodAllocation | None = None
    ) -> AdmissionDocument:
        """Return the answer to a rejected pod with what would let it be admitted now.

        The pod would take the place of `replaced`.
        """
        if answer.rejection is None:
            return answer
        advised = await self._with_advice(pod, answer.rejection, replaced)
        if [advice.kind for advice in advised.advice or ()] == [AdviceKind.AGAIN]:
            # Not the decision rejected the pod, a provider of devices did, which is not tried.
            return answer
        return replace(answer, rejection=advised)

    async def advised_resize(
        self, change: OtherAmounts, keep: Mask, answer: AdmissionDocument
    ) -> AdmissionDocument:
        """Return the answer to a rejected resize with another amount that the pod could have."""
        rules, ledger = self._state.configured.rules, self._state.ledger
        if answer.rejection is None or change.uid not in ledger.allocations:
            return answer
        found = []
        with suppress(BusyError):
            async with self._answering:
                for advice in advise_resize(rules, ledger, change, keep):
                    if advice is not None:
                        found.append(advice)
                    await asyncio.sleep(0)
        return replace(answer, rejection=replace(answer.rejection, advice=tuple(found)))

    async def advised_status(self, rejected: RejectedPod) -> FailedPodDocument:
        """Return the status of a rejected pod with what would let it be admitted now."""
        status = rejected.status
        if rejected.pod is None or status.rejection is None:
            return status
        return replace(status, rejection=await self._with_advice(rejected.pod, status.rejection))

    async def fit(self, pod: Pod, most: int) -> FitDocument:
        """Return how many copies of a pod would be admitted now, of at most `most`.

        Raises `BusyError` if too many of the caller's questions wait.
        """
        rules, ledger = self._state.configured.rules, self._state.ledger
        async with self._answering:
            found = await _filled(rules, ledger, pod, most)
            empty = await _filled(rules, rules.empty_ledger(), pod, most)
        rejection = None if found.cause is None else rejection_document(found.cause.explain())
        if rejection is not None and not found.on:
            rejection = await self._with_advice(copy_of(pod), rejection)
        free = free_cpus(rules, ledger)
        return FitDocument(
            count=found.on.total(),
            limited=found.cause is None,
            on=dict(found.on),
            empty=empty.on.total(),
            free=replace(free, fragmentation=round(free.fragmentation, 3)),
            rejection=rejection,
        )

    async def _with_advice(
        self, pod: Pod, rejection: RejectionDocument, replaced: PodAllocation | None = None
    ) -> RejectionDocument:
        """Return the rejection with advice, unless too many of the caller's wait for theirs."""
        configured, ledger = self._state.configured, self._state.ledger
        if rejection.reason == Reason.CONFLICT or configured.frozen:
            return rejection
        if replaced is not None:
            ledger = remove(configured.rules, ledger, replaced.uid)
        found = []
        try:
            async with self._answering:
                for advice in advise(configured.rules, ledger, pod):
                    if advice is not None:
                        found.append(advice)
                    await asyncio.sleep(0)
        except BusyError:
            return rejection
        return replace(rejection, advice=tuple(found))


class _Filled(NamedTuple):
    """How many copies of a pod were admitted, by their nodes, and why no more were."""

    on: Counter[str]
    cause: RejectionCause | None


async def _filled(rules: EffectivePolicy, ledger: Ledger, pod: Pod, most: int) -> _Filled:
    """Admit copies of a pod to a ledger, each decision in a turn of its own."""
    on: Counter[str] = Counter()
    for decision in fill(rules, ledger, pod):
        if decision.allocation is None:
            return _Filled(on, decision.cause)
        on[str(nodes_of(rules, decision.allocation))] += 1
        if on.total() == most:
            break
        await asyncio.sleep(0)
    return _Filled(on, None)
