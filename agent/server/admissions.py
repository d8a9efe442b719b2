"""Admissions: the one path of a pod from the request to the answer.

A request waits in the line of all changes (`agent.server.queue`). In its turn

1. the pod is decided on the ledger of the state, and plugins deliver its devices, within
   `PLUGIN_SECONDS` (`agent.server.decider`); the line stands still meanwhile;
2. the decision is saved, enforced, read back, reported and answered (`agent.server.effects`).

Only the line changes the ledger and the rules. So what was decided on holds until the turn ends,
whatever the turn waits for: a cordon, a host that changed, devices that went, come after it.

The requests directly behind it are decided in the same turn, each on the ledger that the one before
it leaves, and take effect together: a save waits for the disk, and an enforcement that changes the
shared pool writes the cgroups of all classes, as much for one pod as for ten. Pods come in groups:
those of a node that starts, of a job, of a deployment. A group ends before the first request that
needs a plugin or that depends on more than the ledger.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from agent.managers.allocation import API
from agent.pods.model import full_name
from agent.progress import EndedError, progressed
from agent.server.decider import Admission
from agent.server.queue import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.api.documents.admissions import AdmissionDocument
    from agent.managers.allocation import PodAllocation, Source
    from agent.pods.model import Pod
    from agent.server.decider import Change, Decider, Proposal
    from agent.server.effects import Effects
    from agent.server.steps import Steps

#: The most pods that are decided before they are saved and enforced together: a pod that comes
#: meanwhile waits for all of them.
MOST_AT_ONCE: Final = 32
#: The longest time in which a group is decided, in seconds: its first pod, and every other change,
#: wait for the end of it.
LONGEST_GROUP: Final = 0.1


class Admissions:
    """The turns of pods in the line."""

    def __init__(self, steps: Steps, decider: Decider, effects: Effects) -> None:
        self._steps = steps
        self._state = steps.state
        self._decider = decider
        self._effects = effects

    async def admit(self, pod: Pod, source: Source, *, replace_pod: bool) -> AdmissionDocument:
        """Admit a pod in its turn; raises `QueueStopped`, `BusyError` and what fails.

        A caller that is cancelled before the turn begins no longer asks for it. What is read
        beside is read before the pod enters the line.
        """
        requested = self._steps.clock.monotonic()
        informed = await self._decider.informed(pod, source)
        outcome: asyncio.Future[AdmissionDocument] = asyncio.get_running_loop().create_future()

        async def turn() -> None:
            await self._turn(request)

        request = Admission(
            action=turn,  # type: ignore[arg-type]  # settles the outcome itself
            outcome=outcome,
            pod=informed,
            source=source,
            replace_pod=replace_pod,
            requested=requested,
        )
        return await self._steps.queue.add(request)

    async def change(
        self, uid: str, desired: Callable[[PodAllocation], Pod], change: Change
    ) -> AdmissionDocument:
        """Resize or move an admitted pod in its turn; raises as `admit`.

        `desired` gets the allocation that the pod has then, and returns its specification.
        """
        requested = self._steps.clock.monotonic()
        outcome: asyncio.Future[AdmissionDocument] = asyncio.get_running_loop().create_future()

        async def turn() -> None:
            allocation = self._state.allocation(uid)
            request = Admission(
                action=turn,  # type: ignore[arg-type]  # settles the outcome itself
                outcome=outcome,
                pod=desired(allocation),
                source=allocation.source or API,
                requested=requested,
                change=change,
            )
            await self._turn(request)

        waiting = Job(action=turn, outcome=outcome)  # type: ignore[arg-type]  # as above
        return await self._steps.queue.add(waiting)

    async def _turn(self, first: Admission) -> None:
        """Give a request its outcome, and those behind it that are decided with it."""
        group: list[Proposal] = []
        try:
            proposal = self._decider.propose(first, self._state.ledger)
            self._effects.count(proposal)
            rejected = proposal.allocation is None
            alone = proposal.needs_plugins or rejected or self._is_alone(first, group)
            if proposal.needs_plugins:
                time = self._decider.plugin_time()
                if proposal.suspended is not None:
                    proposal = await self._decider.with_preferences(proposal, time)
                    self._effects.count(proposal)
                proposal = await self._decider.with_delivery(proposal, time)
            group.append(proposal)
            if not alone:
                await self._add_following(group)
            await self._effects.take(group)
        except BaseException as error:
            # The queue gives the first one its error; without one the others would wait for ever.
            # Who has an outcome keeps it.
            cancelled = isinstance(error, asyncio.CancelledError)
            for proposal in group:
                proposal.request.settle(error=EndedError() if cancelled else error)
            raise
        finally:
            for proposal in group:
                proposal.request.settle(error=EndedError())

    async def _add_following(self, group: list[Proposal]) -> None:
        """Decide on those behind a pod, each on the ledger that the one before it leaves.

        The first that depends on more, or needs a plugin, is left to a turn of its own.
        """
        clock, queue = self._steps.clock, self._steps.queue
        latest = clock.monotonic() + LONGEST_GROUP
        ledger = group[0].decision.ledger
        while len(group) < MOST_AT_ONCE and clock.monotonic() <= latest:
            await clock.sleep(0)  # the runtime and other clients are answered meanwhile
            request = queue.following(group[0].request)
            if not isinstance(request, Admission) or self._is_alone(request, group):
                return
            try:
                proposal = request.context.copy().run(self._decider.propose, request, ledger)
            except Exception as error:  # noqa: BLE001  # the caller's
                queue.take(request)
                request.settle(error=error)
                continue
            if proposal.needs_plugins:
                return
            queue.take(request)
            request.context.copy().run(self._effects.count, proposal)
            group.append(proposal)
            if proposal.allocation is not None:
                ledger = proposal.decision.ledger
            progressed()

    def _is_alone(self, request: Admission, group: Sequence[Proposal]) -> bool:
        """Return whether a decision on a pod depends on more than the ledger before it.

        It does for a pod that replaces another or is admitted already, and for one that has the uid
        or the name of a pod of the group.
        """
        if request.replace_pod or request.pod.uid in self._state.ledger.allocations:
            return True
        present = {identity for proposal in group for identity in _identities(proposal.pod)}
        return not present.isdisjoint(_identities(request.pod))


def _identities(pod: Pod) -> frozenset[str]:
    return frozenset((pod.uid, full_name(pod)))
