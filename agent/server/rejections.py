"""Reports pods that do not get what they ask for: rejected, invalid, shared, or not resized.

In go a decision that rejects a pod, an invalid manifest, and the entries of a source. Out come a
log line, an event, a count, and a status with the fields of v1.PodStatus (phase `Failed`, reason,
message). Followers are called with each status. `PodRecords` keeps the latest statuses of rejected
and invalid pods until the pod is admitted, its source asks for something else, or the agent stops.

A report changes no allocation. A request whose uid or name an admitted pod has (a conflict), and an
invalid manifest of an admitted pod, are reported, but leave no status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.api import views
from agent.api.documents.rejections import INVALID_MANIFEST, RUNS_SHARED, FailedPodDocument
from agent.managers.allocation import API, Source
from agent.managers.decision import Reason
from agent.pods.model import PodIdentity, full_name
from agent.server import metrics as names
from agent.server.log import first, shortened
from agent.server.pod_records import REJECTIONS_KEPT, RejectedPod
from agent.server.state_documents import rejection_answer, rejection_of
from agent.sources.source import INVALID, REJECTED, SHARED
from agent.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.api.documents.admissions import AdmissionDocument
    from agent.api.documents.status import ManifestDocument
    from agent.clock import Clock
    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision
    from agent.pods.model import Named, Pod
    from agent.server.counters import Counters
    from agent.server.errors import InvalidManifestError
    from agent.server.events import Events
    from agent.server.state import AgentState
    from agent.yaml import Mistake

log = structlog.get_logger(__name__)

#: The most entries of a source that are reported one by one when they become invalid together; the
#: others are counted.
INVALID_REPORTED: Final = REJECTIONS_KEPT
#: The most mistakes of an invalid manifest in its log line and in its status.
MISTAKES_SHOWN: Final = 16


class RejectionReporter:
    """Logs, publishes, counts and keeps rejected and invalid pods."""

    def __init__(self, state: AgentState, counters: Counters, events: Events, clock: Clock) -> None:
        self._followers: list[Callable[[FailedPodDocument, Source], None]] = []
        self._state = state
        self._counters = counters
        self._publish = events.publish
        self._clock = clock

    def follow(self, follower: Callable[[FailedPodDocument, Source], None]) -> None:
        """Have `follower` called with each status from now on, and with the source of the pod."""
        self._followers.append(follower)

    def report_rejection(
        self, pod: Pod, decision: Decision, source: Source, *, moves: bool = False
    ) -> AdmissionDocument:
        """Report a rejected pod, of which a move may be rejected alone; return the answer."""
        rejection = rejection_of(decision)
        conflict = rejection.reason == Reason.CONFLICT
        if not conflict and pod.uid in self._state.ledger.allocations:
            return self._report_rejected_change(pod, decision, source, moves=moves)
        self._counters.add(names.ADMISSIONS, "conflict" if conflict else "rejected")
        self._counters.add(names.REJECTIONS, str(rejection.reason))
        answer = rejection_answer(pod, decision)
        if not conflict:
            status = replace(
                self._status(pod, source, str(rejection.reason), rejection.message),
                rejection=answer.rejection,
                explanation=answer.explanation,
                kubelet_devices=views.kubelet_device_documents(pod.given_devices),
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

    def _report_rejected_change(
        self, pod: Pod, decision: Decision, source: Source, *, moves: bool
    ) -> AdmissionDocument:
        """Report a pod that does not get other amounts or another place, and keeps what it has."""
        rejection = rejection_of(decision)
        reason, why = str(rejection.reason), rejection.message
        self._counters.add(names.MOVES if moves else names.RESIZES, "rejected")
        if moves:
            # Nothing of the pod is otherwise than asked for, so it has no status of a failure.
            log.warning("move rejected", source=str(source), reason=reason, why=why)
            self._publish("PodMoveRejected", pod.uid, full_name(pod), f"{reason}: {why}")
            return rejection_answer(pod, decision)
        log.warning("resize rejected", source=str(source), reason=reason, why=why)
        self._report_running("PodResizeRejected", "ResizeRejected", pod, source, f"{reason}: {why}")
        return rejection_answer(pod, decision)

    def report_invalid_request(self, error: InvalidManifestError) -> None:
        """Report an invalid manifest received over the API."""
        identity, message = error.identity, shortened(error.message)
        listed, left_out = first(error.details, MISTAKES_SHOWN)
        log.warning(
            "pod invalid",
            source=str(API),
            uid=identity.uid,
            pod=_name_in_events(identity),
            why=message,
            mistakes=[shortened(str(mistake)) for mistake in listed],
            mistakes_left_out=left_out,
        )
        self._publish("PodInvalid", identity.uid or None, _name_in_events(identity), message)
        self._note_invalid(API, identity, message, error.details)

    def report_shared(self, pod: Pod, source: Source, why: str) -> None:
        """Report that a rejected pod runs all the same, in the shared pool."""
        message = f"runs in the shared pool, without CPUs and memory of its own: {why}"
        self._report_running("PodShared", RUNS_SHARED, pod, source, message)

    def report_resize(self, pod: PodAllocation, why: str) -> None:
        """Report that the agent does not follow a resize of a kubelet's pod."""
        if pod.source is not None:
            self._report_running("PodResizeRejected", "ResizeRejected", pod, pod.source, why)

    def report_entries(self, name: str, documents: Mapping[str, ManifestDocument]) -> None:
        """Report what changed in the entries of a source; `documents` are all of them, by key.

        Call this before the state has the new entries.
        """
        # 1. Entries that became invalid, or are invalid in another way, are reported.
        before = self._state.observed.sources.by_name[name].entries
        news = [
            (key, document)
            for key, document in documents.items()
            if document.state == INVALID and document != before.get(key)
        ]
        for key, document in news[:INVALID_REPORTED]:
            self._report_invalid_entry(Source(name, key), document)
        if (more := len(news) - INVALID_REPORTED) > 0:
            log.error("more manifests rejected", source=name, manifests=more)
            self._counters.add(names.ADMISSIONS, "invalid", by=more)
        # 2. Pods that run in the shared pool keep a status that says so.
        for key, document in documents.items():
            if document.state == SHARED:
                self._keep_shared(Source(name, key), document)

        # 3. A status goes once the entry is gone, asks for another pod, or did not fail.
        def outdated(rejection: RejectedPod) -> bool:
            status, source = rejection.status, rejection.source
            if source.name != name:
                return False
            document = documents.get(source.key)
            if document is None or document.state not in (REJECTED, INVALID, SHARED):
                return True
            return (document.uid or "", document.name) != (status.uid, status.name)

        self._state.observed.records.forget_rejections(outdated)

    def forget(self, allocation: PodAllocation) -> None:
        """Drop the statuses of a pod that is admitted now."""

        def is_of_pod(rejection: RejectedPod) -> bool:
            status = rejection.status
            namesake = (status.namespace, status.name) == (allocation.namespace, allocation.name)
            return status.uid == allocation.uid or (not status.uid and namesake)

        self._state.observed.records.forget_rejections(is_of_pod)

    def _report_running(
        self, kind: str, reason: str, pod: Named, source: Source, message: str
    ) -> None:
        """Report a pod that runs in another way than asked for; its status is not kept."""
        self._publish(kind, pod.uid, full_name(pod), message)
        self._notify(self._status(pod, source, reason, message), source)

    def _report_invalid_entry(self, source: Source, document: ManifestDocument) -> None:
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
        text = f"{document.file}: {message}"
        self._publish("ManifestInvalid", identity.uid or None, _name_in_events(identity), text)
        self._note_invalid(source, identity, message, document.details)

    def _note_invalid(
        self,
        source: Source,
        identity: PodIdentity,
        message: str,
        mistakes: tuple[Mistake, ...],
    ) -> None:
        """Count an invalid manifest, and keep its status unless its pod is admitted."""
        self._counters.add(names.ADMISSIONS, "invalid")
        allocations = self._state.ledger.allocations
        if identity.uid in allocations:
            return
        # A file from which a pod was admitted became invalid: the pod stays as it is.
        if source.key and any(pod.source == source for pod in allocations.values()):
            return
        listed, _ = first(mistakes, MISTAKES_SHOWN)
        status = replace(
            self._status(identity, source, INVALID_MANIFEST, message),
            details=tuple(
                replace(mistake, path=shortened(mistake.path), message=shortened(mistake.message))
                for mistake in listed
            ),
        )
        self._state.observed.records.note_rejection(RejectedPod(status, source))
        self._notify(status, source)

    def _keep_shared(self, source: Source, document: ManifestDocument) -> None:
        """Keep the status of a pod that runs in the shared pool.

        The decision that rejected it is kept with it, where this agent made it since its start.
        """
        rejection = self._state.observed.records.failed(document.uid or "")
        if rejection is None:
            identity = PodIdentity(document.uid or "", document.name, document.namespace)
            status = self._status(identity, source, RUNS_SHARED, document.message)
            rejection = RejectedPod(status, source)
        status = replace(rejection.status, reason=RUNS_SHARED, message=document.message)
        self._state.observed.records.note_rejection(replace(rejection, status=status))

    def _status(self, pod: Named, source: Source, reason: str, message: str) -> FailedPodDocument:
        return FailedPodDocument(
            uid=pod.uid,
            name=pod.name,
            namespace=pod.namespace,
            reason=reason,
            message=message,
            time=self._clock.time(),
            source=printable(str(source)),
        )

    def _notify(self, status: FailedPodDocument, source: Source) -> None:
        for follower in self._followers:
            follower(status, source)


def _name_in_events(identity: PodIdentity) -> str | None:
    """Return namespace and name of a pod, None where the manifest has no name."""
    return full_name(identity) if identity.name else None
