"""The steps by which a change takes effect: it is saved, enforced, and watchers get an event.

One rule for what fails. Before the save, and in it: nothing was changed, and the caller gets the
error. After the save the change has happened, whatever fails: the next step is done all the same,
the caller gets the answer, and what failed is what the pods lack (`ChangeSteps.after_save`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.progress import uncancelled
from agent.reconcile.report import EnforcementReport
from agent.server.errors import EXPECTED, message_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.managers.allocations.allocation import PodAllocation
    from agent.reconcile.desired.state import Desired
    from agent.reconcile.diff import Difference
    from agent.server.control.outcomes import OutcomeReporter
    from agent.server.control.queue import Worker
    from agent.server.control.saving import Saving
    from agent.server.kernel.ports import Enforcement
    from agent.server.reporting.events import EventReporter
    from agent.server.state import AgentState, DurableState

log = structlog.get_logger(__name__)


class ChangeSteps:
    """The steps of a queued action of the controller that changes the state.

    `kernel` and `worker` are for the blocking questions of an action, `publish` publishes an event
    to all watchers.
    """

    def __init__(
        self,
        state: AgentState,
        kernel: Enforcement,
        saving: Saving,
        worker: Worker,
        outcomes: OutcomeReporter,
        reporter: EventReporter,
    ) -> None:
        self.state = state
        self.kernel = kernel
        self.worker = worker
        self.publish = reporter.publish
        self._saving = saving
        self._outcomes = outcomes

    async def commit(self, durable: DurableState) -> None:
        """Save a decision, then use it; raises `CheckpointFailedError` (`Saving.commit`)."""
        await self._saving.commit(durable)

    async def after_save(
        self, step: Callable[[], Awaitable[None] | None], *uids: str
    ) -> tuple[Difference, ...]:
        """Do a step of a saved change for some pods; return what they lack if it fails."""

        async def take() -> None:
            doing = step()
            if doing is not None:
                await doing

        try:
            await uncancelled(take())
        except EXPECTED as error:
            why = message_of(error)
            log.error("saved change not enforced", why=why, uids=uids)  # noqa: TRY400  # not a defect of the agent
        except Exception as error:
            why = f"internal error ({type(error).__name__}: {error}); see the agent log"
            log.exception("saved change not enforced", uids=uids)
        else:
            return ()
        return self._outcomes.failed(why, uids)

    async def enforce_pods(self, *uids: str) -> None:
        """Have the kernel enforce what saved pods are to have."""
        await self._enforced(partial(self.kernel.admitted, self.state.target(), *uids), *uids)

    async def enforce_pool(self) -> EnforcementReport:
        """Have the kernel enforce another shared pool, which is saved."""
        return await self._enforced(partial(self.kernel.changed, self.state.target()))

    async def enforce_removed(
        self, allocation: PodAllocation, target: Desired
    ) -> EnforcementReport:
        """Have the kernel release a pod whose removal is saved."""
        return await self._enforced(partial(self.kernel.removed, target, allocation))

    async def _enforced(
        self, call: Callable[[], EnforcementReport], *uids: str
    ) -> EnforcementReport:
        outcome = EnforcementReport(compared=False)

        async def enforce() -> None:
            nonlocal outcome
            outcome = await self.worker.run(call)

        failed = await self.after_save(enforce, *uids)
        if not failed:
            failed = await self.after_save(partial(self._outcomes.note, outcome), *uids)
        return replace(outcome, differences=(*outcome.differences, *failed))
