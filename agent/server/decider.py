"""What a pod gets, decided on the state of the agent; nothing is saved or enforced here.

In goes a pod that waits in the line (`Admission`) and a ledger, out comes a `Proposal`. The first
of these steps that rejects the pod ends them:

1. A pod that is admitted for another source is rejected: it stays with that source.
2. A pod with the name of an admitted pod is rejected, or is decided on the ledger without that one
   where it is to replace it.
3. A host that the configuration does not fit admits no new pod.
4. The pod is decided by policy, ledger and specification (`agent.managers.admission.admit`), an
   admitted pod whose source states other amounts by `agent.managers.resize`, one that is to move by
   `agent.managers.moves`.

Where step 4 depends on which devices a plugin prefers, `propose` goes on as if none did, and
says so in the proposal. `with_preferences` then asks the plugins and decides again with their
answers, on the ledger of the state; `with_delivery` has them deliver the devices. The line is held
meanwhile, so the ledger does not change between these.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from agent.api.documents.admissions import AdmissionDocument
from agent.devices.providers import (
    PLUGIN_SECONDS,
    PLUGIN_SECONDS_BESIDE_RUNTIME,
    DeliveryError,
)
from agent.managers.admission import admit, remove
from agent.managers.allocation import KUBELET
from agent.managers.decision import Decision, Question, Reason, Rejection
from agent.managers.moves import Move, moved
from agent.managers.resize import is_resize, resize
from agent.pods.model import PLACEMENT, Placement, extended_resource_fault
from agent.progress import progressed
from agent.server.preparations import ASKED
from agent.server.queue import Job, outcome_of
from agent.sources.source import assigned, belongs_elsewhere, lasting, name_taken
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from agent.managers.allocation import PodAllocation, Source
    from agent.managers.decision import Suspended
    from agent.managers.ledger import Ledger
    from agent.pods.model import Availability, Pod
    from agent.server.configured import ConfiguredHost
    from agent.server.steps import Steps

#: The share of the time that plugins have for a pod in which they may say what they prefer.
PREFERENCE_SHARE: Final = 0.4

#: How an admitted pod changes: by a move, or by a resize in which these CPUs stay with their
#: containers. None: the pod is to be admitted.
Change: TypeAlias = "Move | Mask"
#: The devices that plugins prefer, by the question that each was asked.
_Answers = MappingProxyType[Question, tuple[str, ...]]
_UNASKED: Final[_Answers] = MappingProxyType({})


class Admission(Job[AdmissionDocument], eq=False, kw_only=True):
    """One pod to admit, which waits in the line."""

    #: The pod, with the devices that the kubelet gave to it.
    pod: Pod
    source: Source
    #: The monotonic time of the request, in seconds.
    requested: float
    replace_pod: bool = False
    change: Change | None = None

    async def answer(self, work: Coroutine[None, None, AdmissionDocument]) -> None:
        """Let the caller have what work returns or raises, in the caller's context."""
        self.settle(*await outcome_of(work, self.context))
        progressed()


class Proposal(Struct, frozen=True):
    """A decision on a pod that is not saved."""

    request: Admission
    decision: Decision
    #: The admitted pod whose place the pod takes.
    replaced: PodAllocation | None = None
    #: The first point of the decision that depends on plugins that were not asked.
    suspended: Suspended | None = None
    #: How long the decision took, in seconds.
    seconds: float = 0.0

    @property
    def pod(self) -> Pod:
        """The pod of the request."""
        return self.request.pod

    @property
    def allocation(self) -> PodAllocation | None:
        """What the pod gets; None if it is rejected."""
        return self.decision.allocation

    @property
    def needs_plugins(self) -> bool:
        """Whether plugins have to be asked, or have to deliver devices."""
        if self.suspended is not None:
            return True
        if self.allocation is None or self.decision.already_admitted or self.decision.resized:
            return False
        return self.allocation.has_devices


class PluginTime(NamedTuple):
    """Until when plugins have time for a pod, in seconds of the loop's clock."""

    preferences: float
    delivery: float


class Decider:
    """Decides on pods; changes neither the state nor a metric."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._state = steps.state

    def propose(self, request: Admission, ledger: Ledger, answers: _Answers = _UNASKED) -> Proposal:
        """Decide on a pod that waits.

        `ledger` is that of the state, perhaps with further pods, none of which has the uid or the
        name of this one.
        """
        clock = self._steps.clock
        replaced = self.replaced(request.pod) if request.replace_pod else None
        started = clock.monotonic()
        decision, suspended = self._decide(
            request.pod, request.source, ledger, replaced, answers, request.change
        )
        seconds = clock.monotonic() - started
        # Once plugins were asked, what is still open counts as no preference.
        return Proposal(request, decision, replaced, None if answers else suspended, seconds)

    def preview(
        self,
        pod: Pod,
        source: Source,
        replaced: PodAllocation | None = None,
        change: Change | None = None,
    ) -> Decision:
        """Decide as an admission would now, as if no plugin preferred any device.

        With a `change` as a resize or a move would.
        """
        return self._decide(pod, source, self._state.ledger, replaced, _UNASKED, change)[0]

    def replaced(self, pod: Pod) -> PodAllocation | None:
        """Return the one admitted pod that a pod would replace, None if there is not one."""
        others = self._state.namesakes(pod)
        return others[0] if len(others) == 1 else None

    async def informed(self, pod: Pod, source: Source) -> Pod:
        """Return a pod with what is read before it is decided on.

        That are the devices that a kubelet gave to its containers, and where it is to be spread,
        what the nodes could give. Raises `BusyError` if too many readings wait.
        """
        rules, pod = self._state.configured.rules, await self._with_devices(pod, source)
        placement = pod.annotations.get(PLACEMENT) or rules.policy.topology.placement
        if placement != Placement.SPREAD or not rules.static_memory or pod.available:
            return pod
        return replace(pod, available=await self.available())

    async def available(self) -> Availability:
        """Return what the nodes could give now; raises `BusyError`."""
        nodes = [node.id for node in self._state.configured.rules.machine.nodes]
        return await self._steps.observe(self._steps.kernel.available, nodes)

    async def _with_devices(self, pod: Pod, source: Source) -> Pod:
        """Return a pod with the devices that the kubelet beside the agent gave to its containers.

        Only the kubelet's own pods are looked up, and of these only pods that ask for an extended
        resource which the agent does not provide.
        """
        kubelet = self._state.parts.kubelet_devices
        if kubelet is None or source.name != KUBELET:
            return pod
        provided = self._state.configured.rules.policy.devices
        if all(
            name in provided or extended_resource_fault(name) is not None
            for container in pod.all_containers()
            for name in container.resources.limits
        ):
            return pod
        given = await kubelet.of(pod)
        return replace(pod, given_devices=given) if given else pod

    def plugin_time(self) -> PluginTime:
        """Return until when plugins have time for a pod that is decided now."""
        now, parts = asyncio.get_running_loop().time(), self._state.parts
        runtime = None if parts.runtime is None else parts.runtime()
        waits = runtime is not None and runtime.connected
        seconds = PLUGIN_SECONDS_BESIDE_RUNTIME if waits else PLUGIN_SECONDS
        return PluginTime(now + PREFERENCE_SHARE * seconds, now + seconds)

    async def with_preferences(self, proposal: Proposal, time: PluginTime) -> Proposal:
        """Ask plugins what they prefer, and decide again with their answers."""
        if proposal.suspended is None:
            return proposal
        answers = await self._preferences(proposal.suspended, time.preferences)
        return self.propose(proposal.request, self._state.ledger, answers)

    async def with_delivery(self, proposal: Proposal, time: PluginTime) -> Proposal:
        """Have plugins deliver the devices of a pod; one that does not deliver rejects the pod."""
        allocation, providers = proposal.allocation, self._state.parts.providers
        if allocation is None or not allocation.has_devices:
            return proposal
        try:
            delivered = await providers.delivered(allocation, time.delivery)
        except DeliveryError as error:
            return replace(proposal, decision=self._undelivered(proposal.decision, error))
        if providers.prepares(delivered):
            delivered = replace(delivered, unprepared=ASKED)
        return replace(proposal, decision=replace(proposal.decision, allocation=delivered))

    async def _preferences(self, suspended: Suspended | None, latest: float) -> _Answers:
        """Ask plugins what they prefer until the decision has no further question.

        A plugin that has not answered by `latest`, in seconds of the loop, prefers nothing.
        """
        answers: dict[Question, tuple[str, ...]] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout_at(latest):
                while suspended is not None:
                    answers |= await self._state.parts.providers.answers(suspended.questions)
                    suspended = suspended.resume(answers).suspended
        for question in () if suspended is None else suspended.questions:
            answers.setdefault(question, ())
        return MappingProxyType(answers)

    def _undelivered(self, decision: Decision, error: DeliveryError) -> Decision:
        return Decision(
            decision.uid,
            self._state.ledger,
            cause=Rejection(
                Reason.UNEXPECTED,
                f"Allocate failed due to {error.message}, which is unexpected",
                remedy=error.remedy,
                resource=error.resource,
                container=error.container,
                asked=len(error.ids),
            ),
            hints=decision.hints,
            demand=decision.demand,
            pod=decision.pod,
        )

    def _decide(
        self,
        pod: Pod,
        source: Source,
        ledger: Ledger,
        replaced: PodAllocation | None,
        answers: Mapping[Question, tuple[str, ...]],
        change: Change | None,
    ) -> tuple[Decision, Suspended | None]:
        """Return the decision, and its first point that depends on a question without an answer.

        Such a question counts as answered with no preference.
        """
        decision, unanswered = self._begin(pod, source, ledger, replaced, change), None
        while (suspended := decision.suspended) is not None:
            if unanswered is None and not answers.keys() >= {*suspended.questions}:
                unanswered = suspended
            decision = suspended.resume(
                {question: answers.get(question, ()) for question in suspended.questions}
            )
        return lasting(assigned(decision, ledger, source), pod), unanswered

    def _begin(
        self,
        pod: Pod,
        source: Source,
        ledger: Ledger,
        replaced: PodAllocation | None,
        change: Change | None,
    ) -> Decision:
        """Decide on a pod up to the first question for a plugin, in the steps of the module."""
        state = self._state
        # 1. A pod of another source.
        admitted, sources = state.ledger.allocations.get(pod.uid), state.observed.sources
        if admitted and (owner := sources.other_owner(admitted, source)) is not None:
            return belongs_elsewhere(ledger, pod, *owner)
        # 2. A name that another pod has.
        if replaced is None:
            if others := state.namesakes(pod):
                return name_taken(ledger, pod, others)
        elif (owner := sources.owner(replaced)) is not None:
            return belongs_elsewhere(ledger, pod, *owner, uid=replaced.uid)
        else:
            ledger = remove(state.configured.rules, ledger, replaced.uid)
        # 3. and 4. The file that a pod belongs to may state other amounts for it. A request for an
        #    admission may not: it would resize a pod that its sender takes for new. The kubelet's
        #    resizes are answered where it asks for them (`agent.cluster.resizes`).
        of_file = bool(source.key) and source.name != KUBELET
        if change is None and admitted is not None and of_file and is_resize(admitted, pod):
            change = EMPTY
        return decide(state.configured, ledger, pod, change)


def decide(
    configured: ConfiguredHost, ledger: Ledger, pod: Pod, change: Change | None = None
) -> Decision:
    """Decide by the effective policy; a frozen host admits, resizes and moves no pod."""
    if configured.frozen and (change is not None or pod.uid not in ledger.allocations):
        rejection = Rejection(
            Reason.UNEXPECTED,
            f"the configuration does not fit this host: {'; '.join(configured.mismatches)}",
            remedy="correct the configuration and restart the agent; running pods are not affected",
        )
        return Decision(pod.uid, ledger, cause=rejection)
    if isinstance(change, Move):
        return moved(configured.rules, ledger, change)
    if change is not None:
        return resize(configured.rules, ledger, pod, change)
    return admit(configured.rules, ledger, pod)
