"""The preparation of devices that containers were given, in the background.

The kubelet prepares devices when a container starts, with 30 s for a plugin (`PreStartContainer`).
No turn of the line waits for that: a pod is admitted with a note that its devices are not prepared,
and a later turn removes the note, or replaces it by the reason. The note is saved with the
allocation, so that the preparation is repeated when the pod is asked for after a crash or failure.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.devices.providers import DeliveryError
from agent.pods.model import full_name
from agent.server.queue import OWN, QueueStopped, called_by

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.server.steps import Steps

log = structlog.get_logger(__name__)

#: The note until the plugin has answered.
ASKED: Final = "PreStartContainer has not been answered"


class Preparations:
    """What is under way: at most one preparation for each pod."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, allocation: PodAllocation, *, delivered: bool) -> None:
        """Have the devices of a pod prepared, unless that is under way.

        If plugins have just allocated them (`delivered`), what is under way is that of a removed
        pod of the same uid: its end is waited for, and what came of it is not noted.
        """
        former = self._tasks.get(allocation.uid)
        if former is None or delivered:
            self._tasks[allocation.uid] = asyncio.create_task(self._run(allocation, former))

    async def end(self, uid: str) -> bool:
        """Wait for the end of a pod's preparation; return whether there was one."""
        waited = False
        while (task := self._tasks.get(uid)) is not None:
            await asyncio.wait((task,))
            waited = True
        return waited

    async def _run(self, allocation: PodAllocation, former: asyncio.Task[None] | None) -> None:
        uid, this = allocation.uid, asyncio.current_task()
        try:
            if former is not None:
                await asyncio.wait((former,))
            failure = await self._prepare(allocation)

            async def note() -> None:
                if self._tasks.get(uid) is this:
                    await self._note(uid, failure)

            # At a stop the note stays: the preparation is repeated when the pod is asked for.
            with suppress(QueueStopped), called_by(OWN):
                await self._steps.queue.run(note)
        finally:
            if self._tasks.get(uid) is this:
                del self._tasks[uid]

    async def _prepare(self, allocation: PodAllocation) -> str:
        """Have the devices of a pod prepared; return why they are not, "" if they are."""
        uid, pod = allocation.uid, full_name(allocation)
        try:
            await self._steps.state.parts.providers.prepare(allocation)
        except DeliveryError as error:
            why = f"PreStartContainer of {error.resource} failed: {error.message}"
            log.error("devices not prepared", uid=uid, pod=pod, why=why)  # noqa: TRY400  # the plugin's failure
            return why
        except Exception as error:
            log.exception("devices not prepared", uid=uid, pod=pod)
            return f"internal error ({type(error).__name__}: {error}); see the agent log"
        return ""

    async def _note(self, uid: str, failure: str) -> None:
        """Save what a preparation ended with, unless the pod was removed meanwhile."""
        state = self._steps.state
        allocation = state.ledger.allocations.get(uid)
        if allocation is not None and allocation.unprepared:
            ledger = state.ledger.with_unprepared(uid, failure)
            await self._steps.note(replace(state.durable, ledger=ledger))
