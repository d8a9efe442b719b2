"""What came of enforcing or comparing, cgroup by cgroup."""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from cgroupfs.apply import WriteResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.reconcile.desired.settings import DesiredCgroup
    from cgroupfs.apply import WriteOutcome
    from cgroupfs.ordering import WriteStage
    from cgroupfs.state import CgroupState
    from cgroupfs.verify import Cause


class Difference(Struct, frozen=True):
    """One thing that the kernel or systemd does not enforce.

    `pod` is the uid, "" where it concerns no pod of the ledger. `file` is the cgroup's file, ""
    where it is not about one; of one that differs `desired` and `found` are the texts (None: it is
    not there). `detail` is one line with cause and remedy.
    """

    cgroup: str
    detail: str
    cause: Cause
    pod: str = ""
    container: str | None = None
    file: str = ""
    desired: str = ""
    found: str | None = None


class WriteRecord(Struct, frozen=True):
    """One write, done or planned; `ok` is None for one that is only planned."""

    cgroup: str
    file: str
    value: str
    stage: WriteStage
    ok: bool | None = None


class CgroupReport(Struct, frozen=True):
    """What is desired of one cgroup, what the kernel shows (None: gone), what is wrong."""

    desired: DesiredCgroup
    state: CgroupState | None
    problems: tuple[Difference, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the kernel enforces everything that is desired."""
        return not self.problems


class EnforcementReport(Struct, frozen=True):
    """Everything that was found, done and left.

    `found` is what differed before anything was done although it was asked for before or is new,
    `drift` the part of it that somebody undid: no new pod or container, nor what nobody could
    repair the last time. `postponed` differs too and was left alone for now
    (`agent.reconcile.backoff`). `cgroups` is how things stand at the end, `problems` what
    concerns no single setting (a controller, systemd). `writes` are the writes in their order,
    `created` the cgroups that were made, `enabled` those whose `cgroup.subtree_control` was
    written, `recorded` the units told to systemd. `notes` are facts worth knowing that are no
    failure: cgroups nobody can name, leftovers of removed pods. `pods` are the uids of
    those that were looked at, None when everything was.
    """

    cgroups: tuple[CgroupReport, ...] = ()
    found: tuple[Difference, ...] = ()
    drift: tuple[Difference, ...] = ()
    postponed: tuple[Difference, ...] = ()
    problems: tuple[Difference, ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    created: tuple[str, ...] = ()
    enabled: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pods: frozenset[str] | None = None

    @property
    def remaining(self) -> tuple[Difference, ...]:
        """All that is not enforced now."""
        return (*self.problems, *(p for cgroup in self.cgroups for p in cgroup.problems))

    @property
    def ok(self) -> bool:
        """Whether everything is enforced."""
        return not self.remaining

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return bool(self.writes or self.created or self.enabled or self.recorded)

    def by_pod(self) -> Mapping[str, tuple[str, ...]]:
        """Return the details of what is not enforced by pod uid ("" for no single pod)."""
        details: dict[str, list[str]] = {}
        for problem in self.remaining:
            details.setdefault(problem.pod, []).append(problem.detail)
        return MappingProxyType({uid: tuple(lines) for uid, lines in details.items()})

    def of_pod(self, uid: str) -> tuple[CgroupReport, ...]:
        """Return the cgroups of one pod, its own first."""
        return tuple(cgroup for cgroup in self.cgroups if cgroup.desired.pod == uid)


def count_causes(problems: Iterable[Difference]) -> Mapping[str, int]:
    """Return how many problems there are by cause."""
    return MappingProxyType(dict(Counter(str(problem.cause) for problem in problems)))


def repaired(report: EnforcementReport) -> Mapping[str, int]:
    """Return how much drift is gone now, by the cause it had."""
    left = {(p.cgroup, p.file) for p in report.remaining}
    return count_causes(p for p in report.drift if (p.cgroup, p.file) not in left)


def write_record(outcome: WriteOutcome) -> WriteRecord:
    """Return an applied write as a record."""
    write = outcome.write
    ok = outcome.result is WriteResult.OK
    return WriteRecord(write.cgroup, write.file, write.value, write.stage, ok)


class ReleaseReport(Struct, frozen=True):
    """What came of releasing a pod's cgroup.

    `removed` is True when it is gone. Otherwise it stays: `processes` are those that still live
    in it (they are confined to the node's shared pool by the next enforcement), `problem` says in
    one line why and what to do.
    """

    cgroup: str
    removed: bool
    processes: tuple[int, ...] = ()
    problem: str = ""
