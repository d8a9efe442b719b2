"""Reports what enforcement achieved: drift, pods that are not enforced or not exclusive, repairs.

In goes the `EnforcementReport` of each change and of each comparison. Out come log lines, events,
counts, and what status shows: `AgentState.observed` keeps what is not enforced and the latest
drift. A pod that is not enforced, and an intrusion, are reported when they are new or another one;
drift is reported by each comparison that finds it.

The reporter also keeps the cgroups that were observed (`cgroups`, `renewed`), since whoever watches
the tree for changes watches these.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import structlog

from agent.api.documents import DriftDocument, ReconcileDocument
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
        #: The cgroups of the last observation, to be watched for changes.
        self.cgroups: set[str] = set()
        #: Cgroups that may have been created again, with all their descendants, since they were
        #: last watched: a watch of the former directory notices nothing.
        self.renewed: set[str] = set()
        self._followers: list[Callable[[list[str]], None]] = []
        self._state = state
        self._counters = counters
        self._publish = events.publish
        self._clock = clock

    def follow(self, follower: Callable[[list[str]], None]) -> None:
        """Have `follower` called after each report with the cgroups that were made, perhaps none.

        It can watch them before the first process of the pod starts.
        """
        self._followers.append(follower)

    def note(self, outcome: EnforcementReport) -> None:
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
        self._keep_cgroups(outcome)
        observed.records.note_running(outcome, allocations, self._clock.monotonic())
        if cgroups := outcome.first_set:
            log.info("settings applied to new cgroups", cgroups=cgroups)
        # 2.
        self._note_drift(outcome)
        # 3. Where the tree could not be read, what pods lacked before still holds.
        pods = outcome.pods if outcome.compared else frozenset[str]()
        news = observed.records.note_unenforced(outcome.unenforced(), allocations, pods)
        for uid, differences in news.items():
            self._counters.add(names.ENFORCEMENT_FAILURES)
            name, lines = full_name(allocations[uid]), details(differences)
            log.error("pod not enforced", uid=uid, pod=name, conditions=lines)
            self._publish("PodNotEnforced", uid, name, "; ".join(lines))
        # 4. So does what the host lacked, unless the report itself says why the tree is unreadable.
        of_no_pod = outcome.of_pod("")
        if not (outcome.compared or of_no_pod):
            of_no_pod = observed.unenforced
        if of_no_pod and details(of_no_pod) != details(observed.unenforced):
            log.error("enforcement failed", conditions=details(of_no_pod))
        observed.unenforced = of_no_pod
        # 5.
        self.note_intrusions(intrusions_before)

    def note_intrusions(self, before: Mapping[str, tuple[Intrusion, ...]]) -> None:
        """Report the cgroups that intrude on a pod now and did not in `before`."""
        for uid, intrusions in self._state.intrusions.items():
            former = {intrusion.cgroup for intrusion in before.get(uid, ())}
            news = tuple(
                str(intrusion) for intrusion in intrusions if intrusion.cgroup not in former
            )
            if news:
                name = full_name(self._state.ledger.allocations[uid])
                log.error("pod not exclusive", uid=uid, pod=name, conditions=news)
                self._publish("PodNotExclusive", uid, name, "; ".join(news))

    def note_failure(self, why: str, uids: tuple[str, ...]) -> tuple[Difference, ...]:
        """Count that a step of a saved change failed; return what the pods lack because of it.

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

    def note_contest(self, outcome: EnforcementReport) -> None:
        """Report, once each, the cgroups that are left to another writer for a while."""
        self._state.observed.contested = outcome.contested
        for why in outcome.given_way:
            self._counters.add(names.REPAIRS_POSTPONED)
            log.warning("cgroup is being modified by another writer, backing off", why=why)
            self._publish("DriftContested", message=why)

    def note_comparison(self, outcome: EnforcementReport, seconds: float) -> ReconcileDocument:
        """Count a comparison that took `seconds`, date the conditions, and return its document."""
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

    def _keep_cgroups(self, outcome: EnforcementReport) -> None:
        """Keep the observed cgroups, and tell followers which of them were created."""
        self.renewed.update(outcome.renewed)
        paths = outcome.cgroups.paths
        if outcome.pods is not None:  # of some pods: those of the others stay
            self.cgroups.update(paths)
        elif paths:
            before, self.cgroups = self.cgroups, set(paths)
            if self.renewed and before != self.cgroups:
                # Removed cgroups need no watch, and where nobody watches, nothing else ends this.
                self.renewed &= self.cgroups | all_ancestors(self.cgroups)
        created = [cgroup for cgroup in outcome.renewed if cgroup in self.cgroups]
        for follower in self._followers:
            follower(created)

    def _note_drift(self, outcome: EnforcementReport) -> None:
        """Report the drift that a comparison found, with one event for each pod.

        Contested settings are counted only: `note_contest` reports them, and they may differ at
        every comparison.
        """
        found, repaired = count_causes(outcome.drift), outcome.repaired
        for cause, count in found.items():
            self._counters.add(names.DRIFT_FOUND, cause, by=count)
        for cause, count in repaired.items():
            self._counters.add(names.DRIFT_REPAIRED, cause, by=count)
        contested = {(setting.cgroup, setting.file) for setting in outcome.contested}
        drift = [
            difference
            for difference in outcome.drift
            if (difference.cgroup, difference.file) not in contested
        ]
        if not drift:
            return
        repairs = frozenset(outcome.repaired_drift)
        named = tuple(
            self._document(difference, repaired=difference in repairs)
            for difference in drift[:DRIFT_NAMED]
        )
        self._state.observed.drift = (*self._state.observed.drift, *named)[-DRIFT_KEPT:]
        more = len(drift) - len(named)
        log.warning(
            "drift found",
            found=dict(found),
            repaired=dict(repaired),
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
