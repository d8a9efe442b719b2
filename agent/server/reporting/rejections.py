"""Reports rejections of all sources: a log line, an event, a counter, and a stored status.

A pod is rejected (by the managers) or invalid (its manifest is not a valid pod). Neither changes an
allocation. The status has the fields of v1.PodStatus (phase `Failed`, reason, message); the latest
are kept in memory until the pod is admitted or the agent stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.api import views
from agent.api.documents import (
    INVALID_MANIFEST,
    RUNS_SHARED,
    AdmissionDocument,
    ErrorBody,
    FailedPodDocument,
)
from agent.managers.allocations.origin import API, Source
from agent.managers.decision import Reason
from agent.pods.identity import PodIdentity, full_name
from agent.server.metrics import names
from agent.server.reporting.events import current_operation
from agent.server.reporting.records import REJECTIONS_KEPT, RejectedPod
from agent.server.reporting.shorten import first, shortened
from agent.sources.errors import printable
from agent.sources.source import INVALID, REJECTED, SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.api.status import ManifestDocument
    from agent.clock import Clock
    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.decision import Decision, Rejection
    from agent.pods.identity import Named
    from agent.pods.model import Pod
    from agent.server.errors import InvalidManifestError
    from agent.server.metrics.counters import Counters
    from agent.server.reporting.events import Events
    from agent.server.state import AgentState
    from agent.yaml import Mistake

log = structlog.get_logger(__name__)

#: How many entries of a source that became invalid together are reported; the rest is counted.
INVALID_REPORTED: Final = REJECTIONS_KEPT
#: How many mistakes of an invalid manifest are in the log and in its status.
MISTAKES_SHOWN: Final = 16


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
            self._state.records.note_rejection(RejectedPod(status, source, answer, pod))
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
        known = self._state.sources[name].entries
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

        self._state.records.forget_rejections(over)

    def _note_shared(self, source: Source, document: ManifestDocument) -> None:
        """Keep the status of a pod that runs shared, with the decision, if it was made since."""
        known = self._state.records.failed(document.uid or "")
        if known is None:
            identity = PodIdentity(document.uid or "", document.name, document.namespace)
            status = self._status(identity, source, RUNS_SHARED, document.message)
            known = RejectedPod(status, source)
        status = replace(known.status, reason=RUNS_SHARED, message=document.message)
        self._state.records.note_rejection(replace(known, status=status))

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

        self._state.records.forget_rejections(same)

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
        self._state.records.note_rejection(RejectedPod(status, source))
        self._notify(status, source)


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
