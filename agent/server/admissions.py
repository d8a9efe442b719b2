"""Admissions: the one path of a pod from the request to the answer.

Pods that wait at the same time are decided one after the other and take effect together: a save of
the checkpoint waits for the disk, and an enforcement that changes the shared pool writes the
cgroups of all classes and sets units of systemd, for one pod as for ten. Pods come in groups: those
of a node that starts, of a job, of a deployment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from agent.api import views
from agent.api.documents import AdmissionDocument
from agent.devices.providers import DeliveryError
from agent.managers.admission import remove
from agent.managers.allocation import KUBELET, Origin
from agent.managers.cpu.manager import shared_cpus
from agent.managers.decision import Decision, Reason, Rejection
from agent.managers.metrics import TOPOLOGY_ADMISSION_REQUESTS
from agent.pods.model import extended_resource_fault, full_name
from agent.progress import EndedError, moved, pause
from agent.server import metrics as names
from agent.server.conditions import PodRecord
from agent.server.errors import BusyError, CheckpointFailedError
from agent.server.log import allocation_fields, allocation_line
from agent.server.queue import QueueStopped, caller_now, outcome_of
from agent.server.reports import PodDescriber
from agent.server.state import decide
from agent.sources.source import assigned, belongs_elsewhere, lasting, name_taken

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from agent.api.documents import EnforcementDocument
    from agent.managers.allocation import PodAllocation, Source
    from agent.managers.ledger import Ledger
    from agent.pods.model import Pod
    from agent.server.limits import Caller
    from agent.server.reports import RejectionReporter
    from agent.server.steps import Steps

log = structlog.get_logger(__name__)

#: So many pods are decided at most before they are saved and enforced: a pod that comes meanwhile
#: waits for as many.
MOST_AT_ONCE: Final = 32
#: So many at most with a pod whose container waits: what they have written is waited for, too.
MOST_WITH_PREFERRED: Final = 4

_Result = TypeVar("_Result")


class AdmissionRequest(Struct, eq=False):
    """One pod to admit, what its caller waits for, and the context of the caller's log lines."""

    pod: Pod
    source: Source
    replace_pod: bool
    outcome: asyncio.Future[AdmissionDocument]
    caller: Caller = field(default_factory=caller_now)
    context: Context = field(default_factory=copy_context)

    async def run(self, work: Coroutine[None, None, _Result]) -> _Result | None:
        """Return what work on this request returns, in its context; None: the caller gets an error.

        The error is what the work raised.
        """
        result, error = await outcome_of(work, self.context)
        if error is not None:
            self.fail(error)
        moved()
        return result

    async def answer(self, work: Coroutine[None, None, AdmissionDocument]) -> None:
        """Let the caller have what work returns or raises, unless the caller waits no longer."""
        document = await self.run(work)
        if document is not None and not self.outcome.done():
            self.outcome.set_result(document)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the caller, unless that has an outcome or waits no longer."""
        if not self.outcome.done():
            self.outcome.set_exception(error)


class _Decided(Struct, frozen=True):
    """A decision that nothing uses yet."""

    request: AdmissionRequest
    #: The pod of the request with the devices that the kubelet gave to it.
    pod: Pod
    decision: Decision
    #: The admitted pod whose place it takes.
    replaced: PodAllocation | None = None


class Admissions:
    """Decides on pods, and has decisions take effect."""

    def __init__(self, steps: Steps, rejections: RejectionReporter) -> None:
        self._steps = steps
        self._state = steps.state
        self._rejections = rejections
        self._waiting: list[AdmissionRequest] = []
        self._group: list[AdmissionRequest] = []
        #: The uid of the pod that comes first, and how many actions of each caller are queued.
        self._preferred = ""
        self._queued: Counter[Caller] = Counter()

    # --- decisions alone ------------------------------------------------------------------------

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

    async def preview(
        self, pod: Pod, source: Source, replaced: PodAllocation | None = None
    ) -> Decision:
        """Decide as an admission would now; nothing is delivered, counted or saved."""
        decision, _ = await self._decision(pod, source, self._state.ledger, replaced)
        return decision

    def document(
        self,
        decision: Decision,
        allocation: PodAllocation,
        record: PodRecord,
        *,
        dry_run: bool = False,
    ) -> AdmissionDocument:
        """Return the answer to a pod that is, or would be, admitted."""
        # Pods that were decided together with this one may have made the pool smaller.
        ledger = decision.ledger if dry_run else self._state.ledger
        described = PodDescriber.of(self._state, shared_cpus(self._state.configured.rules, ledger))
        return AdmissionDocument(
            uid=allocation.uid,
            name=allocation.name,
            namespace=allocation.namespace,
            admitted=True,
            dry_run=dry_run,
            already_admitted=decision.already_admitted,
            pod=described.document(allocation, None if dry_run else record),
            explanation=record.explanation or views.explanation_document(decision),
        )

    # --- the path of an admission ---------------------------------------------------------------

    async def _admit_waiting(self) -> None:
        """Give each request of a group its outcome, in one action of the queue.

        A pod that is admitted already, replaces another, or has the uid or name of one before it,
        depends on more than the ledger and is a group of its own.
        """
        self._group = []
        group: list[_Decided] = []
        for request in self._taken():
            if self._is_alone(request, group):
                await self._take_effect(group)
                group = []
            # 1. Decide, each pod on the ledger that the decision before it leaves.
            ledger = group[-1].decision.ledger if group else self._state.ledger
            decided = await request.run(self._decided(request, ledger))
            if decided is None:  # it failed
                continue
            decision = decided.decision
            rejected = decision.allocation is None
            if request.replace_pod or decision.already_admitted or (rejected and not group):
                await request.run(self._take_effect([decided]))
                continue
            group.append(decided)
            await asyncio.sleep(0)  # the runtime and other clients are answered meanwhile
        await self._take_effect(group)

    def _is_alone(self, request: AdmissionRequest, group: Sequence[_Decided]) -> bool:
        """Return whether a decision on a pod depends on more than the ledger before it."""
        if request.replace_pod or request.pod.uid in self._state.ledger.allocations:
            return True
        taken = {identity for each in group for identity in _identities(each.pod)}
        return not taken.isdisjoint(_identities(request.pod))

    async def _decided(self, request: AdmissionRequest, ledger: Ledger) -> _Decided:
        """Decide on one pod and have its devices delivered; counts and times the decision."""
        metrics = self._steps.metrics
        replaced = self.replaced(request.pod) if request.replace_pod else None
        pod = await self.with_devices(request.pod, request.source)
        decision, seconds = await self._decision(pod, request.source, ledger, replaced)
        if (TOPOLOGY_ADMISSION_REQUESTS.name, ()) in decision.counters:
            metrics.decision_duration.observe(seconds * 1000)
        metrics.counters.add_all(decision.counters)
        # 2. Deliver: a provider that fails rejects the pod, and nothing is left of it.
        return _Decided(request, pod, await self._delivered(decision, ledger), replaced)

    async def _take_effect(self, group: Sequence[_Decided]) -> None:
        """Save what was decided, have the kernel enforce it, and answer.

        If the kernel rejects a setting after the save, the pod stays admitted and is reported as
        not enforced, since its CPUs may already be in use.
        """
        if group and group[0].decision.already_admitted:
            [known] = group
            await known.request.answer(self._repeat(known.decision))
            return
        steps, state = self._steps, self._state
        admitted = [each for each in group if each.decision.allocation is not None]
        # 3. Save. What is raised is for those that were rejected, too: without the others there may
        #    be room for them.
        if admitted:
            await self._save(admitted)
        for each in group:
            if each.decision.allocation is None:
                await each.request.answer(self._reject(each))
        if not admitted:
            return
        # 4. Enforce. A replaced pod is first confined to the pool of a ledger with neither pod; the
        #    kernel gives nothing before it has taken the same from others.
        removal = None
        for each in admitted:
            if each.replaced is not None:
                neither = remove(state.configured.rules, state.ledger, each.pod.uid)
                target = state.desired_of(neither)
                removal = await steps.end_pod(each.replaced, target, each.pod.uid)
        await steps.enforce_pods(*(each.pod.uid for each in admitted))
        for each in admitted:
            allocation = state.ledger.allocations[each.pod.uid]
            write = partial(steps.worker.run, state.cdi_files.write, allocation)
            await steps.after_save(write, each.pod.uid)
        # 5. What was read back is in the records now: report, and answer with it.
        for each in admitted:
            await each.request.answer(self._answer(each, removal))

    async def _save(self, admitted: Sequence[_Decided]) -> None:
        """Save decisions, then use them; raises `CheckpointFailedError`."""
        state, ledger = self._state, admitted[-1].decision.ledger
        records = {
            each.pod.uid: PodRecord(views.explanation_document(each.decision)) for each in admitted
        }
        durable = state.durable
        for each in admitted:
            if each.replaced is not None:
                durable = durable.without_pod(ledger, each.replaced.uid)
            durable = durable.with_pod(ledger, each.pod.uid)
        try:
            await self._steps.commit(durable)
        except CheckpointFailedError:
            counters = self._steps.metrics.counters
            counters.add(names.ADMISSIONS, "failed", by=len(admitted))
            raise
        state.records.pods.update(records)
        for uid in records:
            state.displaced.pop(uid, None)

    async def _reject(self, decided: _Decided) -> AdmissionDocument:
        return self._rejections.rejected(decided.pod, decided.decision, decided.request.source)

    async def _answer(
        self, decided: _Decided, removal: EnforcementDocument | None
    ) -> AdmissionDocument:
        """Report an admitted pod; return the answer."""
        uid, state = decided.pod.uid, self._state
        await self._steps.after_save(partial(self._report, decided), uid)
        allocation, record = state.ledger.allocations[uid], state.records.of(uid)
        answer = self.document(decided.decision, allocation, record)
        return views.replacing_answer(answer, decided.replaced, removal)

    def _report(self, decided: _Decided) -> None:
        uid, source = decided.pod.uid, str(decided.request.source)
        allocation = self._state.ledger.allocations[uid]
        self._rejections.admitted(allocation)
        self._steps.metrics.counters.add(names.ADMISSIONS, "admitted")
        fields = allocation_fields(allocation, self._state.shared_cpus)
        enforced = not self._state.records.of(uid).unenforced
        log.info("pod admitted", enforced=enforced, source=source, **fields)
        self._steps.publish(
            "PodAdmitted",
            uid,
            full_name(allocation),
            allocation_line(allocation),
            given=decided.pod.given_devices,
        )

    async def _repeat(self, decision: Decision) -> AdmissionDocument:
        """Answer for a pod that is admitted already, and enforce what it lacks.

        A recovered or imported allocation is confirmed by the specification that fits it.
        """
        steps, state, uid = self._steps, self._state, decision.uid
        confirmed = state.ledger.allocations[uid].origin is not Origin.DECIDED
        if decision.ledger is not state.ledger:
            await steps.commit(state.durable.with_pod(decision.ledger, uid))
        if state.records.of(uid).unenforced or confirmed:
            await steps.enforce_pods(uid)
        allocation, record = state.ledger.allocations[uid], state.records.of(uid)
        if confirmed:
            state.displaced.pop(uid, None)
            fields = allocation_fields(allocation, state.shared_cpus)
            enforced, source = not record.unenforced, str(allocation.source)

            def matched() -> None:
                log.info("pod matched", enforced=enforced, source=source, **fields)

            await steps.after_save(matched, uid)
        count = partial(steps.metrics.counters.add, names.ADMISSIONS, "repeated")
        await steps.after_save(count, uid)
        return self.document(decision, allocation, record)

    # --- deciding -------------------------------------------------------------------------------

    async def _decision(
        self, pod: Pod, source: Source, ledger: Ledger, replaced: PodAllocation | None
    ) -> tuple[Decision, float]:
        """Return the decision, and how long the agent itself worked on it, in seconds.

        `ledger` is that of the state, perhaps with pods which have neither the uid nor the name of
        this one. A decision that depends on what a device plugin prefers is suspended, and goes on
        with the plugin's answer.
        """
        clock = self._steps.clock
        started = clock.monotonic()
        decision = self._begun(pod, source, ledger, replaced)
        seconds = clock.monotonic() - started
        while decision.suspended is not None:
            suspended = decision.suspended
            answers = await self._state.providers.answers(suspended.questions)
            started = clock.monotonic()
            decision = suspended.resume(answers)
            seconds += clock.monotonic() - started
        return lasting(assigned(decision, ledger, source), pod), seconds

    def _begun(
        self, pod: Pod, source: Source, ledger: Ledger, replaced: PodAllocation | None
    ) -> Decision:
        """Reject a pod that another source or pod stands against, decide on any other."""
        state = self._state
        if (owner := state.other_owner(pod.uid, source)) is not None:
            return belongs_elsewhere(ledger, pod, *owner)
        if replaced is None:
            if others := state.namesakes(pod):
                return name_taken(ledger, pod, others)
        elif (owner := state.asked_for_by(replaced.uid)) is not None:
            return belongs_elsewhere(ledger, pod, *owner, uid=replaced.uid)
        else:
            ledger = remove(state.configured.rules, state.ledger, replaced.uid)
        return decide(state.configured, ledger, pod)

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

    # --- whose turn it is -----------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of requests whose decision has not begun."""
        return len(self._waiting)

    async def admit(self, pod: Pod, source: Source, *, replace_pod: bool) -> AdmissionDocument:
        """Admit a pod with those that wait already; raises `QueueStopped` and what fails.

        A caller that is cancelled before the decision begins no longer asks for it.
        """
        outcome: asyncio.Future[AdmissionDocument] = asyncio.get_running_loop().create_future()
        request = AdmissionRequest(pod, source, replace_pod, outcome)
        self._waiting.append(request)
        decided = pause()
        outcome.add_done_callback(lambda _: decided())
        if pod.uid == self._preferred:
            self._queue_next(ahead=True)
        elif not self._queued[request.caller]:
            self._queue_next()
        return await outcome

    def prefer(self, uid: str) -> None:
        """Admit a pod before all others, and with a few others only, once it is asked for."""
        self._preferred = uid
        if any(request.pod.uid == uid for request in self._waiting):
            self._queue_next(ahead=True)

    def _queue_next(self, *, ahead: bool = False) -> None:
        """Queue an action of the present caller for the requests that wait."""
        caller = caller_now()
        try:
            queued = self._steps.queue.put(self._admit_waiting, ahead=ahead)
        except QueueStopped as error:
            _fail(self._waiting, error)
        except BusyError as error:
            _fail([each for each in self._waiting if each.caller == caller], error)
        else:
            self._queued[caller] += 1
            queued.add_done_callback(partial(self._done, caller))

    def _taken(self) -> Iterator[AdmissionRequest]:
        """Yield the requests of one group, each once the one before it is decided.

        Callers take turns, all privileged ones together and before the others.
        """
        while len(self._group) < MOST_AT_ONCE and (request := self._first()) is not None:
            self._waiting.remove(request)
            self._group.append(request)
            yield request
            preferred = any(each.pod.uid == self._preferred for each in self._group)
            if preferred and len(self._group) >= MOST_WITH_PREFERRED:
                return

    def _first(self) -> AdmissionRequest | None:
        """Return the request whose turn it is; those whose callers are gone are dropped."""
        self._waiting = [each for each in self._waiting if not each.outcome.done()]
        taken = Counter(_turn(each) for each in self._group)
        return min(
            self._waiting,
            key=lambda each: (each.pod.uid != self._preferred, taken[_turn(each)], _turn(each)[0]),
            default=None,
        )

    def _done(self, caller: Caller, queued: asyncio.Future[None]) -> None:
        """Pass on what the action raised, or that the queue stopped before it began."""
        self._queued[caller] -= 1
        error = EndedError() if queued.cancelled() else queued.exception()
        if isinstance(error, QueueStopped):
            _fail(self._waiting, error)
        else:  # a caller without an outcome would wait for ever
            _fail(self._group, error or EndedError())
        if not self._queued[caller] and any(each.caller == caller for each in self._waiting):
            self._queue_next()


def _identities(pod: Pod) -> tuple[str, str]:
    return pod.uid, full_name(pod)


def _turn(request: AdmissionRequest) -> tuple[bool, str]:
    """Return whose turn a request is of; that of privileged callers comes first."""
    caller = request.caller
    return (False, "") if caller.privileged else (True, caller.name)


def _fail(requests: list[AdmissionRequest], error: BaseException) -> None:
    for request in requests:
        request.fail(error)
    requests.clear()
