"""What would let a rejected pod be admitted, how many copies of a pod would be, and what they lack.

All try decisions on the present ledger and change nothing. One question is answered at a time, a
decision in each turn of the loop, so that no other request waits for more than one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from agent.api.documents.admissions import FitDocument
from agent.api.views import rejection_document
from agent.managers.admission import remove
from agent.managers.advice import AdviceKind
from agent.managers.available import blocks_of, lack_warning, lacks, near_nodes
from agent.managers.capacity import copy_of, fill, free_cpus, nodes_of
from agent.managers.decision import Reason
from agent.managers.move_plans import MovePlan, defragment, plan
from agent.managers.resize import advise as advise_resize
from agent.managers.trials import advise, decided
from agent.server.errors import BusyError
from agent.server.queue import Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.rejections import FailedPodDocument, RejectionDocument
    from agent.managers.allocation import PodAllocation
    from agent.managers.available import Lack
    from agent.managers.decision import Decision, RejectionCause
    from agent.managers.ledger import Ledger
    from agent.managers.resize import OtherAmounts
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Availability, Pod
    from agent.server.pod_records import RejectedPod
    from agent.server.state import AgentState
    from sysfs.mask import Mask

#: How many questions of a user may wait; of all users twice as many. A rejection beyond that is
#: answered without advice.
MOST_WAITING: Final = 16


class Advisor:
    """Answers questions about pods one at a time.

    `available` reads what the nodes could give now.
    """

    def __init__(self, state: AgentState, available: Callable[[], Awaitable[Availability]]) -> None:
        self._state = state
        self._available = available
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

    async def lacking(
        self,
        pod: Pod,
        answer: AdmissionDocument,
        replaced: PodAllocation | None = None,
        *,
        advises: bool,
    ) -> tuple[str, ...]:
        """Return a warning for each part of a pod's memory that is not there, now that it is given.

        Of a dry run the part of what would be given; nothing of a pod that was admitted before,
        which may use it. With `advises` the last one says near which node there is enough.
        """
        rules, ledger = self._state.configured.rules, self._state.ledger
        if answer.pod is None or answer.already_admitted:
            return ()
        allocation = ledger.allocations.get(pod.uid)
        for former in filter(None, (allocation, replaced)):
            if former.uid in ledger.allocations:
                ledger = remove(rules, ledger, former.uid)
        if answer.dry_run:
            allocation = decided(rules, ledger, pod).allocation
        if allocation is None or not any(blocks_of(allocation)):
            return ()
        return await self._warnings(ledger, pod, [allocation], advises=advises)

    async def _warnings(
        self, ledger: Ledger, pod: Pod, copies: Sequence[PodAllocation], *, advises: bool
    ) -> tuple[str, ...]:
        """Return what is not there for the first of some copies for which something is not.

        Nothing if too many of the caller's questions wait.
        """
        rules = self._state.configured.rules
        try:
            available = await self._available()
        except BusyError:
            return ()

        def lacking(count: int) -> tuple[Lack, ...]:
            first = chain.from_iterable(map(blocks_of, copies[:count]))
            return lacks(first, available)

        # What more copies are given is given on top, so that the lack grows.
        count = 1 + bisect_left(range(1, len(copies) + 1), 1, key=lambda n: len(lacking(n)))
        if count > len(copies):
            return ()
        warnings = [lack_warning(rules, ledger, lack, count) for lack in lacking(count)]
        if not advises or count > 1:
            return tuple(warnings)
        with suppress(BusyError):
            async with self._answering:
                for advice in near_nodes(rules, ledger, pod, lacking(1)[0], available):
                    if advice is not None:
                        return (*warnings, advice)
                    await asyncio.sleep(0)
        return tuple(warnings)

    async def plan(self, pod: Pod, decision: Decision) -> MovePlan:
        """Return the moves that make room for a pod; raises `BusyError` as `fit`.

        `decision` is that on the pod as things are.
        """
        configured, ledger = self._state.configured, self._state.ledger
        found = MovePlan(allocation=decision.allocation)
        conflict = decision.rejection is not None and decision.rejection.reason == Reason.CONFLICT
        if decision.admitted or conflict or configured.frozen:
            return found
        async with self._answering:
            for tried in plan(configured.rules, ledger, pod):
                found = tried or found
                await asyncio.sleep(0)
        return found

    async def defragment(self) -> MovePlan:
        """Return moves that give one NUMA node more free CPUs; raises `BusyError` as `fit`."""
        configured, ledger = self._state.configured, self._state.ledger
        found = MovePlan()
        if configured.frozen:
            return found
        async with self._answering:
            for tried in defragment(configured.rules, ledger):
                found = tried or found
                await asyncio.sleep(0)
        return found

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
        warnings: tuple[str, ...] = ()
        if found.copies and any(blocks_of(found.copies[0])):
            warnings = await self._warnings(ledger, copy_of(pod), found.copies, advises=True)
        free = free_cpus(rules, ledger)
        return FitDocument(
            count=found.on.total(),
            limited=found.cause is None,
            on=dict(found.on),
            empty=empty.on.total(),
            free=replace(free, fragmentation=round(free.fragmentation, 3)),
            rejection=rejection,
            warnings=warnings,
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
    """Which copies of a pod were admitted, how many by their nodes, and why no more were."""

    copies: tuple[PodAllocation, ...]
    on: Counter[str]
    cause: RejectionCause | None


async def _filled(rules: EffectivePolicy, ledger: Ledger, pod: Pod, most: int) -> _Filled:
    """Admit copies of a pod to a ledger, each decision in a turn of its own."""
    on: Counter[str] = Counter()
    copies: list[PodAllocation] = []
    for decision in fill(rules, ledger, pod):
        if decision.allocation is None:
            return _Filled(tuple(copies), on, decision.cause)
        copies.append(decision.allocation)
        on[str(nodes_of(rules, decision.allocation))] += 1
        if len(copies) == most:
            break
        await asyncio.sleep(0)
    return _Filled(tuple(copies), on, None)
