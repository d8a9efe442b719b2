"""Admits pods: decides one after the other, saves them together, then has the kernel enforce them.

Each decision is made on the ledger that the decisions before it leave. Until that ledger is saved
nothing else uses it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from agent.api import views
from agent.api.documents import AdmissionDocument
from agent.managers import admission
from agent.managers.allocations.origin import Origin
from agent.managers.cpu.parts import shared_cpus
from agent.pods.identity import full_name
from agent.server.errors import CheckpointFailedError
from agent.server.metrics import names
from agent.server.reporting.log.allocation_log import allocation_fields, allocation_line
from agent.server.reporting.pods import PodDescriber
from agent.server.reporting.records import PodRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    from agent.api.documents import EnforcementDocument
    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.decision import Decision
    from agent.pods.model import Pod
    from agent.reconcile.desired.state import Desired
    from agent.server.control.change_steps import ChangeSteps
    from agent.server.control.decisions import Decisions
    from agent.server.control.grouped import AdmissionRequest
    from agent.server.metrics.exposition import Metrics
    from agent.server.reporting.rejections import RejectionReporter
    from agent.server.state import DurableState

    #: Ends an allocation that is no longer saved, enforces what is desired meanwhile, and returns
    #: what becomes of the pod's cgroups; the last is the uid of the pod in its place.
    Ending: TypeAlias = Callable[[PodAllocation, Desired, str], Awaitable[EnforcementDocument]]


log = structlog.get_logger(__name__)


class _Decided(Struct, frozen=True):
    """A decision on a pod that nothing uses yet; `pod` has the devices that the kubelet gave it."""

    request: AdmissionRequest
    pod: Pod
    decision: Decision


class Admitting:
    """Admits pods within a queued action of the controller; `end` ends a pod that was replaced."""

    def __init__(
        self,
        steps: ChangeSteps,
        decisions: Decisions,
        rejections: RejectionReporter,
        metrics: Metrics,
        end: Ending,
    ) -> None:
        self._steps = steps
        self._state = steps.state
        self._decisions = decisions
        self._rejections = rejections
        self._metrics = metrics
        self._end = end

    async def admit_all(self, requests: Iterator[AdmissionRequest]) -> None:
        """Give each request its outcome.

        New pods are saved and enforced together. A pod that is admitted already, replaces another,
        or has the uid or name of one before it, is on its own.
        """
        group: list[_Decided] = []
        ledger = self._state.ledger
        for request in requests:
            if self._is_alone(request, group):
                await self._commit_group(group, ledger)
                group = []
                await request.answer(self._admit(request))
                ledger = self._state.ledger
                continue
            decided = await request.run(self._decided(request, ledger))
            if decided is None:  # it failed
                continue
            if decided.decision.allocation is None and not group:
                await self._reject(decided)
                continue
            group.append(decided)
            ledger = decided.decision.ledger
            await asyncio.sleep(0)  # the runtime and other clients are answered meanwhile
        await self._commit_group(group, ledger)

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

    # --- several pods ---------------------------------------------------------------------------

    def _is_alone(self, request: AdmissionRequest, group: Iterable[_Decided]) -> bool:
        """Return whether a decision on a pod depends on more than the ledger before it."""
        if request.replace_pod or request.pod.uid in self._state.ledger.allocations:
            return True
        taken = {identity for each in group for identity in _identities(each.pod)}
        return not taken.isdisjoint(_identities(request.pod))

    async def _decided(
        self, request: AdmissionRequest, ledger: Ledger, replaced: PodAllocation | None = None
    ) -> _Decided:
        pod = await self._decisions.with_devices(request.pod, request.source)
        decision = await self._decisions.decide(pod, request.source, ledger, replaced)
        return _Decided(request, pod, decision)

    async def _reject(self, decided: _Decided) -> None:
        async def reported() -> AdmissionDocument:
            return self._rejections.rejected(decided.pod, decided.decision, decided.request.source)

        await decided.request.answer(reported())

    async def _commit_group(self, group: Sequence[_Decided], ledger: Ledger) -> None:
        """Save the ledger that the decisions of a group leave, then enforce and answer."""
        allocated = [each for each in group if each.decision.allocation is not None]
        durable = self._state.durable
        for each in allocated:
            durable = durable.with_pod(ledger, each.pod.uid)
        if allocated:
            # What is raised is for those that were rejected, too: without the others there may be
            # room for them.
            await self._commit(durable, [each.decision for each in allocated])
        for each in group:
            if each.decision.allocation is None:
                await self._reject(each)
        if allocated:
            await self._enforce([each.decision for each in allocated])
        for each in allocated:
            await each.request.answer(self._admitted(each))

    # --- one pod --------------------------------------------------------------------------------

    async def _admit(self, request: AdmissionRequest) -> AdmissionDocument:
        replaced = self._decisions.replaced(request.pod) if request.replace_pod else None
        decided = await self._decided(request, self._state.ledger, replaced)
        pod, decision = decided.pod, decided.decision
        if decision.allocation is None:
            return self._rejections.rejected(pod, decision, request.source)
        if decision.already_admitted:
            return await self._repeat(decision, decision.allocation)
        durable = self._state.durable
        if replaced is not None:
            durable = durable.without_pod(decision.ledger, replaced.uid)
        await self._commit(durable.with_pod(decision.ledger, pod.uid), [decision])
        removal = None
        if replaced is not None:
            # Confined to the pool of a ledger with neither pod, before the new one is given CPUs.
            neither = admission.remove(self._state.configured.rules, decision.ledger, pod.uid)
            removal = await self._end(replaced, self._state.desired_of(neither), pod.uid)
        await self._enforce([decision])
        answer = await self._admitted(decided)
        return views.replacing_answer(answer, replaced, removal)

    async def _repeat(self, decision: Decision, allocation: PodAllocation) -> AdmissionDocument:
        state = self._state
        durable = state.durable
        confirmed = durable.ledger.allocations[allocation.uid].origin is not Origin.DECIDED
        if decision.ledger is not durable.ledger:
            await self._steps.commit(durable.with_pod(decision.ledger, allocation.uid))
        record = state.records.of(allocation.uid)
        if record.unenforced or confirmed:
            await self._steps.enforce_pods(allocation.uid)
            record = state.records.of(allocation.uid)
        if confirmed:
            state.displaced.pop(allocation.uid, None)
            fields = allocation_fields(allocation, state.shared_cpus)
            enforced, source = not record.unenforced, str(allocation.source)

            def matched() -> None:
                log.info("pod matched", enforced=enforced, source=source, **fields)

            await self._steps.after_save(matched, allocation.uid)
        count = partial(self._metrics.counters.add, names.ADMISSIONS, "repeated")
        await self._steps.after_save(count, allocation.uid)
        return self.document(decision, allocation, record)

    # --- steps ----------------------------------------------------------------------------------

    async def _commit(self, durable: DurableState, decisions: Sequence[Decision]) -> None:
        """Save decisions, then use them; raises `CheckpointFailedError`."""
        records = {each.uid: PodRecord(views.explanation_document(each)) for each in decisions}
        try:
            await self._steps.commit(durable)
        except CheckpointFailedError:
            self._metrics.counters.add(names.ADMISSIONS, "failed", by=len(decisions))
            raise
        state = self._state
        state.records.pods.update(records)
        for uid in records:
            state.displaced.pop(uid, None)

    async def _enforce(self, decisions: Sequence[Decision]) -> None:
        """Have the kernel enforce decisions that are saved."""
        allocations, files = self._state.ledger.allocations, self._state.cdi_files
        steps = self._steps
        await steps.enforce_pods(*(each.uid for each in decisions))
        for each in decisions:
            write = partial(steps.worker.run, files.write, allocations[each.uid])
            await steps.after_save(write, each.uid)

    async def _admitted(self, decided: _Decided) -> AdmissionDocument:
        """Report an admitted pod; return the answer."""
        uid = decided.decision.uid
        await self._steps.after_save(partial(self._report, decided), uid)
        state = self._state
        return self.document(decided.decision, state.ledger.allocations[uid], state.records.of(uid))

    def _report(self, decided: _Decided) -> None:
        uid, source = decided.decision.uid, str(decided.request.source)
        allocation = self._state.ledger.allocations[uid]
        self._rejections.admitted(allocation)
        self._metrics.counters.add(names.ADMISSIONS, "admitted")
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


def _identities(pod: Pod) -> tuple[str, str]:
    return pod.uid, full_name(pod)
