"""What is held goes to the disk before it is true, and what was observed as soon as it can."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from agent.server.errors import CheckpointFailedError
from agent.server.metrics import names
from agent.state.errors import CheckpointIOError

if TYPE_CHECKING:
    from agent.server.kernel.ports import Saver
    from agent.server.metrics.counters import Counters
    from agent.server.queue import Worker
    from agent.server.state import AgentState, DurableState

log = structlog.get_logger(__name__)


class Saving:
    """Saves the holdings of a state; only the controller does, one at a time."""

    def __init__(self, state: AgentState, saver: Saver, worker: Worker, counters: Counters) -> None:
        self._state = state
        self._saver = saver
        self._worker = worker
        self._counters = counters

    async def commit(self, held: DurableState) -> None:
        """Save, then take over; a save that left the previous checkpoint in place undoes nothing.

        When the new one is in place but perhaps not yet durable, memory and disk agree, so the
        change stands. After any failure the next reconcile saves what is held again, so memory and
        disk come to agree, and that nothing can be saved is a problem until it can. Raises
        `CheckpointFailedError` when the change was not made.
        """
        try:
            await self._worker.run(self._saver.save, self._state.to_save(held))
            self._state.unsaved = None
        except CheckpointIOError as error:
            self._failed(error)
            log.exception("the checkpoint cannot be saved", replaced=error.replaced)
            if not error.replaced:
                raise CheckpointFailedError(error) from error
        except Exception as error:
            self._failed(error)
            raise
        self._state.held = held

    async def note(self, held: DurableState) -> None:
        """Take over what was observed, whether or not it can be saved at once.

        It is so whatever the disk does, and an older checkpoint only says more than is still true.
        """
        self._state.held = held
        await self.again()

    async def again(self) -> None:
        """Save what is held; that it cannot be saved is a problem until it can."""
        with suppress(CheckpointFailedError):  # `unsaved` says so
            await self.commit(self._state.held)

    async def look(self) -> None:
        """Say when nothing can be saved any more, before somebody asks for something.

        What could not be saved is saved now.
        """
        try:
            await self._worker.run(self._saver.check)
        except CheckpointIOError as error:
            if self._state.unsaved != str(error):
                log.error("the checkpoint has no place", problem=str(error))  # noqa: TRY400
            self._state.unsaved = str(error)
            return
        if self._state.unsaved is not None:
            await self.again()

    def _failed(self, error: Exception) -> None:
        self._counters.add(names.CHECKPOINT_FAILURES)
        self._state.unsaved = str(error) or type(error).__name__
