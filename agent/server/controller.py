"""The one owner of the ledger: everything that changes it goes through here, one at a time.

The order of an admission: decide, save the checkpoint, enforce, verify, tell, answer. When the
kernel rejects after the save the pod stays admitted and is reported as not enforced: part of the
allocation may already be in force, so giving its CPUs to somebody else could let two pods hold
them. Every reconcile tries again; the caller sees the exact reason and may remove the pod.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.api import views
from agent.api.documents import (
    AdmissionDocument,
    BindDocument,
    BindRequest,
    FailedPodDocument,
    PodDocument,
    ReconcileDocument,
    RemovalDocument,
)
from agent.managers import admission
from agent.managers.effective_policy import shared_cpus
from agent.managers.readmission import restored
from agent.managers.recovery.from_cgroups import describe_recovered, is_recovered
from agent.pods.identity import full_name
from agent.server.configured_host import decide
from agent.server.errors import (
    BindingNotFoundError,
    CheckpointFailedError,
    ContainerNotFoundError,
    ManifestPodError,
    PodNotFoundError,
)
from agent.server.metrics import names
from agent.server.metrics.exposition import Metrics
from agent.server.queue import SerialQueue, Worker
from agent.server.reporting.allocation_log import allocation_fields
from agent.server.reporting.drift import DriftReporter
from agent.server.reporting.events import EventHub, EventReporter, operation
from agent.server.reporting.records import API, PodRecord
from agent.server.reporting.rejections import RejectionReporter, rejection_answer
from agent.server.saving import Saving
from agent.server.state import COMPARISON
from agent.state.checkpoint import host_changes, host_facts
from cgroupfs.tree import ancestors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.api.verification import VerificationDocument
    from agent.managers.allocations.bindings import Binding
    from agent.managers.allocations.ledger import PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.validity import Violation
    from agent.pods.model import Pod
    from agent.server.clock import Clock
    from agent.server.configured_host import ConfiguredHost
    from agent.server.kernel.ports import Enforcement, ReconcileResult, Saver
    from agent.server.state import AgentState, DurableState

log = structlog.get_logger(__name__)


class Controller:
    """Owns the state: decides, saves, enforces, and answers with documents."""

    def __init__(self, state: AgentState, kernel: Enforcement, saver: Saver, clock: Clock) -> None:
        self.state = state
        self.metrics = Metrics(state.reading)
        self.events = EventHub(lambda: self.metrics.counters.add(names.EVENTS_DROPPED))
        teller = EventReporter(self.events, clock)
        #: Gives an event to everybody who watches.
        self.tell = teller.tell
        self.drifts = DriftReporter(state, self.metrics.counters, teller, clock)
        self.rejections = RejectionReporter(state, self.metrics.counters, teller, clock)
        self.queue = SerialQueue(clock)
        self.worker = Worker(clock)
        #: The cgroups that were last looked at: what is worth watching.
        self.cgroups: set[str] = set()
        #: Of these, and of all below, the files may be others than when they were last watched.
        self.renewed: set[str] = set()
        #: Has the cgroups watched that a change made, before the pod's first container starts.
        self.watch: Callable[[Iterable[str]], None] = _watch_nothing
        self._kernel = kernel
        self._saving = Saving(state, saver, self.worker, self.metrics.counters)
        self._clock = clock
        self._told_invalid: frozenset[Violation] = frozenset()
        #: One look at a time is with the worker, so that an action waits for one at most.
        self._looking = asyncio.Lock()

    # --- what may be asked ----------------------------------------------------------------------

    async def admit(self, pod: Pod, manifest: str | None = None) -> AdmissionDocument:
        """Admit a pod or reject it; raises `CheckpointFailedError` when it cannot be saved.

        The same pod asked for again gets the same allocation; a rejected pod changes nothing. A pod
        that is asked for by a file (`manifest`, its path) belongs to that file from then on.
        """
        with operation("admit", uid=pod.uid, pod=full_name(pod)):
            started = self._clock.monotonic()
            answer = await self.queue.run(lambda: self._admit(pod, manifest))
            self.metrics.admission_duration.observe(self._clock.monotonic() - started)
            return answer

    def preview(self, pod: Pod) -> AdmissionDocument:
        """Decide as `admit` would now, changing and counting nothing."""
        decision = decide(self.state.situation, self.state.ledger, pod)
        if decision.allocation is None:
            return rejection_answer(pod, decision, dry_run=True)
        return self._admission(decision, decision.allocation, PodRecord(API), dry_run=True)

    async def remove(self, uid: str) -> RemovalDocument:
        """Remove a pod and free what it holds; raises `PodNotFoundError`, `ManifestPodError`."""
        manifest = self.state.held.manifests.get(uid)
        if manifest is not None and manifest in self.state.manifests:
            raise ManifestPodError(uid, manifest)
        return await self.release(uid)

    async def release(self, uid: str) -> RemovalDocument:
        """Remove a pod wherever it came from; raises `PodNotFoundError`."""
        with operation("remove", uid=uid):
            return await self.queue.run(lambda: self._remove(uid))

    async def bind(self, uid: str, container: str, request: BindRequest) -> BindDocument:
        """Take a cgroup as that of a container; raises `BindError` and the like."""
        with operation("bind", uid=uid, container=container):
            return await self.queue.run(lambda: self._bind(uid, container, request))

    async def unbind(self, uid: str, container: str) -> BindDocument:
        """Give up the binding of a container; raises `BindingNotFoundError` and the like."""
        with operation("unbind", uid=uid, container=container):
            return await self.queue.run(lambda: self._unbind(uid, container))

    async def reconcile(self, *, insist: bool = False, ahead: bool = False) -> ReconcileDocument:
        """Compare the kernel with the ledger and put right what differs.

        What somebody else rewrites again and again waits for its time, unless asked to `insist`.
        With `ahead` it overtakes the changes that wait: they are never its undoing.
        """
        with operation("reconcile"):
            return await self.queue.run(lambda: self._reconcile(insist=insist), ahead=ahead)

    async def verify(self) -> VerificationDocument:
        """Return the truth of the kernel beside the ledger; nothing is changed."""
        with operation("verify"):
            return await self.queue.run(self._verify)

    async def take_over(self, discover: Callable[[], ConfiguredHost]) -> bool:
        """Read the host again; take it over when it changed, and tell whether it did."""
        with operation("rediscover"):
            return await self.queue.run(lambda: self._take_over(discover))

    def note_invalid(self) -> None:
        """Tell once of each thing that is held and the rules in force would not give."""
        found = self.state.invalid
        for finding in found:
            if finding not in self._told_invalid:
                log.warning("allocation not valid any more", uid=finding.uid, finding=str(finding))
                self.tell("AllocationInvalid", finding.uid, finding.pod, str(finding))
        self._told_invalid = frozenset(found)

    def note_recovered(self) -> None:
        """Tell of what the start took from cgroups, and what of the checkpoint gave way to it."""
        for allocation in self.state.ledger.allocations.values():
            if is_recovered(allocation):
                self.tell(
                    "PodRecovered",
                    allocation.uid,
                    full_name(allocation),
                    describe_recovered(allocation),
                )
        for uid, displaced in self.state.displaced.items():
            name = f"{displaced.namespace}/{displaced.name}"
            self.tell("AllocationDisplaced", uid, name, str(displaced))

    def pods(self) -> tuple[PodDocument, ...]:
        """Return all pods in the order of admission."""
        return self.pods_now()()

    def pods_now(self) -> Callable[[], tuple[PodDocument, ...]]:
        """Return what makes the documents of all pods as they are now, in any thread."""
        state, pool = self.state, self.state.shared_cpus
        invalid: dict[str, list[Violation]] = defaultdict(list)
        for finding in state.invalid:
            invalid[finding.uid].append(finding)
        known = [
            (allocation, state.source_of(uid), replace(state.records.of(uid)), invalid.get(uid, ()))
            for uid, allocation in state.ledger.allocations.items()
        ]
        return lambda: tuple(
            views.pod_document(allocation, pool, source=source, record=record, invalid=violated)
            for allocation, source, record, violated in known
        )

    async def pod(self, uid: str) -> PodDocument | FailedPodDocument:
        """Return a pod with its explanation and what the kernel says, or why it was rejected.

        Raises `PodNotFoundError`.
        """
        failed = self.state.records.failed(uid)
        if failed is not None and uid not in self.state.ledger.allocations:
            return failed
        allocation = self._allocation(uid)
        async with self._looking:
            seen = await self.worker.run(self._kernel.observe, self.state.target(), allocation)
        record = self.state.records.of(uid)
        return views.pod_document(
            allocation,
            self.state.shared_cpus,
            source=self.state.source_of(uid),
            record=record,
            explanation=record.explanation,
            kernel=seen,
            invalid=self.state.invalid,
        )

    # --- one at a time --------------------------------------------------------------------------

    async def _admit(self, pod: Pod, manifest: str | None) -> AdmissionDocument:
        decision = self._decide(pod)
        if decision.allocation is None:
            return self.rejections.rejected(pod, decision, manifest or API)
        if decision.already_admitted:
            return await self._repeat(decision, decision.allocation, manifest)
        await self._commit_admission(
            self.state.held.with_manifest(decision.ledger, pod.uid, manifest)
        )
        record = PodRecord(API, views.explanation_document(decision))
        self.state.records.pods[pod.uid] = record
        self.rejections.admitted(decision.allocation)
        self.state.displaced.pop(pod.uid, None)
        await self._enforce(pod.uid)
        self._count_admission("admitted")
        log.info(
            "pod admitted",
            enforced=not record.problems,
            **self._allocation_fields(decision.allocation),
        )
        self.tell("PodAdmitted", pod.uid, full_name(pod))
        return self._admission(decision, decision.allocation, record)

    async def _repeat(
        self, decision: Decision, allocation: PodAllocation, manifest: str | None
    ) -> AdmissionDocument:
        held = self.state.held
        confirmed = decision.ledger is not held.ledger
        if confirmed or (manifest is not None and held.manifests.get(allocation.uid) != manifest):
            await self._saving.commit(held.with_manifest(decision.ledger, allocation.uid, manifest))
        record = self.state.records.of(allocation.uid)
        if record.problems or confirmed:
            await self._enforce(allocation.uid)
            record = self.state.records.of(allocation.uid)
        if confirmed:
            self.state.displaced.pop(allocation.uid, None)
            fields = self._allocation_fields(allocation)
            log.info("pod matched", enforced=not record.problems, **fields)
        self._count_admission("repeated")
        return self._admission(decision, allocation, record)

    async def _remove(self, uid: str) -> RemovalDocument:
        allocation = self._allocation(uid)
        ledger = admission.remove(self.state.situation.rules, self.state.ledger, uid)
        await self._saving.commit(self.state.held.without_pod(ledger, uid))
        self.state.records.forget(uid)
        self.state.displaced.pop(uid, None)
        self.state.releases += 1
        outcome = await self.worker.run(self._kernel.removed, self.state.target(), allocation)
        self._note(outcome)
        self.metrics.counters.add(names.REMOVALS)
        problems = (*outcome.unenforced.get(uid, ()), *outcome.problems)
        log.info("pod removed", pod=full_name(allocation), problems=problems)
        self.tell("PodRemoved", uid, full_name(allocation))
        return RemovalDocument(
            uid=uid,
            name=allocation.name,
            namespace=allocation.namespace,
            enforcement=views.enforcement_document(problems, outcome.notes),
        )

    async def _bind(self, uid: str, container: str, request: BindRequest) -> BindDocument:
        allocation = self._allocation(uid, container)
        held, target = self.state.held, self.state.target()
        binding = await self.worker.run(self._kernel.locate, target, allocation, container, request)
        await self._saving.commit(replace(held, bindings=held.bindings.with_binding(binding)))
        await self._enforce(uid)
        log.info("container bound", cgroup=f"/{binding.cgroup}")
        self.tell("ContainerBound", uid, full_name(allocation), f"{container} is /{binding.cgroup}")
        return self._bound(binding)

    async def _unbind(self, uid: str, container: str) -> BindDocument:
        allocation, held = self._allocation(uid, container), self.state.held
        binding = held.bindings.of_container(uid, container)
        if binding is None:
            raise BindingNotFoundError(full_name(allocation), container)
        await self._saving.commit(replace(held, bindings=held.bindings.without_binding(binding)))
        # What was bound is confined before anybody else may be given the container's CPUs.
        await self._enforce(uid)
        cgroup = f"/{binding.cgroup}"
        log.info("container unbound", cgroup=cgroup)
        self.tell("ContainerUnbound", uid, full_name(allocation), f"{container} was {cgroup}")
        return self._bound(binding)

    def _bound(self, binding: Binding) -> BindDocument:
        problems = self.state.records.of(binding.pod_uid).problems
        return BindDocument(
            uid=binding.pod_uid,
            container=binding.container,
            cgroup=f"/{binding.cgroup}",
            enforcement=views.enforcement_document(problems),
        )

    async def _reconcile(self, *, insist: bool) -> ReconcileDocument:
        started = self._clock.monotonic()
        await self._saving.look()
        target = self.state.target()
        outcome = await self.worker.run(lambda: self._kernel.reconcile(target, insist=insist))
        self._note(outcome)
        self._note_contest(outcome)
        if outcome.compared:
            self.state.pending.pop(COMPARISON, None)
        await self._note_started(outcome)
        await self._note_ended(outcome)
        seconds = self._clock.monotonic() - started
        self.metrics.reconcile_duration.observe(seconds)
        return self._reconciled(outcome, seconds)

    async def _verify(self) -> VerificationDocument:
        online = self.state.situation.host.online
        return await self.worker.run(self._kernel.verify, self.state.target(), online)

    async def _take_over(self, discover: Callable[[], ConfiguredHost]) -> bool:
        before = host_facts(self.state.situation.host)
        found = await self.worker.run(discover)
        self.state.situation = found
        await self._fit_ledger()
        self.note_invalid()
        changes = host_changes(before, host_facts(found.host))
        if not changes:
            return False
        self.state.releases += 1
        self.metrics.counters.add(names.HOST_CHANGES)
        log.warning("the host changed", changes=changes)
        self.tell("HostChanged", message="; ".join(changes))
        return True

    # --- steps ----------------------------------------------------------------------------------

    def _decide(self, pod: Pod) -> Decision:
        started = self._clock.monotonic()
        decision = decide(self.state.situation, self.state.ledger, pod)
        milliseconds = (self._clock.monotonic() - started) * 1000
        self.metrics.decision_duration.observe(milliseconds)
        self.metrics.counters.add_all(decision.counters)
        return decision

    async def _enforce(self, uid: str) -> None:
        self._note(await self.worker.run(self._kernel.admitted, self.state.target(), uid))

    def _allocation_fields(self, allocation: PodAllocation) -> dict[str, object]:
        fields = allocation_fields(allocation, self.state.shared_cpus)
        return {"source": self.state.source_of(allocation.uid), **fields}

    async def _commit_admission(self, held: DurableState) -> None:
        try:
            await self._saving.commit(held)
        except CheckpointFailedError:
            self._count_admission("failed")
            raise

    async def _fit_ledger(self) -> None:
        """Compute again what follows from allocations and rules, after these changed."""
        ledger = restored(self.state.situation.rules, self.state.ledger)
        if ledger is not self.state.ledger:
            # Decisions need it whether or not it can be saved at once.
            await self._saving.note(replace(self.state.held, ledger=ledger))

    def _note(self, outcome: ReconcileResult) -> None:
        """Count and tell what a change or a comparison brought to light."""
        counters = self.metrics.counters
        self._note_cgroups(outcome)
        self.state.records.note_running(outcome.running, outcome.pods)
        if outcome.settled:
            log.info("new cgroups settled", cgroups=outcome.settled)
        self.drifts.note(outcome)
        allocations = self.state.ledger.allocations
        news = self.state.records.note_unenforced(outcome.unenforced, allocations)
        for uid, problems in news.items():
            counters.add(names.ENFORCEMENT_FAILURES)
            log.error(
                "pod not enforced", uid=uid, pod=full_name(allocations[uid]), problems=problems
            )
            self.tell("PodNotEnforced", uid, full_name(allocations[uid]), "; ".join(problems))
        if outcome.problems and outcome.problems != self.state.kernel_problems:
            log.error("not enforced", problems=outcome.problems)
        self.state.kernel_problems = outcome.problems

    def _note_cgroups(self, outcome: ReconcileResult) -> None:
        self.renewed.update(outcome.renewed)
        if outcome.pods is not None:
            self.cgroups.update(outcome.cgroups)
        elif outcome.cgroups:
            self.cgroups = set(outcome.cgroups)
            if self.renewed:
                # What is gone need not be watched again; without watches this would only grow.
                around = {above for cgroup in self.cgroups for above in ancestors(cgroup)}
                self.renewed &= self.cgroups | around
        self.watch([cgroup for cgroup in outcome.renewed if cgroup in self.cgroups])

    def _note_contest(self, outcome: ReconcileResult) -> None:
        """Tell once of every pause before the next repair of what somebody else rewrites."""
        self.state.contested = outcome.contested
        for why in outcome.given_way:
            self.metrics.counters.add(names.REPAIRS_POSTPONED)
            log.warning("somebody rewrites a cgroup again and again", why=why)
            self.tell("DriftContested", message=why)

    async def _note_started(self, outcome: ReconcileResult) -> None:
        """Free what init containers held whose successors run (the kubelet's AddContainer)."""
        rules, ledger = self.state.situation.rules, self.state.ledger
        for uid, container in outcome.running:
            ledger = admission.start_container(rules, ledger, uid, container)
        if ledger is not self.state.ledger:
            await self._saving.note(replace(self.state.held, ledger=ledger))
            self.state.releases += 1

    async def _note_ended(self, outcome: ReconcileResult) -> None:
        """Forget bindings of removed pods and replaced ones when what ran there has ended.

        And remember which cgroups are of no pod: after a restart they are not taken for one's.
        """
        held = self.state.held
        bindings = held.bindings.without(outcome.ended, held.ledger.allocations)
        orphaned = held.orphaned if outcome.orphaned is None else outcome.orphaned
        if (bindings, orphaned) != (held.bindings, held.orphaned):
            await self._saving.note(replace(held, bindings=bindings, orphaned=orphaned))

    def _reconciled(self, outcome: ReconcileResult, seconds: float) -> ReconcileDocument:
        by_pod = (problem for lines in outcome.unenforced.values() for problem in lines)
        problems = (*outcome.problems, *by_pod)
        result = "failed" if problems else "repaired" if outcome.found else "clean"
        self.metrics.counters.add(names.RECONCILES, result)
        now = self._clock.time()
        if not problems:
            self.state.last_agreement = now
        self.state.last_reconcile = ReconcileDocument(
            found=dict(outcome.found),
            repaired=dict(outcome.repaired),
            problems=problems,
            notes=outcome.notes,
            finished=now,
            seconds=seconds,
        )
        return self.state.last_reconcile

    # --- answers --------------------------------------------------------------------------------

    def _allocation(self, uid: str, container: str | None = None) -> PodAllocation:
        """Return what a pod holds, which has the `container` if one is named."""
        allocation = self.state.ledger.allocations.get(uid)
        if allocation is None:
            raise PodNotFoundError(uid)
        if container is not None and allocation.container(container) is None:
            known = tuple(member.name for member in allocation.containers)
            raise ContainerNotFoundError(full_name(allocation), container, known)
        return allocation

    def _admission(
        self,
        decision: Decision,
        allocation: PodAllocation,
        record: PodRecord,
        *,
        dry_run: bool = False,
    ) -> AdmissionDocument:
        pool = shared_cpus(self.state.situation.rules, decision.ledger)
        source, seen = (API, None) if dry_run else (self.state.source_of(allocation.uid), record)
        return AdmissionDocument(
            uid=allocation.uid,
            name=allocation.name,
            namespace=allocation.namespace,
            admitted=True,
            dry_run=dry_run,
            already_admitted=decision.already_admitted,
            pod=views.pod_document(allocation, pool, source=source, record=seen),
            explanation=record.explanation or views.explanation_document(decision),
        )

    def _count_admission(self, result: str) -> None:
        self.metrics.counters.add(names.ADMISSIONS, result)


def _watch_nothing(_cgroups: Iterable[str]) -> None:
    """Leave it to the next comparison, where nobody watches cgroups."""
