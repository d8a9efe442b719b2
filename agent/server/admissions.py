"""Admissions: the one path of a pod from the request to the answer.

A request waits in the line of all changes (`agent.server.queue`). In its turn it

1. is decided on the ledger of the state; what plugins prefer is asked first where that counts;
2. has its devices delivered, within `PLUGIN_SECONDS`; the line stands still meanwhile;
3. is saved, and only then does the state get the new ledger;
4. is enforced by the kernel;
5. is read back;
6. is reported and answered.

Only the line changes the ledger and the rules. So what was decided on holds until the turn ends,
whatever the turn waits for: a cordon, a host that changed, devices that went, come after it.

The requests directly behind it, up to the first that needs a plugin or more than the ledger, are
decided in the same turn, each on the ledger that the one before it leaves, and are saved and
enforced together: a save waits for the disk, and an enforcement that changes the shared pool writes
the cgroups of all classes, as much for one pod as for ten. Pods come in groups: those of a node
that starts, of a job, of a deployment.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.api import views
from agent.api.documents import AdmissionDocument
from agent.devices.providers import (
    PLUGIN_SECONDS,
    PLUGIN_SECONDS_BESIDE_RUNTIME,
    DeliveryError,
)
from agent.managers.admission import admit, remove
from agent.managers.allocation import KUBELET, Origin
from agent.managers.cpu.manager import shared_cpus
from agent.managers.decision import Decision, Question, Reason, Rejection
from agent.managers.metrics import TOPOLOGY_ADMISSION_REQUESTS
from agent.managers.rules import charged
from agent.pods.model import extended_resource_fault, full_name
from agent.progress import EndedError, moved
from agent.server import metrics as names
from agent.server.errors import CheckpointFailedError, PodRemovedError
from agent.server.log import allocation_fields, allocation_line
from agent.server.pod_records import PodRecord
from agent.server.preparations import ASKED, Preparations
from agent.server.queue import Job, outcome_of
from agent.server.reports import PodDescriber
from agent.sources.source import assigned, belongs_elsewhere, lasting, name_taken
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from agent.api.documents import EnforcementDocument
    from agent.managers.allocation import PodAllocation, Source
    from agent.managers.decision import Suspended
    from agent.managers.ledger import Ledger
    from agent.pods.model import Pod
    from agent.server.configured import ConfiguredHost
    from agent.server.reports import RejectionReporter
    from agent.server.steps import Steps

log = structlog.get_logger(__name__)

#: The most pods that are decided before they are saved and enforced together: a pod that comes
#: meanwhile waits for all of them.
MOST_AT_ONCE: Final = 32
#: The longest time in which a group is decided, in seconds: its first pod, and every other change,
#: wait for the end of it.
LONGEST_GROUP: Final = 0.1
#: The share of the time that plugins have for a pod in which they may say what they prefer.
PREFERENCE_SHARE: Final = 0.4

_Answers = MappingProxyType[Question, tuple[str, ...]]
_UNASKED: Final[_Answers] = MappingProxyType({})


class Admission(Job[AdmissionDocument], eq=False, kw_only=True):
    """One pod to admit, which waits in the line."""

    #: The pod, with the devices that the kubelet gave to it.
    pod: Pod
    source: Source
    replace_pod: bool

    async def answer(self, work: Coroutine[None, None, AdmissionDocument]) -> None:
        """Let the caller have what work returns or raises, in the caller's context."""
        self.settle(*await outcome_of(work, self.context))
        moved()


class _Decided(Struct, frozen=True):
    """A decision that nothing uses yet."""

    request: Admission
    decision: Decision
    #: The admitted pod whose place it takes.
    replaced: PodAllocation | None = None
    #: The first point at which a preference counts that no plugin was asked for yet.
    suspended: Suspended | None = None
    #: How long it took, in seconds.
    seconds: float = 0.0

    @property
    def pod(self) -> Pod:
        return self.request.pod

    @property
    def needs_plugins(self) -> bool:
        """Whether plugins are to be asked, or to deliver."""
        if self.suspended is not None:
            return True
        allocation = self.decision.allocation
        fresh = allocation is not None and not self.decision.already_admitted
        return fresh and allocation.has_devices  # type: ignore[union-attr]  # fresh


class Admissions:
    """Decides on pods, and has decisions take effect."""

    def __init__(self, steps: Steps, rejections: RejectionReporter) -> None:
        self._steps = steps
        self._state = steps.state
        self._rejections = rejections
        self._preparations = Preparations(steps)

    async def admit(self, pod: Pod, source: Source, *, replace_pod: bool) -> AdmissionDocument:
        """Admit a pod in its turn; raises `QueueStopped`, `BusyError` and what fails.

        A caller that is cancelled before the turn begins no longer asks for it. What a kubelet gave
        to the pod is asked before the pod enters the line.
        """
        informed = await self.with_devices(pod, source)
        outcome: asyncio.Future[AdmissionDocument] = asyncio.get_running_loop().create_future()

        async def turn() -> None:
            await self._turn(request)

        request = Admission(
            action=turn,  # type: ignore[arg-type]  # settles the outcome itself
            outcome=outcome,
            pod=informed,
            source=source,
            replace_pod=replace_pod,
        )
        return await self._steps.queue.add(request)

    async def _turn(self, first: Admission) -> None:
        """Give a request its outcome, and those behind it that are decided with it."""
        group: list[_Decided] = []
        try:
            decided = self._decide(first, self._state.ledger)
            self._count(decided)
            rejected = decided.decision.allocation is None
            alone = decided.needs_plugins or rejected or self._is_alone(first, group)
            if decided.needs_plugins:
                decided = await self._with_plugins(decided)
            group.append(decided)
            if not alone:
                await self._add_following(group)
            await self._take_effect(group)
        except BaseException as error:
            # The queue gives the first one its error; without one the others would wait for ever.
            # Who has an outcome keeps it.
            cancelled = isinstance(error, asyncio.CancelledError)
            for each in group:
                each.request.settle(error=EndedError() if cancelled else error)
            raise
        finally:
            for each in group:
                each.request.settle(error=EndedError())

    async def _add_following(self, group: list[_Decided]) -> None:
        """1. Decide on those behind a pod, each on the ledger that the one before it leaves.

        The first that depends on more, or needs a plugin, is left to a turn of its own.
        """
        clock, queue = self._steps.clock, self._steps.queue
        latest = clock.monotonic() + LONGEST_GROUP
        ledger = group[0].decision.ledger
        while len(group) < MOST_AT_ONCE and clock.monotonic() <= latest:
            await clock.sleep(0)  # the runtime and other clients are answered meanwhile
            request = queue.following(group[0].request)
            if not isinstance(request, Admission) or self._is_alone(request, group):
                return
            try:
                decided = request.context.copy().run(self._decide, request, ledger)
            except Exception as error:  # noqa: BLE001  # the caller's
                queue.take(request)
                request.settle(error=error)
                continue
            if decided.needs_plugins:
                return
            queue.take(request)
            request.context.copy().run(self._count, decided)
            group.append(decided)
            if decided.decision.allocation is not None:
                ledger = decided.decision.ledger
            moved()

    def _is_alone(self, request: Admission, group: Sequence[_Decided]) -> bool:
        """Return whether a decision on a pod depends on more than the ledger before it.

        It does for a pod that replaces another or is admitted already, and for one that has the uid
        or the name of a pod of the group.
        """
        if request.replace_pod or request.pod.uid in self._state.ledger.allocations:
            return True
        taken = {identity for each in group for identity in _identities(each.pod)}
        return not taken.isdisjoint(_identities(request.pod))

    def _decide(self, request: Admission, ledger: Ledger, answers: _Answers = _UNASKED) -> _Decided:
        """1. Decide on a pod, on a ledger with all that was decided before it."""
        clock, pod = self._steps.clock, request.pod
        replaced = self.replaced(pod) if request.replace_pod else None
        started = clock.monotonic()
        decision, suspended = self._decision(pod, request.source, ledger, replaced, answers)
        seconds = clock.monotonic() - started
        return _Decided(request, decision, replaced, None if answers else suspended, seconds)

    def _count(self, decided: _Decided) -> None:
        metrics, decision = self._steps.metrics, decided.decision
        if decided.suspended is not None:
            return
        if (TOPOLOGY_ADMISSION_REQUESTS.name, ()) in decision.counters:
            metrics.decision_duration.observe(decided.seconds * 1000)
        metrics.counters.add_all(decision.counters)

    async def _with_plugins(self, decided: _Decided) -> _Decided:
        """1. Ask what plugins prefer and decide again; 2. have the devices delivered.

        If a plugin does not deliver, the pod is rejected and nothing is left.
        """
        state, began = self._state, asyncio.get_running_loop().time()
        runtime = None if state.parts.runtime is None else state.parts.runtime()
        waits = runtime is not None and runtime.connected
        seconds = PLUGIN_SECONDS_BESIDE_RUNTIME if waits else PLUGIN_SECONDS
        if decided.suspended is not None:
            latest = began + PREFERENCE_SHARE * seconds
            answers = await self._preferred(decided.suspended, latest)
            decided = self._decide(decided.request, state.ledger, answers)
            self._count(decided)
        allocation = decided.decision.allocation
        if allocation is None or not allocation.has_devices:
            return decided
        try:
            delivered = await state.parts.providers.delivered(allocation, began + seconds)
        except DeliveryError as error:
            return replace(decided, decision=self._undelivered(decided.decision, error))
        if state.parts.providers.prepares(delivered):
            delivered = replace(delivered, unprepared=ASKED)
        return replace(decided, decision=replace(decided.decision, allocation=delivered))

    async def _preferred(self, suspended: Suspended | None, latest: float) -> _Answers:
        """Ask device plugins what they prefer, and what that leads to; return their answers."""
        answers: dict[Question, tuple[str, ...]] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout_at(latest):
                while suspended is not None:
                    answers |= await self._state.parts.providers.answers(suspended.questions)
                    suspended = suspended.resume(answers).suspended
        for each in () if suspended is None else suspended.questions:
            answers.setdefault(each, ())
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
            asked=decision.asked,
            pod=decision.pod,
        )

    async def _take_effect(self, group: Sequence[_Decided]) -> None:
        """Save what was decided, have the kernel enforce it, and answer.

        If the kernel rejects a setting after the save, the pod stays admitted and is reported as
        not enforced, since its CPUs may already be in use.
        """
        if group[0].decision.already_admitted:
            [known] = group
            await known.request.answer(self._repeat(known.decision))
            return
        steps, state = self._steps, self._state
        admitted = [decided for decided in group if decided.decision.allocation is not None]
        # 3. Save. If that fails, it fails for those that were rejected as well: without the others
        #    there may be room for them.
        if admitted:
            await self._save(admitted)
        for decided in group:
            if decided.decision.allocation is None:
                await decided.request.answer(self._reject(decided))
        if not admitted:
            return
        # 4. Enforce. A replaced pod is first confined to the pool that there is with neither pod:
        #    nothing is given before it was taken from others. It is the only pod of its group.
        removal = None
        for decided in admitted:
            if decided.replaced is not None:
                neither = remove(state.configured.rules, state.ledger, decided.pod.uid)
                target = state.desired_of(neither)
                removal = await steps.end_pod(decided.replaced, target, decided.pod.uid)
        await steps.enforce_pods(*(decided.pod.uid for decided in admitted))
        for decided in admitted:
            allocation = state.ledger.allocations[decided.pod.uid]
            write = partial(steps.worker.run, state.parts.cdi_files.write, allocation)
            await steps.after_save(write, decided.pod.uid)
        # 5. What was read back is in the records now. 6. Report, and answer with it.
        for decided in admitted:
            self._prepare(decided.pod.uid, delivered=True)
            await decided.request.answer(self._answer(decided, removal))

    async def _save(self, admitted: Sequence[_Decided]) -> None:
        """Save decisions, then use them; raises `CheckpointFailedError`."""
        state, ledger = self._state, self._state.ledger
        rules = state.configured.rules
        for decided in admitted:
            if decided.replaced is not None:
                ledger = remove(rules, ledger, decided.replaced.uid)
            if decided.decision.allocation is not None:
                ledger = charged(rules, ledger, decided.decision.allocation)
        _check_unique(ledger, {decided.pod.uid for decided in admitted})
        records = {
            decided.pod.uid: PodRecord(views.explanation_document(decided.decision))
            for decided in admitted
        }
        durable = state.durable
        for decided in admitted:
            if decided.replaced is not None:
                durable = durable.without_pod(ledger, decided.replaced.uid)
            durable = durable.with_pod(ledger, decided.pod.uid)
        try:
            await self._steps.commit(durable)
        except CheckpointFailedError:
            counters = self._steps.metrics.counters
            counters.add(names.ADMISSIONS, "failed", by=len(admitted))
            raise
        state.observed.records.pods.update(records)
        for uid in records:
            state.observed.displaced.pop(uid, None)

    async def _reject(self, decided: _Decided) -> AdmissionDocument:
        return self._rejections.rejected(decided.pod, decided.decision, decided.request.source)

    async def _answer(
        self, decided: _Decided, removal: EnforcementDocument | None
    ) -> AdmissionDocument:
        """Report an admitted pod; return the answer."""
        uid, state = decided.pod.uid, self._state
        await self._steps.after_save(partial(self._report, decided), uid)
        allocation, record = state.ledger.allocations[uid], state.observed.records.of(uid)
        answer = self.document(decided.decision, allocation, record)
        return views.replacing_answer(answer, decided.replaced, removal)

    def _report(self, decided: _Decided) -> None:
        uid, source = decided.pod.uid, str(decided.request.source)
        allocation = self._state.ledger.allocations[uid]
        self._rejections.admitted(allocation)
        self._steps.metrics.counters.add(names.ADMISSIONS, "admitted")
        fields = allocation_fields(allocation, self._state.shared_cpus)
        enforced = not self._state.observed.records.of(uid).unenforced
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
        if state.observed.records.of(uid).unenforced or confirmed:
            await steps.enforce_pods(uid)
        allocation, record = state.ledger.allocations[uid], state.observed.records.of(uid)
        if confirmed:
            state.observed.displaced.pop(uid, None)
            fields = allocation_fields(allocation, state.shared_cpus)
            enforced, source = not record.unenforced, str(allocation.source)

            def matched() -> None:
                log.info("pod matched", enforced=enforced, source=source, **fields)

            await steps.after_save(matched, uid)
        self._prepare(uid)
        count = partial(steps.metrics.counters.add, names.ADMISSIONS, "repeated")
        await steps.after_save(count, uid)
        return self.document(decision, allocation, record)

    def _prepare(self, uid: str, *, delivered: bool = False) -> None:
        allocation = self._state.ledger.allocations.get(uid)
        if allocation is not None and allocation.unprepared:
            self._preparations.begin(allocation, delivered=delivered)

    async def prepared(self, answer: AdmissionDocument) -> AdmissionDocument:
        """Return an answer once the devices of its pod are prepared, or it is known why not.

        Raises `PodRemovedError` where the pod was removed while this waited.
        """
        state = self._state
        allocation = state.ledger.allocations.get(answer.uid)
        if not answer.admitted or (allocation is not None and not allocation.unprepared):
            return answer
        if not await self._preparations.end(answer.uid):
            return answer
        if (allocation := state.ledger.allocations.get(answer.uid)) is None:
            raise PodRemovedError(f"{answer.namespace}/{answer.name}")
        record = state.observed.records.of(answer.uid)
        return replace(answer, pod=PodDescriber.of(state).document(allocation, record))

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
        """Reject a pod whose uid or name another source or pod has, decide on any other."""
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

    def replaced(self, pod: Pod) -> PodAllocation | None:
        """Return the one admitted pod that a pod would replace, None if there is not one."""
        others = self._state.namesakes(pod)
        return others[0] if len(others) == 1 else None

    async def with_devices(self, pod: Pod, source: Source) -> Pod:
        """Return a pod with the devices that the kubelet beside the agent gave to its containers.

        The kubelet is asked only about its own pods, of these about those that ask for a resource
        which the agent does not provide.
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

    def preview(self, pod: Pod, source: Source, replaced: PodAllocation | None = None) -> Decision:
        """Decide as an admission would now, but ask no plugin what it prefers.

        Nothing is delivered, counted or saved.
        """
        return self._decision(pod, source, self._state.ledger, replaced, _UNASKED)[0]

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


def _identities(pod: Pod) -> frozenset[str]:
    return frozenset((pod.uid, full_name(pod)))


class _DoubleAllocationError(Exception):
    """A decision gives a pod CPUs or devices that another one has: a defect of the agent."""


def _check_unique(ledger: Ledger, new: set[str]) -> None:
    """Raise `_DoubleAllocationError` if new pods have CPUs or devices of others, or each other's.

    No decision does that. It is looked at before each save all the same: nothing would be worse.
    """
    pods = ledger.allocations.values()
    added = [pod for pod in pods if pod.uid in new]
    others = [pod for pod in pods if pod.uid not in new]
    cpus, devices = Mask.union(pod.exclusive_cpus for pod in others), set[tuple[str, str]]()
    if any(pod.has_devices for pod in added):
        devices = devices.union(*map(_devices_of, others))
    for pod in added:
        own = _devices_of(pod)
        if cpus & pod.exclusive_cpus or devices & own:
            twice = ", ".join([str(cpus & pod.exclusive_cpus), *map(str, devices & own)])
            raise _DoubleAllocationError(f"{full_name(pod)} would get what others have: {twice}")
        cpus |= pod.exclusive_cpus
        devices |= own


def _devices_of(pod: PodAllocation) -> set[tuple[str, str]]:
    return {
        (resource, device)
        for container in pod.containers
        for resource, ids in container.devices.items()
        for device in ids
    }


def decide(configured: ConfiguredHost, ledger: Ledger, pod: Pod) -> Decision:
    """Decide by the effective policy; a frozen host admits no new pod."""
    if configured.frozen and pod.uid not in ledger.allocations:
        rejection = Rejection(
            Reason.UNEXPECTED,
            f"the configuration does not fit this host: {'; '.join(configured.mismatches)}",
            remedy="correct the configuration and restart the agent; running pods are not affected",
        )
        return Decision(pod.uid, ledger, cause=rejection)
    return admit(configured.rules, ledger, pod)
