"""Reports drift: settings that another process changed."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import structlog

from agent.api.status import DriftDocument
from agent.api.views import writer_document
from agent.managers.allocations.origin import Origin
from agent.managers.recovery.from_cgroups import describe_recovered
from agent.pods.identity import full_name
from agent.reconcile.report import count_causes
from agent.server.metrics import names

if TYPE_CHECKING:
    from agent.clock import Clock
    from agent.reconcile.diff import Difference
    from agent.reconcile.report import EnforcementReport
    from agent.server.metrics.counters import Counters
    from agent.server.reporting.events import EventReporter
    from agent.server.state import AgentState

log = structlog.get_logger(__name__)

#: How many settings of one comparison are named in the log and in events; the rest is counted.
#: One ancestor that is too narrow makes all cgroups below differ.
DRIFT_NAMED: Final = 16
#: How many of the latest differences are kept for the status.
DRIFT_KEPT: Final = 32


class DriftReporter:
    """Counts and reports drift, and keeps the latest differences in the state."""

    def __init__(
        self, state: AgentState, counters: Counters, reporter: EventReporter, clock: Clock
    ) -> None:
        self._state = state
        self._counters = counters
        self._reporter = reporter
        self._clock = clock

    def note(self, outcome: EnforcementReport) -> None:
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
            self._reporter.publish("DriftFound", uid or None, pod or None, message, settings)
        if more:
            message = (
                f"{more} more settings differ; 'numawarden verify' lists those that still differ"
            )
            self._reporter.publish("DriftFound", message=message)

    def note_recovered(self) -> None:
        """Report allocations recovered from cgroups and allocations that they displaced."""
        for allocation in self._state.ledger.allocations.values():
            if allocation.origin is Origin.RECOVERED:
                shown = describe_recovered(allocation)
                name = full_name(allocation)
                self._reporter.publish("PodRecovered", allocation.uid, name, shown)
        for uid, displaced in self._state.displaced.items():
            name = full_name(displaced)
            self._reporter.publish("AllocationDisplaced", uid, name, str(displaced))

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
            writer=None if writer is None else writer_document(writer),
            repaired=repaired,
        )
