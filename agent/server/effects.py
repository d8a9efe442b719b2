"""Proposals take effect: they are saved, enforced, read back, reported and answered.

In goes a group of proposals, each decided on the ledger that the one before it leaves; each of
their callers gets an answer. Callers rely on this order:

1. All of the group is saved at once. If that fails, nothing has changed, and all of them fail.
2. Rejected pods are answered.
3. The kernel enforces what the admitted pods are to have, and what that changes for others.
4. What was read back is reported and answered.

After the save the pods are admitted, whatever fails: a setting that the kernel rejects is reported
as not enforced, since the CPUs may be in use already.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.api import views
from agent.managers.admission import remove
from agent.managers.allocation import Origin
from agent.managers.metrics import TOPOLOGY_ADMISSION_REQUESTS
from agent.managers.moves import Move
from agent.managers.rules import charged
from agent.pods.model import full_name
from agent.server import metrics as names
from agent.server.allocation_log import allocation_fields, allocation_line
from agent.server.errors import CheckpointFailedError, PodRemovedError
from agent.server.pod_records import PodRecord
from agent.server.preparations import Preparations
from agent.server.state_documents import PodDescriber, admission_answer
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.kernel import EnforcementDocument
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.server.decider import Proposal
    from agent.server.rejections import RejectionReporter
    from agent.server.steps import Steps

log = structlog.get_logger(__name__)


class Effects:
    """Has proposals take effect, one group in each turn of the line."""

    def __init__(self, steps: Steps, rejections: RejectionReporter) -> None:
        self._steps = steps
        self._state = steps.state
        self._rejections = rejections
        self._preparations = Preparations(steps)

    def count(self, proposal: Proposal) -> None:
        """Count a decision, unless plugins are still to be asked: it is decided again then."""
        metrics, decision = self._steps.metrics, proposal.decision
        if proposal.suspended is not None:
            return
        if (TOPOLOGY_ADMISSION_REQUESTS.name, ()) in decision.counters:
            metrics.decision_duration.observe(proposal.seconds * 1000)
        metrics.counters.add_all(decision.counters)

    async def take(self, group: Sequence[Proposal]) -> None:
        """Have proposals take effect, and answer their callers.

        A pod that is admitted already, and one that replaces another, come alone. Raises
        `CheckpointFailedError` and `_DoubleAllocationError`: nobody of the group was answered then.
        """
        if group[0].decision.already_admitted:
            [repeated] = group
            await repeated.request.answer(self._repeat(repeated.decision))
            return
        steps, state = self._steps, self._state
        admitted = [proposal for proposal in group if proposal.allocation is not None]
        # 1. Save. If that fails, it fails for rejected pods as well: they were decided on a ledger
        #    with the others, which are not admitted now.
        if admitted:
            await self._save(admitted)
        # 2. Answer rejected pods.
        for proposal in group:
            if proposal.allocation is None:
                await proposal.request.answer(self._reject(proposal))
        if not admitted:
            return
        # 3. Enforce. A replaced pod is first confined to the shared pool as it is without both
        #    pods: nothing is given before it was taken from others.
        removal = None
        for proposal in admitted:
            if proposal.replaced is not None:
                neither = remove(state.configured.rules, state.ledger, proposal.pod.uid)
                target = state.desired_of(neither)
                removal = await steps.end_pod(proposal.replaced, target, proposal.pod.uid)
        moves = any(isinstance(proposal.request.change, Move) for proposal in admitted)
        uids = (proposal.pod.uid for proposal in admitted)
        await steps.enforce_pods(*uids, move_memory=moves)
        for proposal in admitted:
            allocation = state.ledger.allocations[proposal.pod.uid]
            write = partial(steps.worker.run, state.parts.cdi_files.write, allocation)
            await steps.after_save(write, proposal.pod.uid)
        # 4. The records have now what was read back: report it, and answer with it.
        for proposal in admitted:
            self._prepare(proposal.pod.uid, delivered=not proposal.decision.resized)
            await proposal.request.answer(self._answer(proposal, removal))

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

    async def _save(self, admitted: Sequence[Proposal]) -> None:
        """Save the allocations of a group, then use them; raises `CheckpointFailedError`."""
        state, ledger = self._state, self._state.ledger
        rules, durable = state.configured.rules, state.durable
        for proposal in admitted:
            if proposal.replaced is not None:
                ledger = remove(rules, ledger, proposal.replaced.uid)
            if proposal.allocation is not None:
                ledger = charged(rules, ledger, proposal.allocation)
        _check_unique(ledger, {proposal.pod.uid for proposal in admitted})
        for proposal in admitted:
            if proposal.replaced is not None:
                durable = durable.without_pod(ledger, proposal.replaced.uid)
            durable = durable.with_pod(ledger, proposal.pod.uid)
        records = {proposal.pod.uid: self._record(proposal) for proposal in admitted}
        try:
            await self._steps.commit(durable)
        except CheckpointFailedError:
            counters = self._steps.metrics.counters
            counters.add(names.ADMISSIONS, "failed", by=len(admitted))
            raise
        state.observed.records.pods.update(records)
        for uid in records:
            state.observed.displaced.pop(uid, None)

    def _record(self, proposal: Proposal) -> PodRecord:
        """Return the record of a pod; one that is resized runs already."""
        explanation = views.explanation_document(proposal.decision)
        if not proposal.decision.resized:
            return PodRecord(explanation)
        former = self._state.observed.records.of(proposal.pod.uid)
        return replace(former, explanation=explanation)

    async def _reject(self, proposal: Proposal) -> AdmissionDocument:
        request = proposal.request
        moves = isinstance(request.change, Move)
        return self._rejections.report_rejection(
            request.pod, proposal.decision, request.source, moves=moves
        )

    async def _answer(
        self, proposal: Proposal, removal: EnforcementDocument | None
    ) -> AdmissionDocument:
        """Report an admitted pod; return the answer."""
        uid, state = proposal.pod.uid, self._state
        await self._steps.after_save(partial(self._report, proposal), uid)
        allocation, record = state.ledger.allocations[uid], state.observed.records.of(uid)
        answer = admission_answer(state, proposal.decision, allocation, record)
        return views.replacing_answer(answer, proposal.replaced, removal)

    def _report(self, proposal: Proposal) -> None:
        uid, source = proposal.pod.uid, str(proposal.request.source)
        allocation = self._state.ledger.allocations[uid]
        self._rejections.forget(allocation)
        counters, resized = self._steps.metrics.counters, proposal.decision.resized
        change = proposal.request.change
        if isinstance(change, Move):
            counters.add(names.MOVES, "moved")
        else:
            counts = (names.RESIZES, "resized") if resized else (names.ADMISSIONS, "admitted")
            counters.add(*counts)
        fields = allocation_fields(allocation, self._state.shared_cpus_of(allocation))
        record = self._state.observed.records.of(uid)
        seconds = self._steps.clock.monotonic() - proposal.request.requested
        if not resized:
            record.admission_seconds = seconds
        enforced = not record.unenforced
        fields |= {"enforced": enforced, "source": source, "seconds": round(seconds, 6)}
        duration = f"{'' if enforced else 'not '}enforced after {seconds * 1000:.0f} ms"
        text = "; ".join(filter(None, (allocation_line(allocation), duration)))
        name, given = full_name(allocation), proposal.pod.given_devices
        if isinstance(change, Move):
            log.info("pod moved", before=str(change.before.cpus), **fields)
            was = f"before CPUs {change.before.cpus}" if change.before.cpus else ""
            self._steps.publish("PodMoved", uid, name, "; ".join(filter(None, (text, was))))
        elif resized:
            log.info("pod resized", **fields)
            self._steps.publish("PodResized", uid, name, text)
        else:
            log.info("pod admitted", **fields)
            self._steps.publish("PodAdmitted", uid, name, text, given=given)

    async def _repeat(self, decision: Decision) -> AdmissionDocument:
        """Answer for a pod that is admitted already, and enforce what it lacks.

        The first specification that fits a recovered or imported allocation confirms it.
        """
        steps, state, uid = self._steps, self._state, decision.uid
        confirmed = state.ledger.allocations[uid].origin is not Origin.DECIDED
        if (changed := decision.ledger.allocations[uid]) is not state.ledger.allocations[uid]:
            ledger = charged(state.configured.rules, state.ledger, changed)
            await steps.commit(state.durable.with_pod(ledger, uid))
        if state.observed.records.of(uid).unenforced or confirmed:
            await steps.enforce_pods(uid)
        allocation, record = state.ledger.allocations[uid], state.observed.records.of(uid)
        if confirmed:
            state.observed.displaced.pop(uid, None)
            fields = allocation_fields(allocation, state.shared_cpus_of(allocation))
            enforced, source = not record.unenforced, str(allocation.source)

            def report() -> None:
                log.info("pod matched", enforced=enforced, source=source, **fields)

            await steps.after_save(report, uid)
        self._prepare(uid)
        count = partial(steps.metrics.counters.add, names.ADMISSIONS, "repeated")
        await steps.after_save(count, uid)
        return admission_answer(state, decision, allocation, record)

    def _prepare(self, uid: str, *, delivered: bool = False) -> None:
        allocation = self._state.ledger.allocations.get(uid)
        if allocation is not None and allocation.unprepared:
            self._preparations.begin(allocation, delivered=delivered)


class _DoubleAllocationError(Exception):
    """A decision gives a pod CPUs or devices that another one has: a defect of the agent."""


def _check_unique(ledger: Ledger, new: set[str]) -> None:
    """Raise `_DoubleAllocationError` if new pods have CPUs or devices of others, or each other's.

    No decision does that. It is checked before new pods are saved all the same: a double allocation
    would be the worst fault of all.
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
