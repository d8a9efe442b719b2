"""Which pods end by themselves, when and why: with their last process, or with their systemd unit.

In go the allocations that ask for it (`Lifetime`; all others end when they are removed) and what
the kernel and systemd show of them (`Lives`). Out come actions in the line of changes: a pod is
removed, is noted as started, or is bound to the cgroup of its unit. The first rule that fits holds
(`life_of`):

1. The unit is stopped: the pod ends after `STOPPED_SECONDS`; a restart takes less.
2. systemd does not answer about the unit, or the unit runs in the cgroup that the pod is bound to:
   nothing follows, and no patience is counted.
3. The unit runs in a new cgroup, as after a restart: what runs there is confined at once, and the
   pod is bound to the cgroup. What prevents the binding is a condition until the pod is bound.
4. A process lives in a cgroup of a pod without a unit: the pod lives, and that is saved the first
   time.
5. No process lives there, but one did, or a cgroup is bound: the pod ends at once.
6. No process was ever there: the pod ends after `START_SECONDS`.

Always true: a pod that was not observed does not end, and no patience begins before the agent
starts. A pod that a request removes meanwhile has ended already.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.api.documents.admissions import BindRequest
from agent.pods.model import End, full_name
from agent.reconcile.report import BindingError
from agent.server.errors import PodNotFoundError, RequestError
from agent.server.operations import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.reconcile.drivers import Lives
    from agent.server.steps import Steps

#: How long a pod that ends with its processes may be without the first one, in seconds.
START_SECONDS: Final = 300.0
#: How long a unit must be stopped before its pod ends, in seconds.
STOPPED_SECONDS: Final = 30.0
#: The subject of the condition that a pod cannot be bound to its unit, followed by the pod's uid.
_UNBOUND: Final = "unit of pod "

log = structlog.get_logger(__name__)


class Life(StrEnum):
    """What follows for a pod from what was observed of it."""

    #: Nothing follows: it runs, or systemd does not say.
    RUNS = "runs"
    #: That it runs is to be saved.
    STARTED = "started"
    #: It is to be bound to the cgroup in which its unit runs.
    MOVED = "moved"
    #: It ends once its patience is over.
    ABSENT = "absent"


class PodLife(Struct, frozen=True):
    """The life of one pod."""

    life: Life
    #: Why the pod is absent, or the cgroup to which its unit moved.
    text: str = ""
    #: How long the pod may be absent, in seconds.
    patience: float = 0.0


def life_of(allocation: PodAllocation, bound: list[str], lives: Lives) -> PodLife:
    """Return the life of a pod whose containers are bound to the cgroups `bound`; pure."""
    lifetime = allocation.lifetime
    if lifetime.end is End.UNIT:
        unit = lives.units.get(lifetime.unit)
        if unit is not None and not unit.running:  # 1.
            return PodLife(Life.ABSENT, f"{lifetime.unit} is stopped", STOPPED_SECONDS)
        if unit is None or not unit.cgroup or bound == [unit.cgroup]:  # 2.
            return PodLife(Life.RUNS)
        return PodLife(Life.MOVED, unit.cgroup)  # 3.
    if allocation.uid in lives.inhabited:  # 4.
        return PodLife(Life.RUNS if lifetime.started else Life.STARTED)
    if lifetime.started or bound:  # 5.
        return PodLife(Life.ABSENT, "its last process has ended")
    return PodLife(Life.ABSENT, "none of its processes has started", START_SECONDS)  # 6.


class Endings:
    """Ends the pods that end by themselves; `look` is called from time to time.

    `remove` removes a pod and is called in a turn of the line; `enforce` and `bind` take a turn of
    their own.
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
        watched = [pod for pod in allocations.values() if pod.lifetime.end is not End.REMOVAL]
        lives = await self._observe(watched) if watched else {}
        now = self._steps.clock.monotonic()
        absent = (uid for uid, pod in lives.items() if pod.life is Life.ABSENT)
        self._absent = {uid: self._absent.get(uid, now) for uid in absent}
        if started := [uid for uid, pod in lives.items() if pod.life is Life.STARTED]:
            await self._steps.queue.run(partial(self._note_started, started))
        for uid, since in self._absent.items():
            if now - since >= lives[uid].patience:
                await self._end(allocations[uid], lives[uid])
        moved = {uid: pod.text for uid, pod in lives.items() if pod.life is Life.MOVED}
        for uid, cgroup in moved.items():
            await self._follow(allocations[uid], cgroup)
        conditions = self._steps.state.observed.conditions
        for subject in [subject for subject in conditions if subject.startswith(_UNBOUND)]:
            if subject.removeprefix(_UNBOUND) not in moved:
                del conditions[subject]

    async def _observe(self, watched: Collection[PodAllocation]) -> Mapping[str, PodLife]:
        """Return the life of each pod by uid; a pod whose unit restarted is confined first."""
        steps = self._steps
        lives = await steps.observe(steps.kernel.lives, steps.state.target(), watched)
        if lives.restarted:
            await self._enforce(*lives.restarted)
        bindings = steps.state.durable.bindings
        return {
            pod.uid: life_of(pod, [binding.cgroup for binding in bindings.of_pod(pod.uid)], lives)
            for pod in watched
        }

    async def _end(self, allocation: PodAllocation, pod: PodLife) -> None:
        lasted = f" for {pod.patience:.0f} s" if pod.patience else ""
        with operation("end", uid=allocation.uid, pod=full_name(allocation)):
            log.info("pod ended", why=f"{pod.text}{lasted}")
            with suppress(PodNotFoundError):  # removed by a request meanwhile
                await self._steps.queue.run(partial(self._remove, allocation.uid))

    async def _follow(self, allocation: PodAllocation, cgroup: str) -> None:
        """Bind a pod to the cgroup of its unit; what prevents that is a condition until then."""
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
        """Save that pods had processes: without one they end, also after a restart of the agent."""
        state, ledger = self._steps.state, self._steps.state.ledger
        for uid in uids:
            if (allocation := ledger.allocations.get(uid)) is not None:
                ledger = ledger.with_lifetime(uid, replace(allocation.lifetime, started=True))
        await self._steps.note(replace(state.durable, ledger=ledger))
