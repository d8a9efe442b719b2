"""The steps that the controller's actions are made of: save, enforce, report.

In goes a new checkpoint, or pods whose allocation is saved; out comes what those pods lack. One
rule says what an error means:

- before the save, and in it: nothing was changed, and the caller gets the error;
- after the save: the change has happened. The next step is done all the same, the caller gets the
  answer, and what failed is what the pods lack (`Steps.after_save`).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.api.views import enforcement_document
from agent.pods.model import full_name
from agent.progress import uncancelled
from agent.reconcile.report import EnforcementReport
from agent.server import metrics as names
from agent.server.allocation_log import allocation_line
from agent.server.errors import EXPECTED, CheckpointFailedError, message_of
from agent.server.events import Events
from agent.server.outcomes import OutcomeReporter
from agent.server.pod_records import details
from agent.server.queue import SerialQueue, Turns
from agent.state.checkpoint import CheckpointIOError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import ParamSpec, TypeVar

    from agent.api.documents.kernel import EnforcementDocument
    from agent.clock import Clock
    from agent.managers.allocation import PodAllocation
    from agent.reconcile.diff import Difference
    from agent.reconcile.target import Desired
    from agent.server.exposition import Metrics
    from agent.server.kernel import KernelEnforcement
    from agent.server.queue import Worker
    from agent.server.state import AgentState
    from agent.state.checkpoint import Checkpoint
    from agent.state.store import Store

    _Params = ParamSpec("_Params")
    _Result = TypeVar("_Result")

log = structlog.get_logger(__name__)

#: With fewer free bytes than this the next save may fail, however small the last one was.
LEAST_FREE: Final = 256 << 10


class Steps:
    """What all actions of the controller share, and the steps of a change."""

    def __init__(
        self,
        state: AgentState,
        metrics: Metrics,
        kernel: KernelEnforcement,
        store: Store,
        worker: Worker,
        clock: Clock,
    ) -> None:
        self.state = state
        self.metrics = metrics
        self.kernel = kernel
        self.store = store
        #: Makes the blocking calls of `kernel` and `store`.
        self.worker = worker
        self.clock = clock
        #: The line in which actions wait for each other.
        self.queue = SerialQueue(state.parts.progress)
        dropped = partial(metrics.counters.add, names.EVENTS_DROPPED)
        self.events = Events(dropped, clock, state.parts.history)
        self.publish = self.events.publish
        self.outcomes = OutcomeReporter(state, metrics.counters, self.events, clock)
        #: With fewer free bytes the next save may fail.
        self._needed = LEAST_FREE
        #: The callers of `observe`, of which one at a time waits for the worker.
        self._observing = Turns()

    async def observe(
        self, call: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs
    ) -> _Result:
        """Run a blocking call that changes nothing, outside of the line.

        At most one such call waits for the worker, so that an action waits for one at most.
        """
        async with self._observing:
            return await self.worker.run(call, *args, **kwargs)

    async def commit(self, durable: Checkpoint) -> None:
        """Save the state, then use it.

        1. If the save fails and the previous checkpoint is in place, nothing was changed:
           `CheckpointFailedError` is raised.
        2. If it fails and the new checkpoint is in place, but perhaps not durable yet, memory and
           disk agree, and the change takes effect.
        3. After any failure the status reports it, and the next comparison saves again, until a
           save succeeds.
        """
        try:
            saving = self.worker.run(self.store.save, self.state.to_save(durable))
            size = await uncancelled(saving)
            self._needed = max(LEAST_FREE, 2 * size)
            self.state.observed.unsaved = None
        except CheckpointIOError as error:
            # A save of the same state is repeated from time to time; the first failure is logged.
            if durable is not self.state.durable or self.state.observed.unsaved != str(error):
                log.error("checkpoint save failed", why=str(error), replaced=error.replaced)  # noqa: TRY400  # not a defect of the agent
            self._not_saved(error)
            if not error.replaced:
                raise CheckpointFailedError(error) from error
        except Exception as error:
            self._not_saved(error)
            raise
        self.state.durable = durable

    async def note(self, durable: Checkpoint) -> None:
        """Use a state that follows from an observation, and save it if that is possible now.

        An observation is a fact even if the save fails, and an older checkpoint only lists more
        than still exists.
        """
        self.state.durable = durable
        await self.save_again()

    async def save_again(self) -> None:
        """Save the current state; status reports a failure until a save succeeds."""
        with suppress(CheckpointFailedError):  # reported by `unsaved`
            await self.commit(self.state.durable)

    async def check_saving(self) -> None:
        """Report an unusable state directory or a full disk before the next change needs it.

        A state that could not be saved before is saved now. So is a state where the file system
        seems to have no room: only a save shows whether the next change can be saved.
        """
        try:
            await self.worker.run(self.store.check)
            free = await self.worker.run(self.store.free)
        except CheckpointIOError as error:
            if self.state.observed.unsaved != str(error):
                log.error("state directory unavailable", why=str(error))  # noqa: TRY400
            self.state.observed.unsaved = str(error)
            return
        self.state.observed.free_bytes = free
        if self.state.observed.unsaved is not None or free < self._needed:
            await self.save_again()

    async def after_save(
        self, step: Callable[[], Awaitable[None] | None], *uids: str
    ) -> tuple[Difference, ...]:
        """Do a step of a saved change for some pods; return what they lack if the step fails."""

        async def run_step() -> None:
            awaitable = step()
            if awaitable is not None:
                await awaitable

        try:
            await uncancelled(run_step())
        except EXPECTED as error:
            why = message_of(error)
            log.error("saved change not enforced", why=why, uids=uids)  # noqa: TRY400  # not a defect of the agent
        except Exception as error:
            why = f"internal error ({type(error).__name__}: {error}); see the agent log"
            log.exception("saved change not enforced", uids=uids)
        else:
            return ()
        return self.outcomes.note_failure(why, uids)

    async def enforce_pods(self, *uids: str, move_memory: bool = False) -> None:
        """Have the kernel enforce saved allocations of pods; with `move_memory` their memory moves.

        The kernel then migrates pages before the write returns.
        """
        enforce = partial(self.kernel.enforce, move_memory=move_memory)
        await self._enforced(partial(enforce, self.state.target(), *uids), *uids)

    async def enforce_pool(self) -> EnforcementReport:
        """Have the kernel enforce the shared pool that follows from what is saved."""
        return await self._enforced(partial(self.kernel.enforce, self.state.target()))

    async def end_pod(
        self, allocation: PodAllocation, target: Desired, replaced_by: str | None = None
    ) -> EnforcementDocument:
        """Take from a pod what it had, once the ledger without the pod is saved; enforce `target`.

        Return what of this the kernel does not enforce.
        """
        state, uid = self.state, allocation.uid
        state.observed.records.forget(uid)
        state.observed.displaced.pop(uid, None)
        state.observed.releases += 1
        outcome = await self._enforced(partial(self.kernel.release, target, allocation))
        failed = await self.after_save(
            partial(self.worker.run, state.parts.cdi_files.remove, allocation)
        )
        remaining = details((*outcome.of_pod(uid), *outcome.of_pod("")))

        def report() -> None:
            self.metrics.counters.add(names.REMOVALS)
            name = full_name(allocation)
            log.info(
                "pod removed",
                removed=uid,
                pod=name,
                replaced_by=replaced_by,
                conditions=remaining,
            )
            successor = f"replaced by the pod of uid {replaced_by}" if replaced_by else ""
            message = "; ".join(filter(None, (allocation_line(allocation), successor)))
            self.publish("PodRemoved", uid, name, message)

        failed += await self.after_save(report)
        return enforcement_document((*remaining, *details(failed)), outcome.notes)

    async def _enforced(
        self, call: Callable[[], EnforcementReport], *uids: str
    ) -> EnforcementReport:
        """Enforce, report the outcome, and return it with the steps that failed."""
        outcome = EnforcementReport(compared=False)

        async def enforce() -> None:
            nonlocal outcome
            outcome = await self.worker.run(call)

        failed = await self.after_save(enforce, *uids)
        if not failed:
            failed = await self.after_save(partial(self.outcomes.note, outcome), *uids)
        return replace(outcome, differences=(*outcome.differences, *failed))

    def _not_saved(self, error: Exception) -> None:
        self.metrics.counters.add(names.CHECKPOINT_FAILURES)
        self.state.observed.unsaved = str(error) or type(error).__name__
