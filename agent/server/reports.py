"""What the agent says of its pods and of itself: documents, log lines, events, and counts.

`PodDescriber`, `map_now` and `status_document` make documents of the state. `OutcomeReporter`
reports the result of each enforcement. `RejectionReporter` reports the pods of all sources that are
rejected (by the managers) or invalid (the manifest is not a valid pod); neither changes an
allocation. Their status has the fields of v1.PodStatus (phase `Failed`, reason, message); the
latest are kept in memory until the pod is admitted or the agent stops.
"""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent import __version__
from agent.api import views
from agent.api.documents import (
    INVALID_MANIFEST,
    RUNS_SHARED,
    AdmissionDocument,
    DriftDocument,
    ErrorBody,
    FailedPodDocument,
    ReconcileDocument,
    StateDirectoryDocument,
    StatusDocument,
)
from agent.api.map import map_of_allocations
from agent.api.views import cordon_documents, pod_document
from agent.managers.allocation import API, Origin, Source
from agent.managers.cpu.manager import exclusive_cpus, shared_cpus
from agent.managers.decision import Reason
from agent.managers.quality import verdict
from agent.managers.recovery import describe_recovered
from agent.pods.model import PodIdentity, full_name
from agent.reconcile.diff import Cause, Difference
from agent.reconcile.report import count_causes
from agent.server import metrics as names
from agent.server.events import current_operation
from agent.server.log import first, shortened
from agent.server.pod_records import REJECTIONS_KEPT, RejectedPod, details
from agent.sources.source import INVALID, REJECTED, SHARED
from agent.text import printable
from cgroupfs.tree import all_ancestors
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.api.documents import (
        ExplanationDocument,
        KernelDocument,
        ManifestDocument,
        PodDocument,
    )
    from agent.api.map import MapDocument
    from agent.clock import Clock
    from agent.devices.cdi import CdiFiles
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision, Rejection
    from agent.managers.device.kubelet import KubeletListing
    from agent.managers.quality import Intrusion
    from agent.managers.rules import EffectivePolicy
    from agent.managers.violations import Violation
    from agent.pods.model import Named, Pod
    from agent.reconcile.report import EnforcementReport
    from agent.server.errors import InvalidManifestError
    from agent.server.events import Events
    from agent.server.metrics import Counters
    from agent.server.pod_records import PodRecord
    from agent.server.state import AgentState
    from agent.yaml import Mistake


log = structlog.get_logger(__name__)

#: How many entries of a source that became invalid together are reported; the rest is counted.
INVALID_REPORTED: Final = REJECTIONS_KEPT
#: How many mistakes of an invalid manifest are in the log and in its status.
MISTAKES_SHOWN: Final = 16
#: How many settings of one comparison are named in the log and in events; the rest is counted.
#: One ancestor that is too narrow makes all cgroups below differ.
DRIFT_NAMED: Final = 16
#: How many of the latest differences are kept for the status.
DRIFT_KEPT: Final = 32


def map_now(state: AgentState, now: float) -> Callable[[], MapDocument]:
    """Return a function that makes the map of the state as of `now` (Unix time), in any thread.

    On large hosts that takes long enough to be felt by other users of the loop.
    """
    configured, ledger, invalid = state.configured, state.ledger, state.invalid
    kubelet, intruded = state.kubelet_listing, state.intrusions
    records = {uid: state.observed.records.of(uid) for uid in ledger.allocations}
    not_found = {uid: (each.absence, each.not_found) for uid, each in records.items()}

    def drawn() -> MapDocument:
        document = map_of_allocations(
            configured.host,
            configured.rules,
            ledger,
            not_found=not_found,
            invalid=invalid,
            intrusions=intruded,
            kubelet=kubelet,
        )
        return replace(document, hostname=os.uname().nodename, time=now)

    return drawn


class PodDescriber(Struct, frozen=True):
    """Makes documents of pods under one policy; `pool` has the CPUs of the node's shared pool.

    `intrusions` is what may use exclusive CPUs of other pods, by the uid of these pods.
    """

    rules: EffectivePolicy
    pool: Mask
    cdi_files: CdiFiles
    kubelet: KubeletListing
    intrusions: Mapping[str, tuple[Intrusion, ...]]

    @classmethod
    def of(cls, state: AgentState, pool: Mask | None = None) -> PodDescriber:
        """Return the describer of a state as of now, with another pool if one is given."""
        return cls(
            state.configured.rules,
            state.shared_cpus if pool is None else pool,
            state.parts.cdi_files,
            state.kubelet_listing,
            state.intrusions,
        )

    def document(
        self,
        allocation: PodAllocation,
        record: PodRecord | None,
        *,
        explanation: ExplanationDocument | None = None,
        kernel: Mapping[str | None, tuple[KernelDocument, ...]] | None = None,
        invalid: Iterable[Violation] = (),
    ) -> PodDocument:
        """Return the document of a pod; without a `record` the kernel was not observed."""
        intruding = self.intrusions.get(allocation.uid, ())
        return pod_document(
            allocation,
            self.pool,
            record=record,
            explanation=explanation,
            kernel=kernel,
            invalid=invalid,
            intruding=intruding,
            judgements=verdict(self.rules, allocation, intruding),
            cdi_names=self.cdi_files.names(allocation),
            kubelet=self.kubelet,
        )


def pods_now(state: AgentState) -> Callable[[], tuple[PodDocument, ...]]:
    """Return a function that makes the documents of all pods as of now, in any thread.

    They are in the order of admission.
    """
    describer = PodDescriber.of(state)
    invalid: dict[str, list[Violation]] = defaultdict(list)
    for violation in state.invalid:
        invalid[violation.uid].append(violation)
    known = [
        (allocation, replace(state.observed.records.of(uid)), invalid.get(uid, ()))
        for uid, allocation in state.ledger.allocations.items()
    ]
    return lambda: tuple(
        describer.document(allocation, record, invalid=violated)
        for allocation, record, violated in known
    )


class RejectionReporter:
    """Logs, counts and stores rejected and invalid pods."""

    def __init__(self, state: AgentState, counters: Counters, events: Events, clock: Clock) -> None:
        self._followers: list[Callable[[FailedPodDocument, Source], None]] = []
        self._state = state
        self._counters = counters
        self._publish = events.publish
        self._clock = clock

    def follow(self, follower: Callable[[FailedPodDocument, Source], None]) -> None:
        """Have `follower` called with the status and source of each rejected or invalid pod."""
        self._followers.append(follower)

    def rejected(self, pod: Pod, decision: Decision, source: Source) -> AdmissionDocument:
        """Report a rejected pod; return the answer.

        A conflict is not stored: a pod of that uid or that name is admitted.
        """
        rejection = rejection_of(decision)
        conflict = rejection.reason == Reason.CONFLICT
        self._counters.add(names.ADMISSIONS, "conflict" if conflict else "rejected")
        self._counters.add(names.REJECTIONS, str(rejection.reason))
        answer = rejection_answer(pod, decision)
        if not conflict:
            status = FailedPodDocument(
                uid=pod.uid,
                name=pod.name,
                namespace=pod.namespace,
                reason=str(rejection.reason),
                message=rejection.message,
                time=self._clock.time(),
                source=str(source),
                rejection=answer.rejection,
                explanation=answer.explanation,
                kubelet_devices=views.given_documents(pod.given_devices),
            )
            self._state.observed.records.note_rejection(RejectedPod(status, source, answer, pod))
            self._notify(status, source)
        log.warning(
            "pod rejected", source=str(source), reason=str(rejection.reason), why=rejection.message
        )
        message = f"{rejection.reason}: {rejection.message}"
        given = pod.given_devices
        self._publish("PodRejected", pod.uid, full_name(pod), message, given=given)
        return answer

    def invalid_request(self, error: InvalidManifestError) -> None:
        """Report an invalid manifest received over the API."""
        identity, message = error.identity, shortened(error.message)
        listed, left_out = first(error.details, MISTAKES_SHOWN)
        log.warning(
            "pod invalid",
            source=str(API),
            uid=identity.uid,
            pod=_called(identity),
            why=message,
            mistakes=[shortened(str(mistake)) for mistake in listed],
            mistakes_left_out=left_out,
        )
        self._publish("PodInvalid", identity.uid or None, _called(identity), message)
        self._note_invalid(API, identity, message, error.details)

    def shared(self, pod: Pod, source: Source, why: str) -> None:
        """Report that a rejected pod runs in the shared pool all the same."""
        message = f"runs in the shared pool, without CPUs and memory of its own: {why}"
        self._pod_event("PodShared", RUNS_SHARED, pod, source, message)

    def resize(self, pod: PodAllocation, why: str) -> None:
        """Report that a resize of a pod of the kubelet is not done."""
        if pod.source is not None:
            self._pod_event("PodResizeRejected", "ResizeRejected", pod, pod.source, why)

    def _pod_event(self, kind: str, reason: str, pod: Named, source: Source, message: str) -> None:
        self._publish(kind, pod.uid, full_name(pod), message)
        self._notify(self._status(pod, source, reason, message), source)

    def _status(self, pod: Named, source: Source, reason: str, message: str) -> FailedPodDocument:
        return FailedPodDocument(
            uid=pod.uid,
            name=pod.name,
            namespace=pod.namespace,
            reason=reason,
            message=message,
            time=self._clock.time(),
            source=str(source),
        )

    def entries(self, name: str, documents: Mapping[str, ManifestDocument]) -> None:
        """Report entries of a source that became invalid, by key; drop what is over."""
        known = self._state.observed.sources[name].entries
        new = [
            (key, document)
            for key, document in documents.items()
            if document.state == INVALID and document != known.get(key)
        ]
        for key, document in new[:INVALID_REPORTED]:
            self._invalid_entry(Source(name, key), document)
        if (more := len(new) - INVALID_REPORTED) > 0:
            log.error("more manifests rejected", source=name, manifests=more)
            self._counters.add(names.ADMISSIONS, "invalid", by=more)

        for key, document in documents.items():
            if document.state == SHARED:
                self._note_shared(Source(name, key), document)

        def over(rejected: RejectedPod) -> bool:
            status, source = rejected.status, rejected.source
            if source.name != name:
                return False
            document = documents.get(source.key)
            if document is None or document.state not in (REJECTED, INVALID, SHARED):
                return True
            return (document.uid or "", document.name) != (status.uid, status.name)

        self._state.observed.records.forget_rejections(over)

    def _note_shared(self, source: Source, document: ManifestDocument) -> None:
        """Keep the status of a pod that runs shared, with the decision, if it was made since."""
        known = self._state.observed.records.failed(document.uid or "")
        if known is None:
            identity = PodIdentity(document.uid or "", document.name, document.namespace)
            status = self._status(identity, source, RUNS_SHARED, document.message)
            known = RejectedPod(status, source)
        status = replace(known.status, reason=RUNS_SHARED, message=document.message)
        self._state.observed.records.note_rejection(replace(known, status=status))

    def _invalid_entry(self, source: Source, document: ManifestDocument) -> None:
        identity = PodIdentity(document.uid or "", document.name, document.namespace)
        message = shortened(document.message)
        listed, left_out = first(document.details, MISTAKES_SHOWN)
        log.error(
            "manifest rejected",
            source=source.name,
            file=document.file,
            why=message,
            mistakes=[shortened(str(mistake)) for mistake in listed],
            mistakes_left_out=left_out,
        )
        said = f"{document.file}: {message}"
        self._publish("ManifestInvalid", identity.uid or None, _called(identity), said)
        self._note_invalid(source, identity, message, document.details)

    def admitted(self, allocation: PodAllocation) -> None:
        """Drop earlier rejections of a pod that is admitted now."""

        def same(rejected: RejectedPod) -> bool:
            status = rejected.status
            named = (status.namespace, status.name) == (allocation.namespace, allocation.name)
            return status.uid == allocation.uid or (not status.uid and named)

        self._state.observed.records.forget_rejections(same)

    def _notify(self, status: FailedPodDocument, source: Source) -> None:
        for follower in self._followers:
            follower(status, source)

    def _note_invalid(
        self,
        source: Source,
        identity: PodIdentity,
        message: str,
        mistakes: tuple[Mistake, ...],
    ) -> None:
        self._counters.add(names.ADMISSIONS, "invalid")
        admitted = self._state.ledger.allocations
        # An invalid manifest or file does not affect a pod that is admitted.
        if identity.uid in admitted or (
            source.key and any(known.source == source for known in admitted.values())
        ):
            return
        listed, _ = first(mistakes, MISTAKES_SHOWN)
        status = FailedPodDocument(
            uid=identity.uid,
            name=identity.name,
            namespace=identity.namespace,
            reason=INVALID_MANIFEST,
            message=message,
            time=self._clock.time(),
            source=printable(str(source)),
            details=tuple(
                replace(each, path=shortened(each.path), message=shortened(each.message))
                for each in listed
            ),
        )
        self._state.observed.records.note_rejection(RejectedPod(status, source))
        self._notify(status, source)


def admission_answer(
    state: AgentState,
    decision: Decision,
    allocation: PodAllocation,
    record: PodRecord,
    *,
    dry_run: bool = False,
) -> AdmissionDocument:
    """Return the answer to a pod that is, or with `dry_run` would be, admitted."""
    # Pods that were decided together with this one may have made the pool smaller.
    ledger = decision.ledger if dry_run else state.ledger
    describer = PodDescriber.of(state, shared_cpus(state.configured.rules, ledger))
    return AdmissionDocument(
        uid=allocation.uid,
        name=allocation.name,
        namespace=allocation.namespace,
        admitted=True,
        dry_run=dry_run,
        already_admitted=decision.already_admitted,
        pod=describer.document(allocation, None if dry_run else record),
        explanation=record.explanation or views.explanation_document(decision),
    )


def rejection_answer(pod: Pod, decision: Decision, *, dry_run: bool = False) -> AdmissionDocument:
    """Return the answer to a pod that was rejected."""
    rejection = rejection_of(decision)
    return AdmissionDocument(
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        admitted=False,
        dry_run=dry_run,
        rejection=views.rejection_document(rejection),
        explanation=views.explanation_document(decision),
        error=ErrorBody(
            code=str(rejection.reason),
            message=rejection.message,
            operation=current_operation(),
        ),
    )


def rejection_of(decision: Decision) -> Rejection:
    """Return why a pod was rejected; raises `ValueError` for a decision without a reason."""
    if decision.rejection is None:
        raise ValueError(f"the decision on {decision.uid} neither admits nor rejects")
    return decision.rejection


def _called(identity: PodIdentity) -> str | None:
    return full_name(identity) if identity.name else None


def status_document(state: AgentState, now: float) -> StatusDocument:
    """Return the status of the agent with all that is not as it should be, at a Unix time."""
    host, unready = state.configured.host, state.unready()
    allocations = state.ledger.allocations.values()
    rejections = state.observed.records.rejections.values()
    return StatusDocument(
        version=__version__,
        hostname=os.uname().nodename,
        time=now,
        kubernetes_version=state.configured.governing.version,
        kubernetes_version_source=state.configured.governing.source,
        pid=os.getpid(),
        started=state.start.started,
        ready=unready is None,
        unready=unready or "",
        state=None
        if state.start.directory is None
        else StateDirectoryDocument(
            directory=str(state.start.directory), free=state.observed.free_bytes
        ),
        configuration=state.start.configuration,
        policy=views.policy_document(state.configured.rules.policy),
        online_cpus=str(host.online),
        nodes=str(Mask.from_ids(node.id for node in host.nodes)),
        withheld=tuple(map(views.withheld_document, host.withheld)),
        shared_pool=str(state.shared_pool),
        exclusive_cpus=str(exclusive_cpus(state.ledger)),
        pods=len(allocations),
        containers=sum(len(allocation.containers) for allocation in allocations),
        rejected=tuple(each.answer for each in rejections if each.answer is not None),
        last_reconcile=state.observed.last_reconcile,
        manifests=tuple(state.entries()),
        conditions=state.dated_conditions(now),
        drift=state.observed.drift,
        runtime=None if state.parts.runtime is None else state.parts.runtime(),
        cordons=tuple(cordon_documents(state.durable.cordons)),
        cordoned_cpus=str(state.configured.rules.cordoned_cpus),
        invalid=state.invalid,
        failed=state.observed.records.failed_pods(),
    )


class OutcomeReporter:
    """Reports each `EnforcementReport` and remembers the cgroups that it names."""

    def __init__(self, state: AgentState, counters: Counters, events: Events, clock: Clock) -> None:
        #: The cgroups of the last observation, to be watched for changes.
        self.cgroups: set[str] = set()
        #: Cgroups whose files, and those of all descendants, may have been created again.
        self.renewed: set[str] = set()
        self._followers: list[Callable[[list[str]], None]] = []
        self._state = state
        self._counters = counters
        self._publish = events.publish
        self._clock = clock

    def follow(self, follower: Callable[[list[str]], None]) -> None:
        """Have the cgroups that a change created watched, before the pod's first process starts."""
        self._followers.append(follower)

    def note(self, outcome: EnforcementReport) -> None:
        """Count and report the result of a change or a comparison."""
        intruded = self._state.intrusions
        self._note_cgroups(outcome)
        allocations = self._state.ledger.allocations
        self._state.observed.records.note_running(outcome, allocations, self._clock.monotonic())
        if cgroups := outcome.first_set:
            log.info("settings applied to new cgroups", cgroups=cgroups)
        self._note_drift(outcome)
        pods = outcome.pods if outcome.compared else frozenset[str]()
        news = self._state.observed.records.note_unenforced(outcome.unenforced(), allocations, pods)
        for uid, differing in news.items():
            self._counters.add(names.ENFORCEMENT_FAILURES)
            name, lines = full_name(allocations[uid]), details(differing)
            log.error("pod not enforced", uid=uid, pod=name, conditions=lines)
            self._publish("PodNotEnforced", uid, name, "; ".join(lines))
        outside = outcome.of_pod("")
        if not (outcome.compared or outside):
            outside = self._state.observed.unenforced
        if outside and details(outside) != details(self._state.observed.unenforced):
            log.error("enforcement failed", conditions=details(outside))
        self._state.observed.unenforced = outside
        self.note_intrusions(intruded)

    def note_intrusions(self, before: Mapping[str, tuple[Intrusion, ...]]) -> None:
        """Report the pods that cgroups of others intrude on since now."""
        for uid, found in self._state.intrusions.items():
            known = {each.cgroup for each in before.get(uid, ())}
            news = tuple(str(each) for each in found if each.cgroup not in known)
            if news:
                name = full_name(self._state.ledger.allocations[uid])
                log.error("pod not exclusive", uid=uid, pod=name, conditions=news)
                self._publish("PodNotExclusive", uid, name, "; ".join(news))

    def failed(self, why: str, uids: tuple[str, ...]) -> tuple[Difference, ...]:
        """Report that a step of a saved change failed: pods, or the host, lack what it was for.

        The next comparison does what is missing, and shows what still is.
        """
        lacking = tuple(Difference("", why, Cause.UNKNOWN, uid) for uid in uids or ("",))
        for difference in lacking:
            if difference.pod in self._state.ledger.allocations:
                self._state.observed.records.add_unenforced(difference)
            else:
                self._state.observed.unenforced = (*self._state.observed.unenforced, difference)
            self._counters.add(names.ENFORCEMENT_FAILURES)
        return lacking

    def _note_cgroups(self, outcome: EnforcementReport) -> None:
        self.renewed.update(outcome.renewed)
        paths = outcome.cgroups.paths
        if outcome.pods is not None:
            self.cgroups.update(paths)
        elif paths:
            before, self.cgroups = self.cgroups, set(paths)
            if self.renewed and before != self.cgroups:
                # Removed cgroups need no watch; without watches the set would only grow.
                self.renewed &= self.cgroups | all_ancestors(self.cgroups)
        created = [cgroup for cgroup in outcome.renewed if cgroup in self.cgroups]
        for follower in self._followers:
            follower(created)

    def note_contest(self, outcome: EnforcementReport) -> None:
        """Report each backoff from a cgroup that another writer modifies once."""
        self._state.observed.contested = outcome.contested
        for why in outcome.given_way:
            self._counters.add(names.REPAIRS_POSTPONED)
            log.warning("cgroup is being modified by another writer, backing off", why=why)
            self._publish("DriftContested", message=why)

    def reconciled(self, outcome: EnforcementReport, seconds: float) -> ReconcileDocument:
        """Count and return the result of a reconcile that took `seconds`; date the conditions."""
        differences = details(outcome.remaining)
        result = "failed" if differences else "repaired" if outcome.drift else "clean"
        self._counters.add(names.RECONCILES, result)
        now = self._clock.time()
        if not differences:
            self._state.observed.last_agreement = now
        self._state.observed.last_reconcile = ReconcileDocument(
            found=dict(count_causes(outcome.drift)),
            repaired=dict(outcome.repaired),
            differences=differences,
            notes=outcome.notes,
            finished=now,
            seconds=seconds,
        )
        # Since when a condition has been there must not depend on when the status is read.
        self._state.dated_conditions(now)
        return self._state.observed.last_reconcile

    def _note_drift(self, outcome: EnforcementReport) -> None:
        """Report the drift that a comparison found, with one event for each pod.

        What is contested was reported as such, and may differ at every comparison: it is counted.
        """
        found, repaired = count_causes(outcome.drift), outcome.repaired
        for cause, count in found.items():
            self._counters.add(names.DRIFT_FOUND, cause, by=count)
        for cause, count in repaired.items():
            self._counters.add(names.DRIFT_REPAIRED, cause, by=count)
        known = {(each.cgroup, each.file) for each in outcome.contested}
        drift = [each for each in outcome.drift if (each.cgroup, each.file) not in known]
        if not drift:
            return
        gone = frozenset(outcome.repaired_drift)
        named = tuple(
            self._document(difference, repaired=difference in gone)
            for difference in drift[:DRIFT_NAMED]
        )
        self._state.observed.drift = (*self._state.observed.drift, *named)[-DRIFT_KEPT:]
        more = len(drift) - len(named)
        log.warning(
            "drift found",
            found=dict(found),
            repaired=dict(repaired),
            settings=[each.line() for each in named],
            more=more,
        )
        for (uid, pod), group in groupby(named, lambda each: (each.uid, each.pod)):
            settings = tuple(group)
            message = "; ".join(each.line() for each in settings)
            self._publish("DriftFound", uid or None, pod or None, message, settings)
        if more:
            message = (
                f"{more} more settings differ; 'numawarden check --cgroups' lists all that still do"
            )
            self._publish("DriftFound", message=message)

    def note_recovered(self) -> None:
        """Report allocations recovered from cgroups and allocations that they displaced."""
        for allocation in self._state.ledger.allocations.values():
            if allocation.origin is Origin.RECOVERED:
                shown = describe_recovered(allocation)
                name = full_name(allocation)
                self._publish("PodRecovered", allocation.uid, name, shown)
        for uid, displaced in self._state.observed.displaced.items():
            name = full_name(displaced)
            self._publish("AllocationDisplaced", uid, name, str(displaced))

    def _document(self, difference: Difference, *, repaired: bool) -> DriftDocument:
        allocation, writer = self._state.ledger.allocations.get(difference.pod), difference.writer
        return DriftDocument(
            time=self._clock.time(),
            uid=difference.pod,
            pod="" if allocation is None else full_name(allocation),
            container=difference.container,
            cgroup=f"/{difference.cgroup}",
            file=difference.file,
            observed=difference.observed,
            desired=difference.desired,
            cause=str(difference.cause),
            detail=difference.detail,
            writer=writer,
            repaired=repaired,
        )
