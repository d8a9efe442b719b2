"""Admissions: the one path of a pod from the request to the answer.

Pods that wait at the same time are decided one after the other and take effect together: a save of
the checkpoint waits for the disk, and an enforcement that changes the shared pool writes the
cgroups of all classes and sets units of systemd, for one pod as for ten. Pods come in groups: those
of a node that starts, of a job, of a deployment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from agent.api import views
from agent.api.documents import AdmissionDocument
from agent.devices.providers import DELIVERY_SECONDS, DeliveryError
from agent.managers.admission import remove
from agent.managers.allocation import KUBELET, Origin
from agent.managers.cpu.manager import shared_cpus
from agent.managers.decision import Decision, Question, Reason, Rejection
from agent.managers.metrics import TOPOLOGY_ADMISSION_REQUESTS
from agent.managers.rules import charged
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
    from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence

    from agent.api.documents import EnforcementDocument
    from agent.managers.allocation import PodAllocation, Source
    from agent.managers.decision import Suspended
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
#: So long, in seconds, a group is decided on before it takes effect: its first pod, and who wants
#: another change, wait for it.
LONGEST_GROUP: Final = 0.1
#: So often device plugins are asked what they prefer for one pod, whose decision may have changed
#: while they were asked; without an answer there is no preference.
MOST_ASKED: Final = 3

_Result = TypeVar("_Result")


class AdmissionRequest(Struct, eq=False):
    """One pod to admit, what its caller waits for, and the context of the caller's log lines."""

    pod: Pod
    source: Source
    replace_pod: bool
    outcome: asyncio.Future[AdmissionDocument]
    caller: Caller = field(default_factory=caller_now)
    context: Context = field(default_factory=copy_context)
    #: The pod with the devices that the kubelet gave to it, once the kubelet was asked.
    informed: Pod | None = None
    #: What device plugins prefer, as far as they were asked, and how often they were.
    answers: dict[Question, tuple[str, ...]] = field(default_factory=dict)
    asked: int = 0
    #: The decision, once the devices are delivered.
    delivered: _Decided | None = None

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
        #: Those whose devices are asked for, with what is kept for them meanwhile. Only they, and
        #: those that depend on what becomes of them, wait for plugins.
        self._reserved: dict[AdmissionRequest, PodAllocation | None] = {}
        self._depending: list[AdmissionRequest] = []
        self._tasks: set[asyncio.Task[None]] = set()
        steps.queue.at_stop.append(self._stop)
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
        kubelet = self._state.kubelet_devices
        if kubelet is None or not self._is_asked_about(pod, source):
            return pod
        given = await kubelet.of(pod)
        return replace(pod, given_devices=given) if given else pod

    def _is_asked_about(self, pod: Pod, source: Source) -> bool:
        known = self._state.ledger.allocations.get(pod.uid)
        if self._state.kubelet_devices is None or source.name != KUBELET:
            return False
        if known is not None and known.origin is Origin.DECIDED:
            return False
        provided = self._state.configured.rules.policy.devices
        return any(
            name not in provided and extended_resource_fault(name) is None
            for container in pod.all_containers()
            for name in container.resources.limits
        )

    async def preview(
        self, pod: Pod, source: Source, replaced: PodAllocation | None = None
    ) -> Decision:
        """Decide as an admission would now; nothing is delivered, counted or saved."""
        ledger, answers = self._state.ledger, dict[Question, tuple[str, ...]]()
        decision, suspended = self._decision(pod, source, ledger, replaced, answers)
        if suspended is not None:
            await self._ask(suspended, answers)
            decision, _ = self._decision(pod, source, ledger, replaced, answers)
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
        ledger = self._ledger(group)
        for request in self._taken():
            if self._is_alone(request, group):
                await self._take_effect(group)
                group, ledger = [], self._ledger(())
            decided = request.delivered
            if decided is not None:  # `ledger` has what was reserved
                decided = self._as_it_is_now(decided)
            else:
                # 1. Decide, each pod on the ledger that the decision before it leaves.
                if request in self._reserved:
                    self._reserved[request] = None
                    ledger = self._ledger(group)
                decided = await request.run(self._decided(request, ledger, group))
                # The ledger of a rejection may be the one without what is reserved for others.
                if decided is None or decided.decision.allocation is None:
                    ledger = self._ledger(group)
                else:
                    ledger = decided.decision.ledger
            if decided is None:  # it failed, or waits
                continue
            decision = decided.decision
            rejected = decision.allocation is None
            if request.replace_pod or decision.already_admitted or (rejected and not group):
                await request.run(self._take_effect([decided]))
                ledger = self._ledger(group)
                continue
            group.append(decided)
            await asyncio.sleep(0)  # the runtime and other clients are answered meanwhile
        await self._take_effect(group)

    def _ledger(self, group: Iterable[_Decided], *, reserved: bool = True) -> Ledger:
        """Return the ledger with decided pods, and with what is reserved for those that wait."""
        rules, ledger = self._state.configured.rules, self._state.ledger
        requests = set()
        for each in group:
            requests.add(each.request)
            if each.replaced is not None:
                ledger = remove(rules, ledger, each.replaced.uid)
            if each.decision.allocation is not None:
                ledger = charged(rules, ledger, each.decision.allocation)
        for request, allocation in self._reserved.items() if reserved else ():
            if allocation is not None and request not in requests:
                # Beside what the pod, or one whose place it takes, has until it is decided.
                waiting = replace(allocation, uid=f"{allocation.uid} waits")
                ledger = charged(rules, ledger, waiting)
        return ledger

    def _as_it_is_now(self, decided: _Decided) -> _Decided:
        """Return a delivered decision with what has become of the pod that it replaces."""
        if decided.replaced is None:
            return decided
        replaced = self._state.ledger.allocations.get(decided.replaced.uid)
        return replace(decided, replaced=replaced)

    def _is_alone(self, request: AdmissionRequest, group: Sequence[_Decided]) -> bool:
        """Return whether a decision on a pod depends on more than the ledger before it."""
        if request.replace_pod or request.pod.uid in self._state.ledger.allocations:
            return True
        taken = {identity for each in group for identity in _identities(each.pod)}
        return not taken.isdisjoint(_identities(request.pod))

    async def _decided(
        self, request: AdmissionRequest, ledger: Ledger, group: Sequence[_Decided]
    ) -> _Decided | None:
        """Decide on one pod; None if it has to wait. Counts and times the decision.

        `ledger` has the pods of the group, and what is reserved for those that wait.
        """
        others = self._reserved.keys() - {request}
        if any(not _identities(request.pod).isdisjoint(_identities(each.pod)) for each in others):
            self._wait_for_others(request)
            return None
        if request.informed is None and self._is_asked_about(request.pod, request.source):
            self._wait(request, None, self._inform(request))
            return None
        clock, metrics = self._steps.clock, self._steps.metrics
        replaced = self.replaced(request.pod) if request.replace_pod else None
        pod = request.informed or request.pod
        started = clock.monotonic()
        decide = partial(self._decision, pod, request.source)
        decision, suspended = decide(ledger, replaced, request.answers)
        if suspended is not None and request.asked < MOST_ASKED:
            request.asked += 1
            self._wait(request, decision.allocation, self._ask(suspended, request.answers))
            return None
        if decision.allocation is None and others:
            without, _ = decide(self._ledger(group, reserved=False), replaced, request.answers)
            if without.allocation is not None:
                self._wait_for_others(request)
                return None
            decision = without
        seconds = clock.monotonic() - started
        if (TOPOLOGY_ADMISSION_REQUESTS.name, ()) in decision.counters:
            metrics.decision_duration.observe(seconds * 1000)
        metrics.counters.add_all(decision.counters)
        decided = _Decided(request, pod, decision, replaced)
        allocation = decision.allocation
        if allocation is None or decision.already_admitted or not allocation.has_devices:
            return decided
        self._wait(request, allocation, self._deliver(decided, allocation))
        return None

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
        state, ledger = self._state, self._ledger(admitted, reserved=False)
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
        if (known := decision.ledger.allocations[uid]) is not state.ledger.allocations[uid]:
            ledger = charged(state.configured.rules, state.ledger, known)
            await steps.commit(state.durable.with_pod(ledger, uid))
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

    def _decision(
        self,
        pod: Pod,
        source: Source,
        ledger: Ledger,
        replaced: PodAllocation | None,
        answers: Mapping[Question, tuple[str, ...]],
    ) -> tuple[Decision, Suspended | None]:
        """Return the decision, and where it first depends on what a plugin was not asked yet.

        `ledger` is that of the state, perhaps with pods which have neither the uid nor the name of
        this one. Without an answer there is no preference.
        """
        decision, first = self._begun(pod, source, ledger, replaced), None
        while (suspended := decision.suspended) is not None:
            if first is None and not answers.keys() >= {*suspended.questions}:
                first = suspended
            decision = suspended.resume(
                {each: answers.get(each, ()) for each in suspended.questions}
            )
        return lasting(assigned(decision, ledger, source), pod), first

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
            ledger = remove(state.configured.rules, ledger, replaced.uid)
        return decide(state.configured, ledger, pod)

    # --- what is waited for outside of the queue ------------------------------------------------

    async def _inform(self, request: AdmissionRequest) -> None:
        request.informed = await self.with_devices(request.pod, request.source)

    async def _ask(
        self, suspended: Suspended | None, answers: dict[Question, tuple[str, ...]]
    ) -> None:
        """Ask device plugins what they prefer, and what that leads to; add their `answers`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DELIVERY_SECONDS):
                while suspended is not None:
                    answers |= await self._state.providers.answers(suspended.questions)
                    suspended = suspended.resume(answers).suspended

    async def _deliver(self, decided: _Decided, allocation: PodAllocation) -> None:
        """2. Have the devices delivered; if that fails the pod is rejected, nothing is left."""
        decision = decided.decision
        try:
            allocation = await self._state.providers.delivered(allocation)
            decision = replace(decision, allocation=allocation)
        except DeliveryError as error:
            decision = Decision(
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
                asked=decision.asked,
                pod=decision.pod,
            )
        decided.request.delivered = replace(decided, decision=decision)

    def _wait(
        self,
        request: AdmissionRequest,
        allocation: PodAllocation | None,
        work: Coroutine[None, None, None],
    ) -> None:
        """Let a pod wait for plugins, with what is reserved for it; then it is its turn again."""

        async def go_on() -> None:
            await request.run(work)
            self._take_turn(request)

        self._group.remove(request)
        self._reserved[request] = allocation
        task = asyncio.create_task(go_on(), context=request.context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wait_for_others(self, request: AdmissionRequest) -> None:
        """Let a pod wait until others do no longer: it has their name, or no room beside them."""
        self._group.remove(request)
        self._depending.append(request)
        if not self._reserved.keys() - {request}:  # they have their outcome already
            self._take_turns()

    def _ended(self, request: AdmissionRequest) -> None:
        """Free what was reserved for a request that has its outcome."""
        if request in self._reserved:
            del self._reserved[request]
            self._take_turns()

    def _take_turns(self) -> None:
        depending, self._depending = self._depending, []
        for each in reversed(depending):
            each.context.copy().run(self._take_turn, each)

    def _stop(self) -> None:
        waiting = (*self._reserved, *self._depending)
        _fail([each for each in waiting if each not in self._group], QueueStopped())

    def waits(self, uid: str) -> bool:
        """Return whether a pod waits for its devices, or for what becomes of others."""
        return any(each.pod.uid == uid for each in (*self._reserved, *self._depending))

    async def settled(self, uid: str) -> None:
        """Wait until it is known what becomes of a pod that waits for its devices."""
        if waiting := [each.outcome for each in self._reserved if each.pod.uid == uid]:
            settled = pause()
            try:
                await asyncio.wait(waiting)
            finally:
                settled()

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
        decided = pause()
        outcome.add_done_callback(lambda _: decided())
        outcome.add_done_callback(lambda _: self._ended(request))
        self._waiting.append(request)
        self._queue_for(request)
        return await outcome

    def prefer(self, uid: str) -> None:
        """Admit a pod before all others, and with a few others only, once it is asked for."""
        self._preferred = uid
        if any(request.pod.uid == uid for request in self._waiting):
            self._queue_next(ahead=True)

    def _take_turn(self, request: AdmissionRequest) -> None:
        """Have a request go on that waited for plugins or others, before those that came later."""
        if not request.outcome.done():
            self._waiting.insert(0, request)
            self._queue_for(request)

    def _queue_for(self, request: AdmissionRequest) -> None:
        if request.pod.uid == self._preferred:
            self._queue_next(ahead=True)
        elif not self._queued[request.caller]:
            self._queue_next()

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
        clock = self._steps.clock
        latest = clock.monotonic() + LONGEST_GROUP
        for number in range(MOST_AT_ONCE):
            late = number and clock.monotonic() > latest
            if late or (request := self._first()) is None:
                return
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


def _identities(pod: Pod) -> frozenset[str]:
    return frozenset((pod.uid, full_name(pod)))


def _turn(request: AdmissionRequest) -> tuple[bool, str]:
    """Return whose turn a request is of; that of privileged callers comes first."""
    caller = request.caller
    return (False, "") if caller.privileged else (True, caller.name)


def _fail(requests: list[AdmissionRequest], error: BaseException) -> None:
    for request in requests:
        request.fail(error)
    requests.clear()
