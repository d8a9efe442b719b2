"""Files that another process writes again after each repair, and what is said of them.

In go the comparisons of the kernel with the ledger; out come the cgroups that rest, the files that
are contested, and a line for each of these when its repair was put off anew. How long a cgroup
rests: `agent.reconcile.backoff`.
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
        #: The start of the pause that was told last, by cgroup and file.
        self._told: dict[tuple[str, str], float] = {}

    def resting(self, now: float) -> Mapping[str, WriterConflict]:
        """Return the cgroups that are not to be repaired yet; `now` is in seconds."""
        return self._backoff.resting(now)

    def judge(
        self,
        report: EnforcementReport,
        drift: Iterable[Difference],
        rested: Mapping[str, WriterConflict],
        now: float,
    ) -> EnforcementReport:
        """Return a comparison with its `contested` files and, in `given_way`, the news of these.

        `drift` is what other processes changed, and `rested` are the cgroups that the comparison
        was told to leave: an operator who asks for repairs has none left. What was repaired before
        its pause was over is part of the contest that is known.
        """
        resting = self._backoff.resting(now)
        contested = tuple(
            difference
            for difference in (*report.found, *report.postponed)
            if difference.cgroup in rested
            # What a cgroup inside has or lacks because of that is not written by anyone.
            and difference.is_written
            and difference.cause not in NO_DRIFT
        )
        repaired = _repaired(report, (one for one in drift if one.cgroup not in resting))
        self._backoff.note(repaired, now)
        self._told = {key: since for key, since in self._told.items() if key[0] in resting}
        waiting = frozenset(difference.cgroup for difference in report.postponed)
        return replace(
            _with_constant_details(report, waiting),
            contested=contested,
            given_way=tuple(self._news(contested, rested, waiting, now)),
        )

    def _news(
        self,
        contested: Iterable[Difference],
        rested: Mapping[str, WriterConflict],
        waiting: frozenset[str],
        now: float,
    ) -> Iterator[str]:
        """Yield what is done about each contested file, once in each pause."""
        for difference in contested:
            key, contest = (difference.cgroup, difference.file), rested[difference.cgroup]
            if self._told.get(key) == contest.since:
                continue
            self._told[key] = contest.since
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
    """Yield the settings of cgroups of which another process wrote files, with the differences."""
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
    """Return a report in which the differences of waiting cgroups always have the same detail.

    Otherwise each write of the other writer would be reported as a new difference.
    """
    if not waiting:
        return report
    cgroups = (
        replace(
            cgroup,
            differences=tuple(
                replace(difference, detail=_put_off(difference))
                for difference in cgroup.differences
            ),
        )
        if cgroup.desired.setting.cgroup in waiting
        else cgroup
        for cgroup in report.cgroups
    )
    return replace(report, cgroups=CgroupReports(cgroups))


def _put_off(difference: Difference) -> str:
    what = f"{difference.file} of" if difference.is_written else "a cgroup above"
    return f"another writer modifies {what} /{difference.cgroup}; its repair is delayed"
