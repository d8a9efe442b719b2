"""The decisions of the pods that a container runtime reports.

In: the uids of pods whose sandbox or resources changed. Out: the state of each pod (`PodState`);
its allocation is in the ledger. A decision goes the way of any pod, through the controller's queue.
`decide` begins none while one for the pod is in progress; `decide_all` always begins one.

| state | what is true | what moves the pod on |
|-|-|-|
| undecided | no decision was made, or the pod was reopened since | `decide` |
| admitted | a decision found or gave an allocation | `reopen`, or a runtime that connects |
| rejected | the last decision gave no allocation, for `reason` | the next decision |

`decide` leaves a pod without an allocation undecided if its specification is not known, if the
source cannot be read, or if the agent stops; so does `decide_all` where it rejects. A pod is
forgotten with its sandbox, also amid its decision.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from msgspec import Struct

from agent.cluster.handover import still_allocated, still_shared
from agent.server.admissions import MOST_AT_ONCE
from agent.server.errors import EXPECTED, message_of
from agent.server.queue import QueueStopped
from agent.sources.source import CONFLICT, REJECTED

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterable, Iterator, Sequence

    from agent.api.documents.status import ManifestDocument
    from agent.cluster.kubelet.source import KubeletPods
    from agent.managers.allocation import PodAllocation
    from agent.reconcile.diff import Difference
    from agent.server.controller import Controller
    from agent.server.intake import PodIntake

log = structlog.get_logger(__name__)

#: How long the kubelet may take to answer with a pod, in seconds, while the creation of a container
#: waits.
ASK_SECONDS: Final = 0.5
#: How long the kubelet may take for all pods that it is asked for when a runtime connects, in
#: seconds.
ASK_ALL_SECONDS: Final = 2.0
#: For how many pods the kubelet is asked at once then.
_ASKED_AT_ONCE: Final = 64
#: The states of an entry of the source that mean: decided, and not admitted.
_NOT_ADMITTED: Final = (REJECTED, CONFLICT)


class PodState(Enum):
    """What is decided of a pod; see the table above."""

    UNDECIDED = auto()
    ADMITTED = auto()
    REJECTED = auto()


class RuntimePod(Struct):
    """A pod of the runtime."""

    state: PodState = PodState.UNDECIDED
    #: Why it was rejected.
    reason: str = ""
    #: Why a container, or the pod itself (""), was not resized last. The kubelet repeats an update
    #: that failed, and each resize is reported once.
    resizes: dict[str, str] = msgspec.field(default_factory=dict)


class PodDecisions:
    """Decides pods in the background; `pods` is their source, `intake` has them admitted."""

    def __init__(self, controller: Controller, pods: KubeletPods, intake: PodIntake) -> None:
        self._controller = controller
        self._pods = pods
        self._intake = intake
        self._runtime_pods: dict[str, RuntimePod] = {}
        #: The decision of a single pod that is in progress, by uid.
        self._deciding: dict[str, asyncio.Task[None]] = {}
        #: Decisions of all pods, readings of the source, and what follows from decisions.
        self._following: set[asyncio.Task[None]] = set()
        #: The comparison in progress, and the pods (uids) whose cgroups are compared after it.
        self._comparing: asyncio.Task[None] | None = None
        self._compared_next: dict[str, None] = {}

    def pod(self, uid: str) -> RuntimePod:
        """Return the entry of a pod, made if there is none; the caller may change it."""
        return self._runtime_pods.setdefault(uid, RuntimePod())

    def allocation(self, uid: str) -> PodAllocation | None:
        """Return the allocation of a pod."""
        return self._controller.state.ledger.allocations.get(uid)

    def reopen(self, uid: str) -> None:
        """Have an admitted pod decided again before its next container."""
        pod = self._runtime_pods.get(uid)
        if pod is not None and pod.state is PodState.ADMITTED:
            pod.state = PodState.UNDECIDED

    def forget(self, uid: str) -> None:
        """Forget a pod whose sandbox was removed, and have the source read again."""
        self._runtime_pods.pop(uid, None)
        _ = self.follow(self._sync())

    def decide(self, uid: str) -> None:
        """Begin the decision of a pod unless one is in progress."""
        self._runtime_pods.setdefault(uid, RuntimePod())
        if uid not in self._deciding:
            task = self._deciding[uid] = asyncio.create_task(self._decide(uid))
            task.add_done_callback(lambda _: self._deciding.pop(uid, None))

    def decide_to_start(self, uid: str) -> None:
        """Begin the decision of a pod whose containers start, even if it was left to run shared."""
        if self._controller.shared_pod(uid) is not None:
            self._intake.try_again(self._pods.key(uid))
        self.decide(uid)

    async def is_done(self, uid: str, deadline: float) -> bool:
        """Wait for the decision in progress; False at the `deadline` of the loop's clock."""
        return await in_time(self._deciding[uid], deadline)

    def decide_all(self, uids: Collection[str]) -> None:
        """Begin the decision of the pods that the runtime has, and forget all others."""
        self._runtime_pods = {uid: self._runtime_pods.get(uid, RuntimePod()) for uid in uids}
        for uid in self._runtime_pods:
            self.reopen(uid)
        _ = self.follow(self._decide_all(frozenset(uids)))

    def follow(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Begin work that no decision of a single pod waits for; `close` ends it."""
        task = asyncio.create_task(work)
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return task

    def still_allocated(self) -> str:
        """Return which pods have an allocation still and may have ended, "" if none."""
        return still_allocated(self._controller.state.ledger.allocations, self._pods.ending)

    def still_shared(self, pod: PodAllocation) -> tuple[str, ...]:
        """Return which cgroups of others may still use exclusive CPUs of a pod, a line each."""
        return still_shared(pod, self._remaining())

    async def close(self) -> None:
        """End all work in progress: the pods are decided when the runtime connects next."""
        tasks = (*self._deciding.values(), *self._following)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _decide(self, uid: str) -> None:
        # 1. Ask the kubelet for the specification if it is not known.
        had_allocation = self.allocation(uid) is not None
        await self._pods.ask_for(uid, ASK_SECONDS)
        # 2. Have the pod admitted.
        document = await self._settle(uid)
        # 3. If it is rejected, ask the kubelet for a list: a pod may have ended while the agent or
        #    the kubelet was away. If pods with an allocation may have ended, decide once more.
        if _is_rejected(document):
            await self._pods.list_now(ASK_SECONDS)
            if self.still_allocated():
                document = await self._settle(uid)
        # 4. Cgroups of a pod that had an allocation may be new, or changed since: compare them.
        if had_allocation and self.allocation(uid) is not None:
            await self._compare(uid)
        # 5. Note the state, unless the pod was forgotten meanwhile.
        pod = self._runtime_pods.get(uid)
        if pod is None:
            return
        pod.state, pod.reason = PodState.UNDECIDED, ""
        if document is not None and _is_rejected(document):
            pod.state, pod.reason = PodState.REJECTED, document.message
        self._note_admitted((uid,))

    async def _decide_all(self, uids: frozenset[str]) -> None:
        # 1. Decide the pods whose specification is known, and compare all.
        await self._sync()
        try:
            await self._controller.reconcile()
        except QueueStopped:
            return
        self._note_admitted(uids)
        # 2. Ask the kubelet for the others, and decide them.
        others = [uid for uid in uids if self.allocation(uid) is None]
        unknown = [uid for uid in others if self._pods.specification(uid) is None]
        if unknown:
            await self._ask_for_all(unknown)
            await self._sync()
            self._note_admitted(unknown)

    def _note_admitted(self, uids: Iterable[str]) -> None:
        for uid in uids:
            pod = self._runtime_pods.get(uid)
            if pod is not None and self.allocation(uid) is not None:
                pod.state, pod.reason = PodState.ADMITTED, ""

    async def _ask_for_all(self, uids: Sequence[str]) -> None:
        """Ask for pods together; one that is not answered in time comes with the kubelet's list."""
        remaining = iter(uids)

        async def ask() -> None:
            for uid in remaining:
                await self._pods.ask_for(uid, ASK_SECONDS)

        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_ALL_SECONDS):
                await asyncio.gather(*(ask() for _ in range(_ASKED_AT_ONCE)))

    async def _settle(self, uid: str) -> ManifestDocument | None:
        """Have one pod admitted before all others; None if it is no entry or cannot be read now."""
        try:
            return await self._intake.settle(self._pods.key(uid))
        except QueueStopped:
            return None
        except EXPECTED as error:
            log.warning("pods of the kubelet not read", why=message_of(error))
            return None

    async def _sync(self) -> None:
        try:
            await self._intake.sync()
        except QueueStopped:
            return
        except EXPECTED as error:
            log.warning("pods of the kubelet not read", why=message_of(error))

    async def _compare(self, uid: str) -> None:
        """Have the cgroups of a pod compared, together with those of pods that come meanwhile.

        Waits for the comparison only if the last one showed that CPUs of the pod are shared.
        """
        self._compared_next[uid] = None
        if self._comparing is None or self._comparing.done():
            self._comparing = self.follow(self._compare_next())
        pod = self.allocation(uid)
        if pod is not None and self.still_shared(pod):
            await asyncio.shield(self._comparing)

    async def _compare_next(self) -> None:
        with suppress(QueueStopped):
            while self._compared_next:
                uids = [*self._compared_next][:MOST_AT_ONCE]
                for uid in uids:
                    del self._compared_next[uid]
                await self._controller.enforce(*uids)

    def _remaining(self) -> Iterator[Difference]:
        """Yield all differences that the last comparison left."""
        observed = self._controller.state.observed
        yield from observed.unenforced
        for record in observed.records.pods.values():
            yield from record.unenforced


def _is_rejected(document: ManifestDocument | None) -> bool:
    return document is not None and document.state in _NOT_ADMITTED


async def in_time(work: asyncio.Task[None], deadline: float) -> bool:
    """Wait for work until the `deadline` of the loop's clock; return whether it is done."""
    try:
        async with asyncio.timeout_at(deadline):
            await asyncio.shield(work)
    except TimeoutError:
        return False
    return True
