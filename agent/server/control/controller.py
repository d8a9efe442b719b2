"""The only writer of the ledger: all changes are serialized here.

The order of an admission: decide, save the checkpoint, enforce, verify, report, answer. If the
kernel rejects a setting after the save, the pod stays admitted and is reported as not enforced,
since its CPUs may already be in use. Every reconcile retries, and the pod can be removed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.api import views
from agent.api.documents import (
    AdmissionDocument,
    BindDocument,
    BindRequest,
    EnforcementDocument,
    FailedPodDocument,
    PodDocument,
    RemovalDocument,
)
from agent.managers import admission
from agent.managers.allocations.origin import API, Source
from agent.managers.effective_policy import restored
from agent.pods.identity import full_name
from agent.pods.lifetime import End
from agent.progress import Progress
from agent.reconcile.errors import BindingError
from agent.server.control.admitting import Admitting
from agent.server.control.binding import Binder
from agent.server.control.change_steps import ChangeSteps
from agent.server.control.cordoning import Cordoning
from agent.server.control.decisions import Decisions
from agent.server.control.endings import Endings
from agent.server.control.grouped import GroupedAdmissions
from agent.server.control.outcomes import OutcomeReporter
from agent.server.control.queue import SerialQueue, Worker
from agent.server.control.saving import Saving
from agent.server.control.shared_pods import SharedPods
from agent.server.errors import (
    PodNotFoundError,
    RequestError,
    SourcePodError,
)
from agent.server.metrics import names
from agent.server.metrics.exposition import Metrics
from agent.server.reporting.events import EventHub, EventReporter, operation
from agent.server.reporting.log.allocation_log import allocation_line
from agent.server.reporting.pods import PodDescriber, pods_now
from agent.server.reporting.records import PodRecord, details
from agent.server.reporting.rejections import RejectionReporter, rejection_answer
from agent.server.state import COMPARISON
from agent.state.checkpoint import host_changes, host_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.api.maintenance import (
        CordonRequest,
        CordonsDocument,
        LogLevelDocument,
        LogLevelRequest,
    )
    from agent.api.status import ReconcileDocument
    from agent.api.verification import VerificationDocument
    from agent.clock import Clock
    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.assessment.violation import Violation
    from agent.pods.model import Pod
    from agent.reconcile.desired.state import Desired
    from agent.reconcile.report import EnforcementReport
    from agent.server.configured_host import ConfiguredHost
    from agent.server.kernel.ports import Enforcement, Saver
    from agent.server.state import AgentState

log = structlog.get_logger(__name__)


class Controller:
    """Owns the state: decides, saves, enforces, and returns documents."""

    def __init__(self, state: AgentState, kernel: Enforcement, saver: Saver, clock: Clock) -> None:
        self.state = state
        self.metrics = Metrics(state.reading, state.configured.rules.managers)
        self.events = EventHub(lambda: self.metrics.counters.add(names.EVENTS_DROPPED))
        reporter = EventReporter(self.events, clock, state.history)
        self.decisions = Decisions(state, self.metrics, clock)
        #: Publishes an event to all watchers.
        self.publish = reporter.publish
        self.outcomes = OutcomeReporter(state, self.metrics.counters, reporter, clock)
        self.rejections = RejectionReporter(state, self.metrics.counters, reporter, clock)
        self.progress = state.progress = Progress(clock)
        self.queue = SerialQueue(self.progress)
        self.worker = Worker(self.progress)
        self._kernel = kernel
        self._saving = Saving(state, saver, self.worker, self.metrics.counters)
        steps = ChangeSteps(state, kernel, self._saving, self.worker, self.outcomes, reporter)
        self._steps = steps
        self._binder = Binder(steps)
        self.cordoning = Cordoning(steps, clock)
        self._admitting = Admitting(steps, self.decisions, self.rejections, self.metrics, self._end)
        self.admissions = GroupedAdmissions(self.queue, self._admitting.admit_all)
        self.shared_pods = SharedPods(state, self.queue, self._saving)
        self.clock = clock
        self._endings = Endings()
        #: The pods that cannot be bound to the cgroup of their unit.
        self._unfollowed: set[str] = set()
        self._reported_invalid: frozenset[Violation] = frozenset()
        #: At most one observation is queued at the worker, so that an action waits for one at most.
        self._observing = asyncio.Lock()

    # --- operations -----------------------------------------------------------------------------

    async def admit(
        self, pod: Pod, source: Source = API, *, replace_pod: bool = False
    ) -> AdmissionDocument:
        """Admit a pod or reject it; raises `CheckpointFailedError` when it cannot be saved.

        Admission is idempotent; a rejected pod changes nothing. The pod belongs to `source` from
        then on (`agent.sources.ownership`). With `replace_pod` it takes the place of the admitted
        pod of its name, which is removed with the same save.
        """
        with operation("admit", uid=pod.uid, pod=full_name(pod)):
            started = self.clock.monotonic()
            answer = await self.admissions.admit(pod, source, replace_pod=replace_pod)
            self.metrics.admission_duration.observe(self.clock.monotonic() - started)
            return answer

    async def preview(self, pod: Pod, *, replace_pod: bool = False) -> AdmissionDocument:
        """Decide as `admit` would now, and plan the writes, without changing state or metrics."""
        replaced = self.decisions.replaced(pod) if replace_pod else None
        decision = await self.decisions.preview(pod, API, replaced)
        if decision.allocation is None:
            return rejection_answer(pod, decision, dry_run=True)
        answer = self._admitting.document(decision, decision.allocation, PodRecord(), dry_run=True)
        answer = views.replacing_answer(answer, replaced)
        desired = self.state.desired_of(decision.ledger)
        async with self._observing:
            plan = await self.worker.run(self._kernel.plan, desired, pod.uid)
        return replace(answer, plan=views.plan_document(plan))

    async def remove(self, uid: str) -> RemovalDocument:
        """Remove a pod and free its allocation; raises `PodNotFoundError`, `SourcePodError`."""
        self.state.allocation(uid)
        if (owner := self.state.asked_for_by(uid)) is not None:
            raise SourcePodError(uid, *owner)
        return await self.release(uid)

    async def release(self, uid: str) -> RemovalDocument:
        """Remove a pod of any source; raises `PodNotFoundError`."""
        with operation("remove", **self._facts(uid)):
            return await self.queue.run(lambda: self._remove(uid))

    def _facts(self, uid: str) -> dict[str, str]:
        """Return the fields of the log lines about a pod."""
        found = self.state.ledger.allocations.get(uid)
        return {"uid": uid} if found is None else {"uid": uid, "pod": full_name(found)}

    async def bind(self, uid: str, container: str, request: BindRequest) -> BindDocument:
        """Bind a container to a cgroup; raises `BindError` and other `RequestError`s."""
        with operation("bind", container=container, **self._facts(uid)):
            return await self.queue.run(lambda: self._binder.bind(uid, container, request))

    async def unbind(self, uid: str, container: str) -> BindDocument:
        """Remove the binding of a container; raises `RequestError`, for example if it has none."""
        with operation("unbind", container=container, **self._facts(uid)):
            return await self.queue.run(lambda: self._binder.unbind(uid, container))

    async def cordon(self, request: CordonRequest) -> CordonsDocument:
        """Take CPUs or nodes out of use; raises `RequestError`s (`Cordoning.cordon`)."""
        with operation("cordon", target=request.target):
            return await self.queue.run(lambda: self.cordoning.cordon(request))

    async def uncordon(self, request: CordonRequest) -> CordonsDocument:
        """Use CPUs or nodes again; raises `RequestError`s (`Cordoning.uncordon`)."""
        with operation("uncordon", target=request.target):
            return await self.queue.run(lambda: self.cordoning.uncordon(request))

    def switch_log_level(self, request: LogLevelRequest) -> LogLevelDocument:
        """Log at another level; raises `RequestError`."""
        with operation("log level"):
            return self.state.log_level.switch(request, self.clock)

    async def reconcile(self, *, insist: bool = False, ahead: bool = False) -> ReconcileDocument:
        """Compare the kernel with the ledger and repair what differs.

        Cgroups in backoff from another writer are skipped unless `insist` is set. With `ahead` the
        action overtakes queued changes.
        """
        with operation("reconcile"):
            return await self.queue.run(lambda: self._reconcile(insist=insist), ahead=ahead)

    async def end_pods(self) -> None:
        """Remove the pods that ended with their processes or unit; follow units to their cgroups.

        A unit that restarted is confined at once. Raises `CheckpointFailedError` when a removal
        cannot be saved.
        """
        allocations, target = self.state.ledger.allocations, self.state.target()
        watched = [each for each in allocations.values() if each.lifetime.end is not End.REMOVAL]
        if not (watched or self._unfollowed) and self._endings.idle:
            return
        async with self._observing:
            lives = await self.worker.run(self._kernel.lives, target, watched)
        if lives.restarted:
            await self.enforce(*lives.restarted)
        due = self._endings.changes(
            watched, self.state.durable.bindings, lives, self.clock.monotonic()
        )
        if due.started:
            await self.queue.run(lambda: self._saving.note_processes(due.started))
        for uid, why in due.ended:
            with operation("end", uid=uid, pod=full_name(allocations[uid])):
                log.info("pod ended", why=why)
                with suppress(PodNotFoundError):  # removed by a request meanwhile
                    await self.queue.run(partial(self._remove, uid))
        for uid, cgroup in due.moved:
            await self._follow(allocations[uid], cgroup)
        for uid in self._unfollowed - {uid for uid, _ in due.moved}:
            self._followed(uid)

    async def enforce(self, *uids: str) -> None:
        """Have the kernel enforce what pods are to have, whose cgroups may have changed."""
        with operation("enforce", uids=",".join(uids)):
            await self.queue.run(lambda: self._steps.enforce_pods(*uids))

    async def verify(self) -> VerificationDocument:
        """Compare the kernel with the ledger without changing either."""
        with operation("verify"):
            return await self.queue.run(self._verify)

    async def take_over(self, discover: Callable[[], ConfiguredHost]) -> bool:
        """Read the host again and use it; return whether it changed."""
        with operation("rediscover"):
            return await self.queue.run(lambda: self._take_over(discover))

    def note_invalid(self) -> None:
        """Report each violation of the current policy once."""
        found = self.state.invalid
        for violation in found:
            if violation not in self._reported_invalid:
                message = str(violation)
                log.warning("allocation no longer valid", uid=violation.uid, violation=message)
                self.publish("AllocationInvalid", violation.uid, violation.pod, message)
        self._reported_invalid = frozenset(found)

    def pods(self) -> tuple[PodDocument, ...]:
        """Return the documents of all pods in the order of admission."""
        return pods_now(self.state)()

    async def pod(self, uid: str) -> PodDocument | FailedPodDocument:
        """Return a pod with its explanation and kernel settings, or why it was rejected.

        Raises `PodNotFoundError`.
        """
        failed = self.state.records.failed(uid)
        if failed is not None and uid not in self.state.ledger.allocations:
            return await self.decisions.advised_status(failed)
        allocation = self.state.allocation(uid)
        async with self._observing:
            observed = await self.worker.run(self._kernel.observe, self.state.target(), allocation)
        record = self.state.records.of(uid)
        return PodDescriber.of(self.state).document(
            allocation,
            record,
            explanation=record.explanation,
            kernel=observed,
            invalid=self.state.invalid,
        )

    # --- queued actions -------------------------------------------------------------------------

    async def _remove(self, uid: str) -> RemovalDocument:
        allocation = self.state.allocation(uid)
        ledger = admission.remove(self.state.configured.rules, self.state.ledger, uid)
        await self._saving.commit(self.state.durable.without_pod(ledger, uid))
        enforcement = await self._end(allocation, self.state.target())
        return RemovalDocument(
            uid=uid,
            name=allocation.name,
            namespace=allocation.namespace,
            enforcement=enforcement,
        )

    async def _end(
        self, allocation: PodAllocation, target: Desired, replaced_by: str | None = None
    ) -> EnforcementDocument:
        """Take from a pod what it had, once the ledger without it is saved; enforce `target`."""
        uid, steps = allocation.uid, self._steps
        self.state.records.forget(uid)
        self.state.displaced.pop(uid, None)
        self.state.releases += 1
        outcome = await steps.enforce_removed(allocation, target)
        remove = partial(self.worker.run, self.state.cdi_files.remove, allocation)
        failed = await steps.after_save(remove)
        remaining = details((*outcome.of_pod(uid), *outcome.of_pod("")))

        def report() -> None:
            self.metrics.counters.add(names.REMOVALS)
            log.info(
                "pod removed",
                removed=uid,
                pod=full_name(allocation),
                replaced_by=replaced_by,
                conditions=remaining,
            )
            successor = f"replaced by the pod of uid {replaced_by}" if replaced_by else ""
            message = "; ".join(filter(None, (allocation_line(allocation), successor)))
            self.publish("PodRemoved", uid, full_name(allocation), message)

        failed += await steps.after_save(report)
        return views.enforcement_document((*remaining, *details(failed)), outcome.notes)

    async def _follow(self, allocation: PodAllocation, cgroup: str) -> None:
        """Bind a pod to the cgroup of its unit; what prevents that is a condition meanwhile."""
        uid, (container, *_) = allocation.uid, allocation.containers
        try:
            await self.bind(uid, container.name, BindRequest(cgroup=f"/{cgroup}"))
        except PodNotFoundError:  # removed by a request meanwhile
            self._followed(uid)
        except (BindingError, RequestError) as error:
            self._unfollowed.add(uid)
            self.state.conditions[f"unit of pod {uid}"] = str(error)
        else:
            self._followed(uid)

    def _followed(self, uid: str) -> None:
        self._unfollowed.discard(uid)
        self.state.conditions.pop(f"unit of pod {uid}", None)

    async def _reconcile(self, *, insist: bool) -> ReconcileDocument:
        started = self.clock.monotonic()
        await self._saving.check()
        target = self.state.target()
        outcome = await self.worker.run(lambda: self._kernel.reconcile(target, insist=insist))
        self.outcomes.note(outcome)
        self.outcomes.note_contest(outcome)
        if outcome.compared:
            self.state.pending.pop(COMPARISON, None)
        await self._note_started(outcome)
        await self._saving.note_ended(outcome)
        files, ledger = self.state.cdi_files, self.state.ledger
        await self.worker.run(files.reconcile, ledger.allocations.values())
        seconds = self.clock.monotonic() - started
        self.metrics.reconcile_duration.observe(seconds)
        online = self.state.configured.host.online
        counted = await self.worker.run(self._kernel.count_intruders, target, outcome, online)
        if counted is not None:
            self.state.intruding = counted
        return self.outcomes.reconciled(outcome, seconds)

    async def _verify(self) -> VerificationDocument:
        online = self.state.configured.host.online
        return await self.worker.run(self._kernel.verify, self.state.target(), online)

    async def _take_over(self, discover: Callable[[], ConfiguredHost]) -> bool:
        before = host_facts(self.state.configured.host)
        found = await self.worker.run(discover)
        self.state.configured = found
        await self._fit_ledger()
        self.note_invalid()
        changes = host_changes(before, host_facts(found.host))
        if not changes:
            return False
        self.state.releases += 1
        self.metrics.counters.add(names.HOST_CHANGES)
        log.warning("host changed", changes=changes)
        self.publish("HostChanged", message="; ".join(changes))
        return True

    # --- steps ----------------------------------------------------------------------------------

    async def _fit_ledger(self) -> None:
        """Update what is derived from allocations and policy after a host change."""
        ledger = restored(self.state.configured.rules, self.state.ledger)
        if ledger is not self.state.ledger:
            # Decisions need the new ledger whether or not it can be saved now.
            await self._saving.note(replace(self.state.durable, ledger=ledger))

    async def _note_started(self, outcome: EnforcementReport) -> None:
        """Free allocations of init containers whose successors run (the kubelet's AddContainer)."""
        rules, ledger = self.state.configured.rules, self.state.ledger
        for uid, containers in outcome.running.items():
            ledger = admission.start_containers(rules, ledger, uid, containers)
        if ledger is not self.state.ledger:
            await self._saving.note(replace(self.state.durable, ledger=ledger))
            self.state.releases += 1
