"""Saying no, for every source alike: a log line, an event, a counter, a status to be read later.

A pod is rejected (the managers decided so) or invalid (its manifest is no pod). Either way it
changes nothing that is held. Its status has the words of v1.PodStatus (phase `Failed`, reason,
message); the latest are kept in memory until the pod is admitted or the agent ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from agent.api import views
from agent.api.documents import (
    INVALID_MANIFEST,
    AdmissionDocument,
    ErrorBody,
    ErrorDetail,
    FailedPodDocument,
)
from agent.managers.decision import Reason
from agent.pods.identity import PodIdentity
from agent.server.metrics import names
from agent.server.reporting.records import API, RejectedPod
from agent.server.reporting.shorten import first, shortened
from agent.sources.manifests import INVALID, REJECTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.api.documents import ManifestDocument
    from agent.managers.allocations.ledger import PodAllocation
    from agent.managers.decision import Decision, Rejection
    from agent.pods.model import Pod
    from agent.server.clock import Clock
    from agent.server.errors import InvalidManifestError
    from agent.server.metrics.counters import Counters
    from agent.server.reporting.events import EventReporter
    from agent.server.state import AgentState

log = structlog.get_logger(__name__)

#: How many mistakes of an invalid manifest are told in the log and in its status.
MISTAKES_TOLD: Final = 16


class RejectionReporter:
    """Leaves the traces of every pod that is rejected or invalid."""

    def __init__(
        self, state: AgentState, counters: Counters, teller: EventReporter, clock: Clock
    ) -> None:
        self._state = state
        self._counters = counters
        self._teller = teller
        self._clock = clock

    def rejected(self, pod: Pod, decision: Decision, source: str) -> AdmissionDocument:
        """Note that a pod was rejected; return the answer.

        A conflict leaves no status: the pod of that uid is admitted.
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
                source=source,
                rejection=answer.rejection,
                explanation=answer.explanation,
            )
            self._state.records.note_rejection(RejectedPod(status, answer))
        log.warning(
            "pod rejected", source=source, reason=str(rejection.reason), why=rejection.message
        )
        message = f"{rejection.reason}: {rejection.message}"
        self._teller.tell("PodRejected", pod.uid, f"{pod.namespace}/{pod.name}", message)
        return answer

    def invalid_request(self, error: InvalidManifestError) -> None:
        """Note that a manifest that came over the API is no valid pod."""
        identity, message = error.identity, shortened(error.message)
        listed, left_out = first(error.details, MISTAKES_TOLD)
        log.warning(
            "pod invalid",
            source=API,
            uid=identity.uid,
            pod=_called(identity),
            why=message,
            mistakes=[shortened(f"{path}: {text}" if path else text) for path, text in listed],
            mistakes_left_out=left_out,
        )
        self._teller.tell("PodInvalid", identity.uid or None, _called(identity), message)
        self._note_invalid(API, identity, message, error.details)

    def invalid_file(self, document: ManifestDocument) -> None:
        """Note that a file of the manifest directory is no valid pod."""
        identity = PodIdentity(document.uid or "", document.name, document.namespace)
        message = shortened(document.message)
        log.error("manifest rejected", file=document.file, why=message)
        self._teller.tell("ManifestInvalid", identity.uid or None, _called(identity), message)
        listed, _ = first(document.details, MISTAKES_TOLD)
        details = [(detail.path, detail.message) for detail in listed]
        self._note_invalid(document.file, identity, message, details)

    def admitted(self, allocation: PodAllocation) -> None:
        """Forget that a pod was rejected or invalid before: it is admitted now."""

        def same(status: FailedPodDocument) -> bool:
            named = (status.namespace, status.name) == (allocation.namespace, allocation.name)
            return status.uid == allocation.uid or (not status.uid and named)

        self._state.records.forget_rejections(same)

    def files(self, documents: Mapping[str, ManifestDocument]) -> None:
        """Forget what was said of files that are gone, or say something else now."""

        def over(status: FailedPodDocument) -> bool:
            if status.source == API:
                return False
            document = documents.get(status.source)
            if document is None or document.state not in (REJECTED, INVALID):
                return True
            return (document.uid or "", document.name) != (status.uid, status.name)

        self._state.records.forget_rejections(over)

    def _note_invalid(
        self, source: str, identity: PodIdentity, message: str, mistakes: Sequence[tuple[str, str]]
    ) -> None:
        self._counters.add(names.ADMISSIONS, "invalid")
        held = self._state.held
        # What is admitted stays so, whatever somebody writes in its name or into its file.
        if identity.uid in held.ledger.allocations or source in held.manifests.values():
            return
        listed, _ = first(mistakes, MISTAKES_TOLD)
        status = FailedPodDocument(
            uid=identity.uid,
            name=identity.name,
            namespace=identity.namespace,
            reason=INVALID_MANIFEST,
            message=message,
            time=self._clock.time(),
            source=source,
            details=tuple(
                ErrorDetail(path=shortened(path), message=shortened(text)) for path, text in listed
            ),
        )
        self._state.records.note_rejection(RejectedPod(status))


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
        error=ErrorBody(code=str(rejection.reason), message=rejection.message),
    )


def rejection_of(decision: Decision) -> Rejection:
    """Return why a pod was rejected; raises `ValueError` for a decision that does not say."""
    if decision.rejection is None:
        raise ValueError(f"the decision on {decision.uid} neither admits nor rejects")
    return decision.rejection


def _called(identity: PodIdentity) -> str | None:
    return f"{identity.namespace}/{identity.name}" if identity.name else None
