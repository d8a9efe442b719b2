"""Reports what enforcement achieved: drift, pods that are not enforced or not exclusive, repairs.

In goes the `EnforcementReport` of each change and of each comparison. Out come log lines, events,
counts, and what status shows: `AgentState.observed` keeps what is not enforced and the latest
drift. What a pod lacks, and what intrudes on a pod, is reported when it differs from the last
report. Drift is reported by each comparison that finds drift.

The reporter also keeps which cgroups were observed (`cgroups`, `renewed`): the service watches
these for changes.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import structlog

from agent.api.documents.verification import DriftDocument, ReconcileDocument
from agent.managers.allocation import Origin
from agent.managers.recovery import describe_recovered
from agent.pods.model import full_name
from agent.reconcile.diff import Cause, Difference
from agent.reconcile.report import count_causes
from agent.server import metrics as names
from agent.server.pod_records import details
from cgroupfs.tree import all_ancestors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.clock import Clock
    from agent.managers.quality import Intrusion
    from agent.reconcile.report import EnforcementReport
    from agent.server.counters import Counters
    from agent.server.events import Events
    from agent.server.state import AgentState

log = structlog.get_logger(__name__)

#: The most settings of one comparison that are named in the log and in events; the others are
#: counted. One ancestor that is too narrow makes all cgroups below differ.
DRIFT_NAMED: Final = 16
#: How many of the latest differences are kept for the status.
DRIFT_KEPT: Final = 32


class OutcomeReporter:
    """Reports each `EnforcementReport` and keeps the cgroups that it names."""

    def __init__(self, state: AgentState, counters: Counters, events: Events, clock: Clock) -> None:
        #: The cgroups that were observed last.
        self.cgroups: set[str] = set()
        #: Cgroups that may have been created again since they were last watched, with all their
        #: descendants. A watch of the former directory notices nothing.
        self.renewed: set[str] = set()
        self._followers: list[Callable[[list[str]], None]] = []
        self._state = state
        self._counters = counters
        self._publish = events.publish
        self._clock = clock

    def follow(self, follower: Callable[[list[str]], None]) -> None:
        """Have `follower` called after each report, with the cgroups that were created, if any.

        The follower can watch these before the first process of the pod starts.
        """
        self._followers.append(follower)

    def note(self, report: EnforcementReport) -> None:
        """Report the result of a change or of a comparison, by these steps.

        1. Keep the cgroups to watch, and which containers run.
        2. Report drift.
        3. Report the pods that are not enforced now, or in another way than before.
        4. Report the same of the cgroups that belong to no single pod.
        5. Report the intrusions that follow from what is not enforced.
        """
        observed, allocations = self._state.observed, self._state.ledger.allocations
        intrusions_before = self._state.intrusions
        # 1.
        self._keep_cgroups(report)
        observed.records.note_running(report, allocations, self._clock.monotonic())
        if cgroups := report.first_set:
            log.info("settings applied to new cgroups", cgroups=cgroups)
        # 2.
        self._note_drift(report)
        # 3. Where the tree could not be read, what pods lacked before still holds.
        pods = report.pods if report.compared else frozenset[str]()
        changed = observed.records.note_unenforced(report.unenforced(), allocations, pods)
        for uid, differences in changed.items():
            self._counters.add(names.ENFORCEMENT_FAILURES)
            name, lines = full_name(allocations[uid]), details(differences)
            log.error("pod not enforced", uid=uid, pod=name, conditions=lines)
            self._publish("PodNotEnforced", uid, name, "; ".join(lines))
        # 4. So does what the host lacked, unless the report itself says why the tree is unreadable.
        of_host = report.of_pod("")
        if not (report.compared or of_host):
            of_host = observed.unenforced
        if of_host and details(of_host) != details(observed.unenforced):
            log.error("enforcement failed", conditions=details(of_host))
        observed.unenforced = of_host
        # 5.
        self.note_intrusions(intrusions_before)

    def note_intrusions(self, before: Mapping[str, tuple[Intrusion, ...]]) -> None:
        """Report the cgroups that intrude on a pod now and did not in `before`."""
        for uid, intrusions in self._state.intrusions.items():
            former = {intrusion.cgroup for intrusion in before.get(uid, ())}
            lines = tuple(
                str(intrusion) for intrusion in intrusions if intrusion.cgroup not in former
            )
            if lines:
                name = full_name(self._state.ledger.allocations[uid])
                log.error("pod not exclusive", uid=uid, pod=name, conditions=lines)
                self._publish("PodNotExclusive", uid, name, "; ".join(lines))

    def note_failure(self, why: str, uids: tuple[str, ...]) -> tuple[Difference, ...]:
        """Count that a step of a saved change failed; return what the pods `uids` lack then.

        Without `uids` the host lacks it. The next comparison tries again, and reports what is still
        missing.
        """
        lacking = tuple(Difference("", why, Cause.UNKNOWN, uid) for uid in uids or ("",))
        for difference in lacking:
            if difference.pod in self._state.ledger.allocations:
                self._state.observed.records.add_unenforced(difference)
            else:
                self._state.observed.unenforced = (*self._state.observed.unenforced, difference)
            self._counters.add(names.ENFORCEMENT_FAILURES)
        return lacking

    def note_contest(self, report: EnforcementReport) -> None:
        """Report each cgroup that is left to another writer for a while, once for each pause."""
        self._state.observed.contested = report.contested
        for why in report.given_way:
            self._counters.add(names.REPAIRS_POSTPONED)
            log.warning("cgroup is being modified by another writer, backing off", why=why)
            self._publish("DriftContested", message=why)

    def note_comparison(self, report: EnforcementReport, seconds: float) -> ReconcileDocument:
        """Count a comparison that took `seconds`, date the conditions, and return its document."""
        differences = details(report.remaining)
        result = "failed" if differences else "repaired" if report.drift else "clean"
        self._counters.add(names.RECONCILES, result)
        now = self._clock.time()
        if not differences:
            self._state.observed.last_agreement = now
        self._state.observed.last_reconcile = ReconcileDocument(
            found=dict(count_causes(report.drift)),
            repaired=dict(report.repaired),
            differences=differences,
            notes=report.notes,
            finished=now,
            seconds=seconds,
        )
        # Since when a condition holds must not depend on when somebody reads the status.
        self._state.dated_conditions(now)
        return self._state.observed.last_reconcile

    def note_recovered(self) -> None:
        """Report allocations recovered from cgroups and allocations that they displaced."""
        for allocation in self._state.ledger.allocations.values():
            if allocation.origin is Origin.RECOVERED:
                text = describe_recovered(allocation)
                self._publish("PodRecovered", allocation.uid, full_name(allocation), text)
        for uid, displaced in self._state.observed.displaced.items():
            self._publish("AllocationDisplaced", uid, full_name(displaced), str(displaced))

    def _keep_cgroups(self, report: EnforcementReport) -> None:
        """Keep the observed cgroups, and tell followers which of them were created."""
        self.renewed.update(report.renewed)
        paths = report.cgroups.paths
        if report.pods is not None:  # some pods were observed, and the cgroups of others stay
            self.cgroups.update(paths)
        elif paths:
            before, self.cgroups = self.cgroups, set(paths)
            if self.renewed and before != self.cgroups:
                # Removed cgroups need no watch. If nothing watches cgroups, nothing else clears
                # the set.
                self.renewed &= self.cgroups | all_ancestors(self.cgroups)
        created = [cgroup for cgroup in report.renewed if cgroup in self.cgroups]
        for follower in self._followers:
            follower(created)

    def _note_drift(self, report: EnforcementReport) -> None:
        """Report the drift that a comparison found, with one event for each pod.

        Contested settings are counted only: `note_contest` reports them, and they may differ at
        every comparison.
        """
        causes, repaired_causes = count_causes(report.drift), report.repaired
        for cause, count in causes.items():
            self._counters.add(names.DRIFT_FOUND, cause, by=count)
        for cause, count in repaired_causes.items():
            self._counters.add(names.DRIFT_REPAIRED, cause, by=count)
        contested = {(setting.cgroup, setting.file) for setting in report.contested}
        drift = [
            difference
            for difference in report.drift
            if (difference.cgroup, difference.file) not in contested
        ]
        if not drift:
            return
        repaired = frozenset(report.repaired_drift)
        named = tuple(
            self._document(difference, repaired=difference in repaired)
            for difference in drift[:DRIFT_NAMED]
        )
        self._state.observed.drift = (*self._state.observed.drift, *named)[-DRIFT_KEPT:]
        more = len(drift) - len(named)
        log.warning(
            "drift found",
            found=dict(causes),
            repaired=dict(repaired_causes),
            settings=[document.line() for document in named],
            more=more,
        )
        for (uid, pod), group in groupby(named, lambda document: (document.uid, document.pod)):
            settings = tuple(group)
            message = "; ".join(document.line() for document in settings)
            self._publish("DriftFound", uid or None, pod or None, message, settings)
        if more:
            message = (
                f"{more} more settings differ; 'numawarden check --cgroups' lists all that still do"
            )
            self._publish("DriftFound", message=message)

    def _document(self, difference: Difference, *, repaired: bool) -> DriftDocument:
        allocation = self._state.ledger.allocations.get(difference.pod)
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
            writer=difference.writer,
            repaired=repaired,
        )
