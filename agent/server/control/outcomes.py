"""What is made of a comparison or a change of cgroups: status, counts, log lines, events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from agent.api.status import ReconcileDocument
from agent.pods.identity import full_name
from agent.reconcile.diff import Cause, Difference
from agent.reconcile.report import count_causes
from agent.server.metrics import names
from agent.server.reporting.drift import DriftReporter
from agent.server.reporting.records import details
from cgroupfs.tree import all_ancestors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.clock import Clock
    from agent.reconcile.report import EnforcementReport
    from agent.server.metrics.counters import Counters
    from agent.server.reporting.events import EventReporter
    from agent.server.state import AgentState

log = structlog.get_logger(__name__)


class OutcomeReporter:
    """Reports each `EnforcementReport` and remembers the cgroups that it names."""

    def __init__(
        self, state: AgentState, counters: Counters, reporter: EventReporter, clock: Clock
    ) -> None:
        self.drifts = DriftReporter(state, counters, reporter, clock)
        #: The cgroups of the last observation, to be watched for changes.
        self.cgroups: set[str] = set()
        #: Cgroups whose files, and those of all descendants, may have been created again.
        self.renewed: set[str] = set()
        #: Watches the cgroups that a change created, before the pod's first container starts.
        self.watch: Callable[[Iterable[str]], None] = _watch_nothing
        self._state = state
        self._counters = counters
        self._reporter = reporter
        self._clock = clock

    def note(self, outcome: EnforcementReport) -> None:
        """Count and report the result of a change or a comparison."""
        self._note_cgroups(outcome)
        allocations = self._state.ledger.allocations
        self._state.records.note_running(outcome, allocations, self._clock.monotonic())
        if outcome.settled:
            log.info("settings applied to new cgroups", cgroups=outcome.settled)
        self.drifts.note(outcome)
        pods = outcome.pods if outcome.compared else frozenset[str]()
        news = self._state.records.note_unenforced(outcome.unenforced(), allocations, pods)
        for uid, differing in news.items():
            self._counters.add(names.ENFORCEMENT_FAILURES)
            name, lines = full_name(allocations[uid]), details(differing)
            log.error("pod not enforced", uid=uid, pod=name, conditions=lines)
            self._reporter.publish("PodNotEnforced", uid, name, "; ".join(lines))
        outside = outcome.of_pod("")
        if not (outcome.compared or outside):
            outside = self._state.unenforced
        if outside and details(outside) != details(self._state.unenforced):
            log.error("enforcement failed", conditions=details(outside))
        self._state.unenforced = outside

    def failed(self, why: str, uids: tuple[str, ...]) -> tuple[Difference, ...]:
        """Report that a step of a saved change failed: pods, or the host, lack what it was for.

        The next comparison does what is missing, and shows what still is.
        """
        lacking = tuple(Difference("", why, Cause.UNKNOWN, uid) for uid in uids or ("",))
        for difference in lacking:
            if difference.pod in self._state.ledger.allocations:
                self._state.records.add_unenforced(difference)
            else:
                self._state.unenforced = (*self._state.unenforced, difference)
            self._counters.add(names.ENFORCEMENT_FAILURES)
        return lacking

    def _note_cgroups(self, outcome: EnforcementReport) -> None:
        self.renewed.update(outcome.renewed)
        paths = outcome.paths
        if outcome.pods is not None:
            self.cgroups.update(paths)
        elif paths:
            self.cgroups = set(paths)
            if self.renewed:
                # Removed cgroups need no watch; without watches the set would only grow.
                self.renewed &= self.cgroups | all_ancestors(self.cgroups)
        self.watch([cgroup for cgroup in outcome.renewed if cgroup in self.cgroups])

    def note_contest(self, outcome: EnforcementReport) -> None:
        """Report each backoff from a cgroup that another writer modifies once."""
        self._state.contested = outcome.contested
        for why in outcome.given_way:
            self._counters.add(names.REPAIRS_POSTPONED)
            log.warning("cgroup is being modified by another writer, backing off", why=why)
            self._reporter.publish("DriftContested", message=why)

    def reconciled(self, outcome: EnforcementReport, seconds: float) -> ReconcileDocument:
        """Count and return the result of a reconcile that took `seconds`; date the conditions."""
        differences = details(outcome.remaining)
        result = "failed" if differences else "repaired" if outcome.drift else "clean"
        self._counters.add(names.RECONCILES, result)
        now = self._clock.time()
        if not differences:
            self._state.last_agreement = now
        self._state.last_reconcile = ReconcileDocument(
            found=dict(count_causes(outcome.drift)),
            repaired=dict(outcome.repaired),
            differences=differences,
            notes=outcome.notes,
            finished=now,
            seconds=seconds,
        )
        # Since when a condition has been there must not depend on when the status is read.
        self._state.dated_conditions(now)
        return self._state.last_reconcile


def _watch_nothing(_cgroups: Iterable[str]) -> None:
    """Do nothing where cgroups are not watched: the next comparison finds changes."""
