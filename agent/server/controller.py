"""The only writer of the ledger. All changes wait in one line (`queue`), which makes one at a time.

There are two kinds (`agent.server.steps`). A request (admit, resize, move, remove, bind, cordon) is
saved before it takes effect, and is rejected if it cannot be saved. A fact (a host that changed, a
container that started or ended) takes effect whether or not it can be saved now. Either is then
enforced and read back; the next comparison (`reconcile`) writes what the kernel did not take.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.api import views
from agent.api.documents.admissions import (
    AdmissionDocument,
    BindDocument,
    BindRequest,
    RemovalDocument,
)
from agent.api.documents.kernel import PlanDocument, WriteDocument
from agent.managers import admission
from agent.managers.allocation import API, Source
from agent.managers.numa_policy import numa_policy
from agent.managers.rules import restored
from agent.pods.model import full_name
from agent.server import maintenance
from agent.server import metrics as names
from agent.server.admissions import Admissions
from agent.server.advice import Advisor
from agent.server.decider import Decider
from agent.server.effects import Effects
from agent.server.endings import Endings
from agent.server.errors import (
    BindingNotFoundError,
    SourcePodError,
)
from agent.server.moves import defragment_document, moves_document, moving_pod
from agent.server.observations import COMPARISON
from agent.server.operations import operation
from agent.server.pod_records import PodRecord, details
from agent.server.rejections import RejectionReporter
from agent.server.resizes import check_owner
from agent.server.state_documents import (
    PodDescriber,
    admission_answer,
    pods_now,
    rejection_answer,
)
from agent.state.checkpoint import host_changes, host_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from agent.api.documents.maintenance import CordonRequest, CordonsDocument
    from agent.api.documents.moves import DefragmentDocument, MovesDocument
    from agent.api.documents.pods import PodDocument
    from agent.api.documents.rejections import FailedPodDocument
    from agent.api.documents.verification import ReconcileDocument, VerificationDocument
    from agent.managers.bindings import Binding, Bindings
    from agent.managers.decision import Decision
    from agent.managers.moves import Move
    from agent.managers.violations import Violation
    from agent.pods.model import Pod
    from agent.reconcile.report import EnforcementReport, PlannedChange
    from agent.reconcile.target import Desired
    from agent.server.configured import ConfiguredHost
    from agent.server.moves import AskedMove
    from agent.server.resizes import Resize
    from agent.server.steps import Steps
    from agent.state.checkpoint import SharedPod

log = structlog.get_logger(__name__)


class Controller:
    """Owns the state: decides, saves, enforces, and returns documents."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.state, self.metrics, self.clock = steps.state, steps.metrics, steps.clock
        self.queue, self.worker = steps.queue, steps.worker
        self.events, self.publish, self.outcomes = steps.events, steps.publish, steps.outcomes
        counters = steps.metrics.counters
        self.rejections = RejectionReporter(steps.state, counters, steps.events, steps.clock)
        self.decider = Decider(steps)
        self._effects = Effects(steps, self.rejections)
        self._admissions = Admissions(steps, self.decider, self._effects)
        self.advice = Advisor(steps.state, self.decider.available)
        self._endings = Endings(steps, self._remove, self.enforce, self.bind)
        #: The pods that run shared and are about to be saved, by uid.
        self._sharing: dict[str, SharedPod] = {}
        self._reported_invalid: frozenset[Violation] = frozenset()

    async def admit(
        self, pod: Pod, source: Source = API, *, replace_pod: bool = False
    ) -> AdmissionDocument:
        """Admit a pod or reject it; raises `CheckpointFailedError` when it cannot be saved.

        Admission is idempotent; a rejected pod changes nothing. The pod belongs to `source` from
        then on (`agent.sources.source`). With `replace_pod` it takes the place of the admitted
        pod of its name, which is removed with the same save.
        """
        with operation("admit", uid=pod.uid, pod=full_name(pod)):
            started = self.clock.monotonic()
            answer = await self._admissions.admit(pod, source, replace_pod=replace_pod)
            if source.name == API.name:  # a source goes on; a condition says it
                answer = await self._effects.prepared(answer)
            self.metrics.admission_duration.observe(self.clock.monotonic() - started)
            return answer

    async def preview(self, pod: Pod, *, replace_pod: bool = False) -> AdmissionDocument:
        """Decide as `admit` would now, and plan the writes, without changing state or metrics."""
        replaced = self.decider.replaced(pod) if replace_pod else None
        answer = await self._previewed(pod, self.decider.preview(pod, API, replaced))
        return views.replacing_answer(answer, replaced)

    async def _previewed(self, pod: Pod, decision: Decision) -> AdmissionDocument:
        """Return the answer to a dry run, with what would be written."""
        if decision.allocation is None:
            return rejection_answer(pod, decision, dry_run=True)
        answer = admission_answer(
            self.state, decision, decision.allocation, PodRecord(), dry_run=True
        )
        desired = self.state.desired_of(decision.ledger)
        plan = await self.steps.observe(self.steps.kernel.plan, desired, pod.uid)
        return replace(answer, plan=_plan_document(plan))

    async def resize(self, asked: Resize, *, dry_run: bool = False) -> AdmissionDocument:
        """Give a running pod other amounts; a rejected resize changes nothing.

        Raises `PodNotFoundError`, `SourceResizeError`, `ResizeError`, `ContainerNotFoundError`, and
        `CheckpointFailedError`. The answer is as that of `admit`, with what was tried instead.
        """
        with operation("resize", **self._facts(asked.uid)):
            allocation = self.state.allocation(asked.uid)
            check_owner(allocation, self.state.observed.sources.owner(allocation))
            change = asked.change(allocation)
            if dry_run:
                pod, source = asked.desired(allocation), allocation.source or API
                decision = self.decider.preview(pod, source, change=asked.keep)
                answer = await self._previewed(pod, decision)
            else:
                answer = await self._admissions.change(asked.uid, asked.desired, asked.keep)
            return await self.advice.advised_resize(change, asked.keep, answer)

    async def follow_resize(self, asked: Resize) -> AdmissionDocument:
        """Give a running pod the other amounts that its source states; raises as `resize`."""
        with operation("resize", **self._facts(asked.uid)):
            return await self._admissions.change(asked.uid, asked.desired, asked.keep)

    async def plan(self, pod: Pod) -> MovesDocument:
        """Return which moves would make room for a pod; changes nothing, raises `BusyError`."""
        pods, target = self.state.ledger.allocations, self.state.target()
        decision = self.decider.preview(pod, API)
        plan = await self.advice.plan(pod, decision)
        moving = await self._moving(plan.moves, target)
        return moves_document(decision, pod, plan, pods, moving)

    async def defragment(self) -> DefragmentDocument:
        """Return which moves give one NUMA node more free CPUs; changes nothing, as `plan`."""
        rules, ledger, target = self.state.configured.rules, self.state.ledger, self.state.target()
        plan = await self.advice.defragment()
        moving = await self._moving(plan.moves, target)
        return defragment_document(rules, ledger, plan, moving)

    async def _moving(self, moves: Iterable[Move], target: Desired) -> dict[str, int | None]:
        """Return the bytes that pods have on nodes that they leave, by uid; None: not known."""
        moving: dict[str, int | None] = {}
        for move in moves:
            left = move.before.nodes - move.after.nodes
            allocation = target.ledger.allocations[move.uid]
            read = partial(self.steps.kernel.memory_on, target, left, allocation)
            moving[move.uid] = await self.steps.observe(read) if left else 0
        return moving

    async def move(self, asked: AskedMove, *, dry_run: bool = False) -> AdmissionDocument:
        """Give a running pod other CPUs and memory nodes; a rejected move changes nothing.

        Raises `PodNotFoundError`, `MoveError`, `PressureError`, and `CheckpointFailedError`. The
        answer is as that of `admit`.
        """
        uid = asked.move.uid
        with operation("move", **self._facts(uid)):
            allocation = self.state.allocation(uid)
            pod, source = moving_pod(allocation), allocation.source or API
            kernel = self.steps.kernel
            reading = await self.steps.observe(kernel.observe, self.state.target(), allocation)
            asked.check_pressure(reading.loads)
            if dry_run:
                return await self._previewed(
                    pod, self.decider.preview(pod, source, change=asked.move)
                )
            return await self._admissions.change(uid, moving_pod, asked.move)

    async def remove(self, uid: str) -> RemovalDocument:
        """Remove a pod and free its allocation; raises `PodNotFoundError`, `SourcePodError`.

        One that waits for its turn is removed once it is admitted.
        """

        async def remove() -> RemovalDocument:
            allocation = self.state.allocation(uid)
            if (owner := self.state.observed.sources.owner(allocation)) is not None:
                raise SourcePodError(uid, *owner)
            return await self._remove(uid)

        with operation("remove", **self._facts(uid)):
            return await self.queue.run(remove)

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
            return await self.queue.run(lambda: self._bind(uid, container, request))

    async def unbind(self, uid: str, container: str) -> BindDocument:
        """Remove the binding of a container; raises `RequestError`, for example if it has none."""
        with operation("unbind", container=container, **self._facts(uid)):
            return await self.queue.run(lambda: self._unbind(uid, container))

    async def cordon(self, request: CordonRequest) -> CordonsDocument:
        """Take CPUs or nodes out of use; raises `RequestError`s (`maintenance.cordon`)."""
        with operation("cordon", target=request.target):
            return await self.queue.run(lambda: maintenance.cordon(self.steps, request))

    async def uncordon(self, request: CordonRequest) -> CordonsDocument:
        """Use CPUs or nodes again; raises `RequestError`s (`maintenance.uncordon`)."""
        with operation("uncordon", target=request.target):
            return await self.queue.run(lambda: maintenance.uncordon(self.steps, request))

    async def reconcile(self, *, insist: bool = False) -> ReconcileDocument:
        """Compare the kernel with the ledger and repair what differs.

        Cgroups in backoff from another writer are skipped unless `insist` is set.
        """
        with operation("reconcile"):
            return await self.queue.run(lambda: self._reconcile(insist=insist))

    async def end_pods(self) -> None:
        """End the pods whose processes or unit ended (`Endings.look`)."""
        await self._endings.look()

    async def enforce(self, *uids: str) -> None:
        """Have the kernel enforce what pods are to have, whose cgroups may have changed."""
        with operation("enforce", uids=",".join(uids)):
            await self.queue.run(lambda: self.steps.enforce_pods(*uids))

    async def meet(self, created: Collection[str]) -> None:
        """Have the kernel enforce the pods in which cgroups were created, and those beside pods.

        Each moment before, a container that starts may run on its siblings' exclusive CPUs, and
        what starts in a cgroup beside the pods on any: so may a bound unit of whose CPUs, which
        systemd has on record, none is online.
        """

        async def enforce() -> None:
            around, target = self.steps.kernel.pods_around, self.state.target()
            # Where another writer contests a cgroup, only comparisons write, ever more rarely.
            contested = [each.cgroup for each in self.state.observed.contested]
            found = around(target, created) - around(target, contested)
            if uids := sorted(found & self.state.ledger.allocations.keys()):
                await self.steps.enforce_pods(*uids)
            elif self.steps.kernel.are_beside_pods(created):
                await self.steps.enforce_pool()

        with operation("meet"):
            await self.queue.run(enforce)

    def shared_pod(self, uid: str) -> SharedPod | None:
        """Return a rejected pod that runs in the shared pool all the same, else None.

        Its containers run on shared CPUs already, so room that comes later is not for them. That is
        saved: after a restart of the agent they go on as before.
        """
        return self.state.durable.shared.get(uid) or self._sharing.get(uid)

    async def share(self, pod: SharedPod) -> None:
        """Save that a pod runs shared, unless it is admitted meanwhile; raises `QueueStopped`.

        No admission that is asked for later overtakes this. That the pod runs shared is a fact, so
        that it is kept whether or not it can be saved now.
        """

        async def save() -> None:
            if pod.uid not in self.state.ledger.allocations:
                await self.steps.note(self.state.durable.with_shared(pod))

        self._sharing[pod.uid] = pod
        try:
            with operation("share", uid=pod.uid):
                await self.queue.run(save)
        finally:
            self._sharing.pop(pod.uid, None)

    async def end_shared(self, uid: str) -> None:
        """Save that a pod which ran shared has ended; raises `QueueStopped`."""

        async def save() -> None:
            await self.steps.note(self.state.durable.without_shared(uid))

        with operation("remove", uid=uid):
            await self.queue.run(save)

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
        failed = self.state.observed.records.failed(uid)
        if failed is not None and uid not in self.state.ledger.allocations:
            return await self.advice.advised_status(failed)
        allocation = self.state.allocation(uid)
        steps = self.steps
        policy = numa_policy(self.state.configured.rules, allocation)
        observed = await steps.observe(
            steps.kernel.observe, self.state.target(), allocation, policy
        )
        record = self.state.observed.records.of(uid)
        return PodDescriber.of(self.state).document(
            allocation,
            record,
            explanation=record.explanation,
            reading=observed,
            invalid=self.state.invalid,
        )

    async def _remove(self, uid: str) -> RemovalDocument:
        allocation = self.state.allocation(uid)
        ledger = admission.remove(self.state.configured.rules, self.state.ledger, uid)
        await self.steps.commit(self.state.durable.without_pod(ledger, uid))
        enforcement = await self.steps.end_pod(allocation, self.state.target())
        return RemovalDocument(
            uid=uid,
            name=allocation.name,
            namespace=allocation.namespace,
            enforcement=enforcement,
        )

    async def _bind(self, uid: str, container: str, request: BindRequest) -> BindDocument:
        """Bind a container to a cgroup and save that; raises `BindError` and `RequestError`s."""
        state, kernel = self.state, self.steps.kernel
        allocation, bindings = state.allocation(uid, container), state.durable.bindings
        binding = await self.worker.run(
            kernel.locate, state.target(), allocation, container, request
        )

        def report() -> None:
            log.info("container bound", cgroup=f"/{binding.cgroup}")
            message = f"{container} is /{binding.cgroup}"
            self.publish("ContainerBound", uid, full_name(allocation), message)

        return await self._take_bindings(bindings.with_binding(binding), binding, report)

    async def _unbind(self, uid: str, container: str) -> BindDocument:
        """Remove the binding of a container and save that; raises `BindingNotFoundError`."""
        allocation, bindings = self.state.allocation(uid, container), self.state.durable.bindings
        binding = bindings.of_container(uid, container)
        if binding is None:
            raise BindingNotFoundError(full_name(allocation), container)
        cgroup = f"/{binding.cgroup}"

        def report() -> None:
            log.info("container unbound", cgroup=cgroup)
            message = f"{container} was {cgroup}"
            self.publish("ContainerUnbound", uid, full_name(allocation), message)

        # The unbound cgroup is confined before the container's CPUs may be allocated again.
        return await self._take_bindings(bindings.without_binding(binding), binding, report)

    async def _take_bindings(
        self, bindings: Bindings, changed: Binding, report: Callable[[], None]
    ) -> BindDocument:
        """Save bindings, have the kernel enforce them, and report the one that changed."""
        steps, uid = self.steps, changed.pod_uid
        await steps.commit(replace(self.state.durable, bindings=bindings))
        await steps.enforce_pods(uid)
        await steps.after_save(report, uid)
        unenforced = details(self.state.observed.records.of(uid).unenforced)
        return BindDocument(
            uid=uid,
            container=changed.container,
            cgroup=f"/{changed.cgroup}",
            enforcement=views.enforcement_document(unenforced),
        )

    async def _reconcile(self, *, insist: bool) -> ReconcileDocument:
        started = self.clock.monotonic()
        await self.steps.check_saving()
        if self.state.parts.history is not None:
            self.state.parts.history.try_again()
        target = self.state.target()
        outcome = await self.worker.run(lambda: self.steps.kernel.reconcile(target, insist=insist))
        self.outcomes.note(outcome)
        self.outcomes.note_contest(outcome)
        if outcome.compared:
            self.state.observed.pending.pop(COMPARISON, None)
        await self._note_started(outcome)
        await self._note_ended(outcome)
        files, ledger = self.state.parts.cdi_files, self.state.ledger
        await self.worker.run(files.reconcile, ledger.allocations.values())
        seconds = self.clock.monotonic() - started
        self.metrics.reconcile_duration.observe(seconds)
        await self._note_lacking()
        online = self.state.configured.host.online
        counted = await self.worker.run(self.steps.kernel.count_intruders, target, outcome, online)
        if counted is not None:
            intruded, self.state.observed.intruding = self.state.intrusions, counted
            self.outcomes.note_intrusions(intruded)
        return self.outcomes.note_comparison(outcome, seconds)

    async def _verify(self) -> VerificationDocument:
        online = self.state.configured.host.online
        return await self.worker.run(self.steps.kernel.verify, self.state.target(), online)

    async def _take_over(self, discover: Callable[[], ConfiguredHost]) -> bool:
        before = host_facts(self.state.configured.host)
        found = await self.worker.run(discover)
        self.state.configured = found
        await self._fit_ledger()
        self.note_invalid()
        changes = host_changes(before, host_facts(found.host))
        if not changes:
            return False
        if before.withheld != found.host.withheld_cpus:
            changes += tuple(map(str, found.host.withheld))
        self.state.observed.releases += 1
        self.metrics.counters.add(names.HOST_CHANGES)
        log.warning("host changed", changes=changes)
        self.publish("HostChanged", message="; ".join(changes))
        return True

    async def _fit_ledger(self) -> None:
        """Update what is derived from allocations and policy after a host change."""
        ledger = restored(self.state.configured.rules, self.state.ledger)
        if ledger is not self.state.ledger:
            # Decisions need the new ledger whether or not it can be saved now.
            await self.steps.note(replace(self.state.durable, ledger=ledger))

    async def _note_started(self, outcome: EnforcementReport) -> None:
        """Free allocations of init containers whose successors run (the kubelet's AddContainer)."""
        rules, ledger = self.state.configured.rules, self.state.ledger
        ledger = admission.start_containers(rules, ledger, outcome.cgroups.running)
        if ledger is not self.state.ledger:
            await self.steps.note(replace(self.state.durable, ledger=ledger))
            self.state.observed.releases += 1

    async def _note_lacking(self) -> None:
        """Note the memory that pods have yet to take and that other programs have."""
        nodes = self.state.configured.rules.machine.nodes
        kernel, target = self.steps.kernel, self.state.target()
        lacking = await self.worker.run(kernel.lacking_memory, target, nodes)
        if lacking is not None:
            self.state.observed.lacking = lacking

    async def _note_ended(self, outcome: EnforcementReport) -> None:
        """Drop bindings of removed pods and replaced bindings when their processes have ended.

        Also save the uids of orphaned cgroups, so that a restart does not recover them as pods.
        """
        durable = self.state.durable
        bindings = durable.bindings.without(outcome.ended, durable.ledger.allocations)
        orphaned = durable.orphaned if outcome.orphaned is None else outcome.orphaned
        if (bindings, orphaned) != (durable.bindings, durable.orphaned):
            await self.steps.note(replace(durable, bindings=bindings, orphaned=orphaned))


def _plan_document(plan: PlannedChange) -> PlanDocument:
    return PlanDocument(
        created=tuple(f"/{cgroup}" for cgroup in plan.created),
        writes=tuple(
            WriteDocument(cgroup=f"/{write.cgroup}", file=write.file, value=write.value)
            for write in plan.writes
        ),
    )
