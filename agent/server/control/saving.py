"""Saving durable state: decisions before they take effect, observations as soon as possible."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.progress import uncancelled
from agent.server.errors import CheckpointFailedError
from agent.server.metrics import names
from agent.state.errors import CheckpointIOError

if TYPE_CHECKING:
    from agent.reconcile.report import EnforcementReport
    from agent.server.control.queue import Worker
    from agent.server.kernel.ports import Saver
    from agent.server.metrics.counters import Counters
    from agent.server.state import AgentState, DurableState

log = structlog.get_logger(__name__)

#: With so many free bytes a save is not tried out, whatever its size was last.
LEAST_FREE: Final = 256 << 10


class Saving:
    """Saves durable state for the controller, one save at a time."""

    def __init__(self, state: AgentState, saver: Saver, worker: Worker, counters: Counters) -> None:
        self._state = state
        self._saver = saver
        self._worker = worker
        self._counters = counters
        #: With fewer free bytes the next save may fail.
        self._needed = LEAST_FREE

    async def commit(self, durable: DurableState) -> None:
        """Save the state, then use it; raises `CheckpointFailedError` when nothing was changed.

        A failed save that left the previous checkpoint in place changes nothing. If the new
        checkpoint is in place but perhaps not yet durable, memory and disk agree, so the change
        takes effect. After any failure the next reconcile saves the state again, and status
        reports the failure until a save succeeds.
        """
        try:
            saving = self._worker.run(self._saver.save, self._state.to_save(durable))
            size = await uncancelled(saving)
            self._needed = max(LEAST_FREE, 2 * size)
            self._state.unsaved = None
        except CheckpointIOError as error:
            # The same save is repeated from time to time; one line says so.
            if durable is not self._state.durable or self._state.unsaved != str(error):
                log.error("checkpoint save failed", why=str(error), replaced=error.replaced)  # noqa: TRY400  # not a defect of the agent
            self._failed(error)
            if not error.replaced:
                raise CheckpointFailedError(error) from error
        except Exception as error:
            self._failed(error)
            raise
        self._state.durable = durable

    async def note(self, durable: DurableState) -> None:
        """Use observed state, whether or not it can be saved now.

        An observation is a fact even if the save fails, and an older checkpoint only lists more
        than still exists.
        """
        self._state.durable = durable
        await self.again()

    async def note_processes(self, uids: tuple[str, ...]) -> None:
        """Save that pods have had processes: they end when they have none, after a restart too."""
        ledger = self._state.ledger
        for uid in uids:
            if (allocation := ledger.allocations.get(uid)) is not None:
                ledger = ledger.with_lifetime(uid, replace(allocation.lifetime, started=True))
        await self.note(replace(self._state.durable, ledger=ledger))

    async def note_ended(self, outcome: EnforcementReport) -> None:
        """Drop bindings of removed pods and replaced bindings when their processes have ended.

        Also save the uids of orphaned cgroups, so that a restart does not recover them as pods.
        """
        durable = self._state.durable
        bindings = durable.bindings.without(outcome.ended, durable.ledger.allocations)
        orphaned = durable.orphaned if outcome.orphaned is None else outcome.orphaned
        if (bindings, orphaned) != (durable.bindings, durable.orphaned):
            await self.note(replace(durable, bindings=bindings, orphaned=orphaned))

    async def again(self) -> None:
        """Save the current state; status reports a failure until a save succeeds."""
        with suppress(CheckpointFailedError):  # reported by `unsaved`
            await self.commit(self._state.durable)

    async def check(self) -> None:
        """Report an unusable state directory or a full disk before the next change needs it.

        State that could not be saved before is saved now. Where the file system seems to have no
        room the state is saved as well: only that shows whether the next change can be saved.
        """
        try:
            await self._worker.run(self._saver.check)
            free = await self._worker.run(self._saver.free)
        except CheckpointIOError as error:
            if self._state.unsaved != str(error):
                log.error("state directory unavailable", why=str(error))  # noqa: TRY400
            self._state.unsaved = str(error)
            return
        self._state.free_bytes = free
        if self._state.unsaved is not None or free < self._needed:
            await self.again()

    def _failed(self, error: Exception) -> None:
        self._counters.add(names.CHECKPOINT_FAILURES)
        self._state.unsaved = str(error) or type(error).__name__
