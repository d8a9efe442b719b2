"""Which pods end by themselves, when and why: with their last process, or with their systemd unit.

In go the allocations that ask for it (`Lifetime`; all others end when they are removed) and what
the kernel and systemd show of them (`Lives`). Out come actions in the line of changes: pods are
removed, are noted as started, and are bound to the cgroup of their unit. First match wins:

1. systemd does not answer about the unit: nothing follows, and no patience is counted.
2. The unit runs: the pod lives. What runs in a new cgroup, as after a restart, is confined at once
   and the pod is bound to it; what prevents the binding is a condition until it is made.
3. The unit is stopped: the pod ends after `STOPPED_SECONDS`; a restart takes less.
4. A process lives in a cgroup of the pod: the pod lives, and that is saved the first time.
5. A process was there, or a cgroup is bound, and is empty now: the pod ends at once.
6. No process was ever there: the pod ends after `START_SECONDS`.

Always true: a pod that was not observed does not end, and patience begins when the agent starts at
the earliest. A pod that a request removes meanwhile has ended already.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.api.documents import BindRequest
from agent.pods.model import End, full_name
from agent.reconcile.report import BindingError
from agent.server.errors import PodNotFoundError, RequestError
from agent.server.operations import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.drivers import Lives
    from agent.server.steps import Steps

#: How long a pod that ends with its processes may wait for the first one, in seconds.
START_SECONDS: Final = 300.0
#: How long a unit must be stopped before its pod ends, in seconds.
STOPPED_SECONDS: Final = 30.0
#: The subject of the condition that a pod cannot be bound to its unit, before its uid.
_UNBOUND: Final = "unit of pod "

log = structlog.get_logger(__name__)


class Life(StrEnum):
    """What follows for a pod from what was observed of it."""

    #: Nothing: it runs, or systemd does not say.
    RUNS = "runs"
    #: It runs, which is not saved yet.
    STARTED = "started"
    #: Its unit runs in a cgroup that it is not bound to.
    MOVED = "moved"
    #: It has no process or its unit is stopped: it ends when its patience is over.
    ABSENT = "absent"


class Observed(Struct, frozen=True):
    """The life of a pod; `text` is the new cgroup or the reason, `patience` is in seconds."""

    life: Life
    text: str = ""
    patience: float = 0.0


def observed(allocation: PodAllocation, bound: list[str], lives: Lives) -> Observed:
    """Return the life of a pod whose containers are bound to the cgroups `bound`; pure."""
    lifetime = allocation.lifetime
    if lifetime.end is End.UNIT:
        unit = lives.units.get(lifetime.unit)
        if unit is not None and not unit.running:
            return Observed(Life.ABSENT, f"{lifetime.unit} is stopped", STOPPED_SECONDS)
        if unit is None or not unit.cgroup or bound == [unit.cgroup]:
            return Observed(Life.RUNS)
        return Observed(Life.MOVED, unit.cgroup)
    if allocation.uid in lives.inhabited:
        return Observed(Life.RUNS if lifetime.started else Life.STARTED)
    if lifetime.started or bound:
        return Observed(Life.ABSENT, "its last process has ended")
    return Observed(Life.ABSENT, "none of its processes has started", START_SECONDS)


class Endings:
    """Ends the pods that end by themselves; `look` is called from time to time.

    `remove` is the queued action that removes a pod, `enforce` and `bind` are actions of their own.
    """

    def __init__(
        self,
        steps: Steps,
        remove: Callable[[str], Coroutine[None, None, object]],
        enforce: Callable[..., Awaitable[None]],
        bind: Callable[[str, str, BindRequest], Awaitable[object]],
    ) -> None:
        self._steps = steps
        self._remove, self._enforce, self._bind = remove, enforce, bind
        #: Since when each pod has been `ABSENT`, by uid: monotonic, in seconds.
        self._absent: dict[str, float] = {}

    async def look(self) -> None:
        """Observe the pods once and do what follows.

        Raises `CheckpointFailedError` when a removal cannot be saved: it is tried again next time.
        """
        allocations = self._steps.state.ledger.allocations
        watched = [each for each in allocations.values() if each.lifetime.end is not End.REMOVAL]
        found = await self._observe(watched) if watched else {}
        now = self._steps.clock.monotonic()
        absent = (uid for uid, each in found.items() if each.life is Life.ABSENT)
        self._absent = {uid: self._absent.get(uid, now) for uid in absent}
        if started := [uid for uid, each in found.items() if each.life is Life.STARTED]:
            await self._steps.queue.run(partial(self._note_started, started))
        for uid, since in self._absent.items():
            if now - since >= found[uid].patience:
                await self._end(allocations[uid], found[uid])
        moved = {uid: each.text for uid, each in found.items() if each.life is Life.MOVED}
        for uid, cgroup in moved.items():
            await self._follow(allocations[uid], cgroup)
        conditions = self._steps.state.observed.conditions
        for subject in [each for each in conditions if each.startswith(_UNBOUND)]:
            if subject.removeprefix(_UNBOUND) not in moved:
                del conditions[subject]

    async def _observe(self, watched: Collection[PodAllocation]) -> Mapping[str, Observed]:
        """Return the life of each pod by uid; those that restarted are confined before."""
        steps = self._steps
        lives = await steps.observe(steps.kernel.lives, steps.state.target(), watched)
        if lives.restarted:
            await self._enforce(*lives.restarted)
        bindings = steps.state.durable.bindings
        return {
            each.uid: observed(each, [one.cgroup for one in bindings.of_pod(each.uid)], lives)
            for each in watched
        }

    async def _end(self, allocation: PodAllocation, found: Observed) -> None:
        lasted = f" for {found.patience:.0f} s" if found.patience else ""
        with operation("end", uid=allocation.uid, pod=full_name(allocation)):
            log.info("pod ended", why=f"{found.text}{lasted}")
            with suppress(PodNotFoundError):  # removed by a request meanwhile
                await self._steps.queue.run(partial(self._remove, allocation.uid))

    async def _follow(self, allocation: PodAllocation, cgroup: str) -> None:
        """Bind a pod to the cgroup of its unit; what prevents that is a condition meanwhile."""
        uid, container = allocation.uid, allocation.containers[0].name
        subject, conditions = f"{_UNBOUND}{uid}", self._steps.state.observed.conditions
        try:
            with suppress(PodNotFoundError):  # removed by a request meanwhile
                await self._bind(uid, container, BindRequest(cgroup=f"/{cgroup}"))
        except (BindingError, RequestError) as error:
            conditions[subject] = str(error)
        else:
            conditions.pop(subject, None)

    async def _note_started(self, uids: Collection[str]) -> None:
        """Save that pods have had processes: they end when they have none, after a restart too."""
        state, ledger = self._steps.state, self._steps.state.ledger
        for uid in uids:
            if (allocation := ledger.allocations.get(uid)) is not None:
                ledger = ledger.with_lifetime(uid, replace(allocation.lifetime, started=True))
        await self._steps.note(replace(state.durable, ledger=ledger))
