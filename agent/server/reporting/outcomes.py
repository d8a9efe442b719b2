"""Reports the result of each enforcement: status, metrics, log lines, events."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import structlog

from agent.api.status import DriftDocument, ReconcileDocument
from agent.managers.allocations.origin import Origin
from agent.managers.recovery.from_cgroups import describe_recovered
from agent.pods.identity import full_name
from agent.reconcile.diff import Cause, Difference
from agent.reconcile.report import count_causes
from agent.server.metrics import names
from agent.server.reporting.records import details
from cgroupfs.tree import all_ancestors

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.clock import Clock
    from agent.reconcile.report import EnforcementReport
    from agent.server.metrics.counters import Counters
    from agent.server.reporting.events import Events
    from agent.server.state import AgentState

log = structlog.get_logger(__name__)

#: How many settings of one comparison are named in the log and in events; the rest is counted.
#: One ancestor that is too narrow makes all cgroups below differ.
DRIFT_NAMED: Final = 16
#: How many of the latest differences are kept for the status.
DRIFT_KEPT: Final = 32


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
        self._note_cgroups(outcome)
        allocations = self._state.ledger.allocations
        self._state.records.note_running(outcome, allocations, self._clock.monotonic())
        if outcome.settled:
            log.info("settings applied to new cgroups", cgroups=outcome.settled)
        self._note_drift(outcome)
        pods = outcome.pods if outcome.compared else frozenset[str]()
        news = self._state.records.note_unenforced(outcome.unenforced(), allocations, pods)
        for uid, differing in news.items():
            self._counters.add(names.ENFORCEMENT_FAILURES)
            name, lines = full_name(allocations[uid]), details(differing)
            log.error("pod not enforced", uid=uid, pod=name, conditions=lines)
            self._publish("PodNotEnforced", uid, name, "; ".join(lines))
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
        created = [cgroup for cgroup in outcome.renewed if cgroup in self.cgroups]
        for follower in self._followers:
            follower(created)

    def note_contest(self, outcome: EnforcementReport) -> None:
        """Report each backoff from a cgroup that another writer modifies once."""
        self._state.contested = outcome.contested
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

    # --- drift ----------------------------------------------------------------------------------

    def _note_drift(self, outcome: EnforcementReport) -> None:
        """Report the drift that a comparison found, with one event for each pod."""
        found, repaired = count_causes(outcome.drift), outcome.repaired
        for cause, count in found.items():
            self._counters.add(names.DRIFT_FOUND, cause, by=count)
        for cause, count in repaired.items():
            self._counters.add(names.DRIFT_REPAIRED, cause, by=count)
        if not outcome.drift:
            return
        gone = frozenset(outcome.repaired_drift)
        named = tuple(
            self._document(difference, repaired=difference in gone)
            for difference in outcome.drift[:DRIFT_NAMED]
        )
        self._state.drift = (*self._state.drift, *named)[-DRIFT_KEPT:]
        more = len(outcome.drift) - len(named)
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
                f"{more} more settings differ; 'numawarden verify' lists those that still differ"
            )
            self._publish("DriftFound", message=message)

    def note_recovered(self) -> None:
        """Report allocations recovered from cgroups and allocations that they displaced."""
        for allocation in self._state.ledger.allocations.values():
            if allocation.origin is Origin.RECOVERED:
                shown = describe_recovered(allocation)
                name = full_name(allocation)
                self._publish("PodRecovered", allocation.uid, name, shown)
        for uid, displaced in self._state.displaced.items():
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
