"""Files that another process writes again after each repair, and what is said of them.

In go the comparisons of the kernel with the ledger; out come the cgroups that are paused, the files
that are contested, and a line for each of these, once per pause.

- A cgroup is *paused* when repairs of it were reverted again and again: it is not repaired for a
  while (`agent.reconcile.backoff` says how long). What differs meanwhile is *postponed*.
- A file is *contested* when another process wrote it in a paused cgroup. What differs in cgroups
  inside follows from that: no process wrote it, and it is not contested.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.reconcile.backoff import Backoff
from agent.reconcile.diff import NO_DRIFT
from agent.reconcile.report import CgroupReports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.reconcile.backoff import WriterConflict
    from agent.reconcile.diff import Difference
    from agent.reconcile.report import EnforcementReport
    from cgroupfs.plan import Setting


class Contests:
    """The contests that are known; `mount` is where the cgroup hierarchy is mounted."""

    def __init__(self, mount: Path) -> None:
        self._mount = mount
        self._backoff = Backoff()
        #: By cgroup and file: the start of the pause for which a line was last given.
        self._reported: dict[tuple[str, str], float] = {}

    def paused(self, now: float) -> Mapping[str, WriterConflict]:
        """Return the cgroups that are not to be repaired yet; `now` is in seconds."""
        return self._backoff.resting(now)

    def judge(
        self,
        report: EnforcementReport,
        drift: Iterable[Difference],
        left_alone: Mapping[str, WriterConflict],
        now: float,
    ) -> EnforcementReport:
        """Return a comparison with its `contested` files and, in `given_way`, the lines on these.

        `drift` is what other processes changed since the last comparison. `left_alone` are the
        paused cgroups that the comparison did not repair: none where an operator insists.
        """
        paused = self._backoff.resting(now)
        contested = tuple(
            difference
            for difference in (*report.found, *report.postponed)
            if difference.cgroup in left_alone
            and difference.is_written
            and difference.cause not in NO_DRIFT
        )
        # A repair during a pause does not count as another one that was reverted.
        repaired = _repaired(report, (one for one in drift if one.cgroup not in paused))
        self._backoff.note(repaired, now)
        self._reported = {key: since for key, since in self._reported.items() if key[0] in paused}
        waiting = frozenset(difference.cgroup for difference in report.postponed)
        return replace(
            _with_constant_details(report, waiting),
            contested=contested,
            given_way=tuple(self._lines(contested, left_alone, waiting, now)),
        )

    def _lines(
        self,
        contested: Iterable[Difference],
        left_alone: Mapping[str, WriterConflict],
        waiting: frozenset[str],
        now: float,
    ) -> Iterator[str]:
        """Yield what is done about each contested file, once per pause."""
        for difference in contested:
            key, contest = (difference.cgroup, difference.file), left_alone[difference.cgroup]
            if self._reported.get(key) == contest.since:
                continue
            self._reported[key] = contest.since
            file = shlex.quote(str(self._mount / difference.cgroup / difference.file))
            next_repair = (
                f"next repair in {contest.ends - now:.0f} s"
                if difference.cgroup in waiting
                else "repaired at every comparison, since other pods are concerned"
            )
            writer = (
                f"identify the writer: auditctl -w {file} -p w"
                if difference.writer is None
                else difference.writer.line()
            )
            yield (
                f"{difference.detail} ({difference.cause}); {contest.times} repairs were reverted, "
                f"{next_repair}; {writer}"
            )


def _repaired(
    report: EnforcementReport, drift: Iterable[Difference]
) -> Iterator[tuple[Setting, str]]:
    """Yield the setting of each cgroup in which files were written, and what was written."""
    details: dict[str, list[str]] = {}
    for difference in drift:
        if difference.is_written:
            details.setdefault(difference.cgroup, []).append(difference.detail)
    if not details:
        return
    for cgroup in report.cgroups:
        setting = cgroup.desired.setting
        if setting.cgroup in details:
            yield setting, "; ".join(details[setting.cgroup])


def _with_constant_details(report: EnforcementReport, waiting: frozenset[str]) -> EnforcementReport:
    """Return a report in which the detail of a postponed difference is always the same.

    Otherwise each write of the other writer would be reported as a new difference.
    """
    if not waiting:
        return report
    cgroups = (
        replace(
            cgroup,
            differences=tuple(
                difference
                if difference.cause in NO_DRIFT
                else replace(difference, detail=_postponed(difference))
                for difference in cgroup.differences
            ),
        )
        if cgroup.desired.setting.cgroup in waiting
        else cgroup
        for cgroup in report.cgroups
    )
    return replace(report, cgroups=CgroupReports(cgroups))


def _postponed(difference: Difference) -> str:
    cgroup = f"/{difference.cgroup}"
    what = (
        f"{difference.file} of {cgroup}" if difference.is_written else f"{cgroup} or one above it"
    )
    return f"another writer modifies {what}; its repair is delayed"
