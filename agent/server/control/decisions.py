"""Decisions on pods, with what providers of devices are asked before and after them.

A decision is pure. Where it depends on what a device plugin prefers it is suspended, the plugin is
asked, and it goes on with the answer. What was allocated is then delivered by the providers of the
devices; a delivery that fails is a rejection, which leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from agent.api.documents import FitDocument, FreeCpusDocument
from agent.api.views import advice_document, rejection_document
from agent.devices.providers import DeliveryError
from agent.managers.admission import remove
from agent.managers.allocations.origin import KUBELET, Origin
from agent.managers.decision import TOPOLOGY_ADMISSION_REQUESTS, Decision, Reason, Rejection
from agent.managers.trials.advice import AdviceKind, advise
from agent.managers.trials.capacity import fill, free_cpus, nodes_of
from agent.pods.identity import extended_resource_fault
from agent.server.configured_host import decide
from agent.server.errors import BusyError
from agent.sources.ownership import assigned, belongs_elsewhere, lasting, name_taken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent.api.documents import AdmissionDocument, FailedPodDocument, RejectionDocument
    from agent.clock import Clock
    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.allocations.origin import Source
    from agent.managers.decision import RejectionCause
    from agent.managers.effective_policy import EffectivePolicy
    from agent.pods.model import Pod
    from agent.server.metrics.exposition import Metrics
    from agent.server.reporting.records import RejectedPod
    from agent.server.state import AgentState

#: How many rejections may wait for their advice; the answers to all others have none.
MOST_WAITING: Final = 16


class Decisions:
    """Makes the decisions of the controller."""

    def __init__(self, state: AgentState, metrics: Metrics, clock: Clock) -> None:
        self._state = state
        self._metrics = metrics
        self._clock = clock
        #: One rejection is advised on at a time; `_waiting` counts it and those behind it.
        self._advising = asyncio.Lock()
        self._waiting = 0

    def replaced(self, pod: Pod) -> PodAllocation | None:
        """Return the one admitted pod that a pod would replace, None if there is none."""
        others = self._state.namesakes(pod)
        return others[0] if len(others) == 1 else None

    async def with_devices(self, pod: Pod, source: Source) -> Pod:
        """Return a pod with the devices that the kubelet beside the agent gave to its containers.

        The kubelet is asked only about its own pods, of these about those that ask for a resource
        which the agent does not provide, and only as long as they are not decided.
        """
        kubelet, known = self._state.kubelet_devices, self._state.ledger.allocations.get(pod.uid)
        if kubelet is None or source.name != KUBELET:
            return pod
        if known is not None and known.origin is Origin.DECIDED:
            return pod
        provided = self._state.configured.rules.policy.devices
        if not any(
            name not in provided and extended_resource_fault(name) is None
            for container in pod.all_containers()
            for name in container.resources.limits
        ):
            return pod
        given = await kubelet.of(pod)
        return replace(pod, given_devices=given) if given else pod

    async def decide(
        self,
        pod: Pod,
        source: Source,
        ledger: Ledger,
        replaced: PodAllocation | None = None,
    ) -> Decision:
        """Decide on a pod, and have its devices delivered; counts and times the decision.

        `ledger` is that of the state, perhaps with pods which have neither the uid nor the name of
        this one. The decision is made as if the pod `replaced` had been removed.
        """
        decision, seconds = await self._made(pod, source, ledger, replaced)
        if (TOPOLOGY_ADMISSION_REQUESTS.name, ()) in decision.counters:
            self._metrics.decision_duration.observe(seconds * 1000)
        self._metrics.counters.add_all(decision.counters)
        return await self._delivered(decision, ledger)

    async def preview(
        self, pod: Pod, source: Source, replaced: PodAllocation | None = None
    ) -> Decision:
        """Decide as `decide` would now; nothing is delivered or counted."""
        decision, _ = await self._made(pod, source, self._state.ledger, replaced)
        return decision

    async def _made(
        self, pod: Pod, source: Source, ledger: Ledger, replaced: PodAllocation | None
    ) -> tuple[Decision, float]:
        """Return the decision, and how long the agent itself worked on it, in seconds."""
        started = self._clock.monotonic()
        decision = self._begun(pod, source, ledger, replaced)
        seconds = self._clock.monotonic() - started
        while decision.suspended is not None:
            suspended = decision.suspended
            answers = await self._state.providers.answers(suspended.questions)
            started = self._clock.monotonic()
            decision = suspended.resume(answers)
            seconds += self._clock.monotonic() - started
        return lasting(assigned(decision, ledger, source), pod), seconds

    async def advised(
        self, pod: Pod, answer: AdmissionDocument, *, replace_pod: bool = False
    ) -> AdmissionDocument:
        """Return the answer to a rejected pod with what would let it be admitted now.

        With `replace_pod` it would replace the pod of its name.
        """
        if answer.rejection is None:
            return answer
        replaced = self.replaced(pod) if replace_pod else None
        advised = await self._with_advice(pod, answer.rejection, replaced)
        if [advice.kind for advice in advised.advice or ()] == [AdviceKind.AGAIN]:
            # Not the decision rejected the pod, a provider of devices did, which is not tried.
            return answer
        return replace(answer, rejection=advised)

    async def advised_status(self, rejected: RejectedPod) -> FailedPodDocument:
        """Return the status of a rejected pod with what would let it be admitted now."""
        status = rejected.status
        if rejected.pod is None or status.rejection is None:
            return status
        return replace(status, rejection=await self._with_advice(rejected.pod, status.rejection))

    async def fit(self, pod: Pod, most: int) -> FitDocument:
        """Return how many copies of a pod would be admitted now, of at most `most`.

        Raises `BusyError` if too many requests for advice or capacity wait.
        """
        configured, ledger = self._state.configured, self._state.ledger
        async with self._turn():
            found = await _filled(configured.rules, ledger, pod, most)
            empty = await _filled(configured.rules, configured.rules.empty_ledger(), pod, most)
        rejection = None if found.cause is None else rejection_document(found.cause.explain())
        if rejection is not None and not found.on:
            rejection = await self._with_advice(pod, rejection)
        free = free_cpus(configured.rules, ledger)
        count = sum(found.on.values())
        return FitDocument(
            count=count,
            limited=found.cause is None,
            on=dict(found.on),
            empty=sum(empty.on.values()),
            free=FreeCpusDocument(
                free=free.free,
                whole_cores=free.whole_cores,
                on_one_node=free.on_one_node,
                fragmentation=round(free.fragmentation, 3),
            ),
            rejection=rejection,
        )

    async def _with_advice(
        self, pod: Pod, rejection: RejectionDocument, replaced: PodAllocation | None = None
    ) -> RejectionDocument:
        """Return the rejection with advice, unless too many others wait for theirs.

        Each change is tried in a turn of its own, so that no other request waits for more than one.
        """
        configured, ledger = self._state.configured, self._without(replaced)
        if rejection.reason == Reason.CONFLICT or configured.frozen:
            return rejection
        found = []
        try:
            async with self._turn():
                for advice in advise(configured.rules, ledger, pod):
                    if advice is not None:
                        found.append(advice_document(advice))
                    await asyncio.sleep(0)
        except BusyError:
            return rejection
        return replace(rejection, advice=tuple(found))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for the turn of a question; raises `BusyError` if too many wait."""
        if self._waiting >= MOST_WAITING:
            raise BusyError
        self._waiting += 1
        try:
            async with self._advising:
                yield
        finally:
            self._waiting -= 1

    def _begun(
        self, pod: Pod, source: Source, ledger: Ledger, replaced: PodAllocation | None
    ) -> Decision:
        state = self._state
        if (owner := state.other_owner(pod.uid, source)) is not None:
            return belongs_elsewhere(ledger, pod, *owner)
        if replaced is None:
            others = state.namesakes(pod)
            return name_taken(ledger, pod, others) if others else self._decided(ledger, pod)
        if (owner := state.asked_for_by(replaced.uid)) is not None:
            return belongs_elsewhere(ledger, pod, *owner, uid=replaced.uid)
        return self._decided(self._without(replaced), pod)

    def _decided(self, ledger: Ledger, pod: Pod) -> Decision:
        return decide(self._state.configured, ledger, pod)

    def _without(self, replaced: PodAllocation | None) -> Ledger:
        rules, ledger = self._state.configured.rules, self._state.ledger
        return ledger if replaced is None else remove(rules, ledger, replaced.uid)

    async def _delivered(self, decision: Decision, before: Ledger) -> Decision:
        """Return the decision with the delivery of its devices, or the rejection of the pod.

        A pod that has an allocation already has its devices.
        """
        if decision.allocation is None or decision.already_admitted:
            return decision
        try:
            allocation = await self._state.providers.delivered(decision.allocation)
        except DeliveryError as error:
            return Decision(
                decision.uid,
                before,
                cause=Rejection(
                    Reason.UNEXPECTED,
                    f"Allocate failed due to {error.message}, which is unexpected",
                    remedy=error.remedy,
                    resource=error.resource,
                    container=error.container,
                    asked=len(error.ids),
                ),
                hints=decision.hints,
                asked=decision.asked,
                pod=decision.pod,
            )
        if allocation is decision.allocation:
            return decision
        ledger = decision.ledger.with_allocation(allocation)
        return replace(decision, allocation=allocation, ledger=ledger)


class _Filled(NamedTuple):
    """How many copies of a pod were admitted, by their nodes, and why no more were."""

    on: Counter[str]
    cause: RejectionCause | None


async def _filled(rules: EffectivePolicy, ledger: Ledger, pod: Pod, most: int) -> _Filled:
    """Admit copies of a pod to a ledger, each decision in a turn of its own."""
    on: Counter[str] = Counter()
    for decision in fill(rules, ledger, pod):
        if decision.allocation is None:
            return _Filled(on, decision.cause)
        on[str(nodes_of(rules, decision.allocation))] += 1
        if on.total() == most:
            break
        await asyncio.sleep(0)
    return _Filled(on, None)
