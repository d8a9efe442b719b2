"""Pods that were rejected and run in the shared pool all the same, until they end.

Their containers run on shared CPUs already, so room that comes later is not for them. That is
saved: after a restart of the agent they go on as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.server.reporting.events import operation

if TYPE_CHECKING:
    from agent.server.control.queue import SerialQueue
    from agent.server.control.saving import Saving
    from agent.server.state import AgentState
    from agent.state.checkpoint import SharedPod


class SharedPods:
    """Keeps which pods run shared, in the durable state; changes are queued with all others."""

    def __init__(self, state: AgentState, queue: SerialQueue, saving: Saving) -> None:
        self._state = state
        self._queue = queue
        self._saving = saving
        #: Those that are about to be saved, by uid.
        self._asked: dict[str, SharedPod] = {}

    def of(self, uid: str) -> SharedPod | None:
        """Return a pod that runs shared, or will once that is saved; None for any other."""
        return self._state.durable.shared.get(uid) or self._asked.get(uid)

    def owned(self, name: str) -> dict[str, SharedPod]:
        """Return the pods of a source that run shared, by uid."""
        known = self._state.durable.shared
        return {uid: pod for uid, pod in known.items() if pod.source.name == name}

    async def share(self, pod: SharedPod) -> None:
        """Save that a pod runs shared, unless it is admitted meanwhile; raises `QueueStopped`.

        No admission that is asked for later overtakes this. That the pod runs shared is a fact, so
        that it is kept whether or not it can be saved now.
        """

        async def save() -> None:
            if pod.uid not in self._state.ledger.allocations:
                await self._saving.note(self._state.durable.with_shared(pod))

        self._asked[pod.uid] = pod
        try:
            with operation("share", uid=pod.uid):
                await self._queue.run(save)
        finally:
            self._asked.pop(pod.uid, None)

    async def end(self, uid: str) -> None:
        """Save that a pod which ran shared has ended; raises `QueueStopped`."""

        async def save() -> None:
            await self._saving.note(self._state.durable.without_shared(uid))

        with operation("remove", uid=uid):
            await self._queue.run(save)
