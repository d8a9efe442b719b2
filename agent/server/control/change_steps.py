"""The steps by which a change takes effect: it is saved, enforced, and watchers get an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.reconcile.report import EnforcementReport
    from agent.server.control.outcomes import OutcomeReporter
    from agent.server.control.queue import Worker
    from agent.server.control.saving import Saving
    from agent.server.kernel.ports import Enforcement
    from agent.server.reporting.events import EventReporter
    from agent.server.state import AgentState, DurableState


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

    async def enforce_pods(self, *uids: str) -> None:
        """Have the kernel enforce what pods are to have."""
        outcome = await self.worker.run(self.kernel.admitted, self.state.target(), *uids)
        self._outcomes.note(outcome)

    async def enforce_pool(self) -> EnforcementReport:
        """Have the kernel enforce another shared pool."""
        outcome = await self.worker.run(self.kernel.changed, self.state.target())
        self._outcomes.note(outcome)
        return outcome
