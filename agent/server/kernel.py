"""Enforcement for the controller: runs the enforcer and turns its reports into results.

In go the ledger with what is derived from it (`Desired`), and which pods changed; out come reports
of what differs, drifted, appeared and ended.
"""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.reconcile.backoff import Backoff
from agent.reconcile.binding import OtherBindings, cgroup_named, cgroup_of_pid, make_binding
from agent.reconcile.diff import NO_DRIFT, Cause, Difference
from agent.reconcile.identify import pod_cgroup, runs
from agent.reconcile.observe import steadily
from agent.reconcile.report import CgroupReports, EnforcementReport
from agent.server.errors import readable
from agent.server.verification import IntruderCount, kernel_document, verification
from cgroupfs.errors import CgroupError
from cgroupfs.settings import CPUS, EFFECTIVE, MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, MEMS
from cgroupfs.state import CPUS_EFFECTIVE
from cgroupfs.tree import all_ancestors
from sysfs.mask import Mask
from systemd.units import SystemdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.api.documents import BindRequest, KernelDocument, VerificationDocument
    from agent.isolation.host import HostIsolation
    from agent.managers.allocation import Binding, PodAllocation
    from agent.reconcile.assigned import AssignedFiles
    from agent.reconcile.backoff import WriterConflict
    from agent.reconcile.drivers import UnitState
    from agent.reconcile.enforcer import Enforcer
    from agent.reconcile.report import PlannedChange, ReleaseReport
    from agent.reconcile.target import Desired
    from agent.reconcile.tasks import Intruders, Task
    from cgroupfs.names import Layout
    from cgroupfs.plan import Setting
    from cgroupfs.tree import CgroupTree

log = structlog.get_logger(__name__)


class HostProbes(Struct, frozen=True):
    """What stands beside the tree: the host's tasks, a clock in seconds, containers' files."""

    tasks: Callable[[], Iterable[Task]] = tuple
    monotonic: Callable[[], float] = time.monotonic
    #: None where no files are written.
    assigned: AssignedFiles | None = None


ALONE: Final = HostProbes()


#: The files of sets, and what is written as `memoryReservationPolicy` and
#: `memoryThrottlingFactor` say.
_SETS: Final = frozenset({*EFFECTIVE, *EFFECTIVE.values()})
_MEMORY_QOS: Final = frozenset({MEMORY_MIN, MEMORY_LOW, MEMORY_HIGH})


class Lives(Struct, frozen=True):
    """What was observed of the pods that end by themselves (`agent.server.endings`).

    `inhabited` are the uids of pods in whose cgroups processes live. `units` are the states of
    units by name; one that is missing is not known now. `restarted` are the uids of pods whose unit
    runs in a new cgroup, which has none of the pod's sets.
    """

    inhabited: frozenset[str]
    units: Mapping[str, UnitState]
    restarted: frozenset[str] = frozenset()


class KernelEnforcement:
    """The cgroup tree behind the enforcer; all calls block, and the one worker thread makes them.

    `mount` is where the hierarchy is mounted, `proc` where procfs is, `own` the agent's cgroup;
    `probes` reads the tasks of the host and the time, and writes the files by which containers know
    what they have; `isolation` has the host-wide settings. A cgroup that appeared since the last
    observation never had its settings, so that applying them is not drift.
    """

    def __init__(  # noqa: PLR0913  # what the kernel is to the agent
        self,
        enforcer: Enforcer,
        tree: CgroupTree,
        layout: Layout,
        mount: Path,
        proc: Path,
        own: str = "",
        probes: HostProbes = ALONE,
        *,
        isolation: HostIsolation | None = None,
    ) -> None:
        self._enforcer = enforcer
        self._tree = tree
        self._layout = layout
        self._mount = mount
        self._proc = proc
        self._own = own
        self._probes = probes
        self._isolation = isolation
        self._assigned = probes.assigned
        self._intruders = IntruderCount(probes.monotonic)
        self._backoff = Backoff()
        #: When the repair was made after which a file differed again, of what was reported last.
        self._reported: dict[tuple[str, str], float] = {}
        #: The cgroups of the last observation, by pod ("": not of a pod).
        self._seen: dict[str, frozenset[str]] | None = None

    def admitted(self, target: Desired, *uids: str) -> EnforcementReport:
        """Make the kernel enforce a ledger to which pods were added or in which they changed."""

        def enforce() -> EnforcementReport:
            report = self._enforcer.enforce_change(target, *uids)
            self._observed(report)
            return report

        return self._followed(target, enforce, *uids)

    def started(self, target: Desired, *uids: str) -> EnforcementReport:
        """Make the kernel enforce what pods are to have in whose cgroups others appeared."""

        def enforce() -> EnforcementReport:
            report = self._enforcer.enforce_change(target, *uids)
            return replace(report, settled=tuple(sorted(self._observed(report))))

        return self._followed(target, enforce, *uids)

    def pods_around(self, cgroups: Iterable[str]) -> frozenset[str]:
        """Return the uids of the pods whose cgroups lie above any of these."""
        around = map(self._layout.parse_pod, all_ancestors(cgroups))
        return frozenset(pod.uid for pod in around if pod is not None)

    def are_beside_pods(self, cgroups: Iterable[str]) -> bool:
        """Return whether one of these belongs to no pod and has to keep off exclusive CPUs."""
        return self._isolation is not None and self._isolation.concerns(cgroups)

    def plan(self, target: Desired, uid: str) -> PlannedChange:
        """Return what `admitted` would create and write, without writing."""
        with readable():
            return self._enforcer.plan(target, uid)

    def removed(self, target: Desired, allocation: PodAllocation) -> EnforcementReport:
        """Release a pod that is no longer in the ledger and apply the changes for other pods."""

        def release() -> EnforcementReport:
            released = self._enforcer.releaser.pod(allocation)
            # A unit that was bound may be started again at once, on what it had before.
            self._enforcer.releaser.bound(target)
            report = self._enforcer.enforce_change(target)
            self._observed(report)
            return _noted(report, released.reason)

        return self._followed(target, release)

    def changed(self, target: Desired) -> EnforcementReport:
        """Make the kernel enforce another shared pool."""

        def enforce() -> EnforcementReport:
            report = self._enforcer.enforce_change(target)
            self._observed(report)
            return report

        return self._followed(target, enforce)

    def reconcile(self, target: Desired, *, insist: bool = False) -> EnforcementReport:
        """Compare the kernel with the ledger and repair what differs.

        Cgroups that another writer keeps modifying are skipped during their backoff, unless
        `insist` is set or their sets name exclusive CPUs of other pods.
        """
        if self._isolation is not None:
            self._isolation.try_again()

        def repair() -> EnforcementReport:
            now = self._probes.monotonic()
            resting = {} if insist else self._backoff.resting(now)
            settings = {path: contest.setting for path, contest in resting.items()}
            report = self._enforcer.repair(target, settings)
            kept = self._enforcer.releaser.orphaned(report.cgroups.orphaned)
            ended = self._enforcer.releaser.bound(target)
            # At the first observation all differences are drift from before the start, except for
            # memory that is in use, what the kubelet did, and what was never enforced: containers
            # that started meanwhile, and cgroups of no pod, have no set yet, and those inside have
            # theirs. What follows from the configuration and the host alone may have been desired
            # otherwise then.
            unset = {each.cgroup for each in report.found if each.observed == ""}
            drift = (
                report.drift
                if self._seen is not None
                else tuple(
                    difference
                    for difference in report.found
                    if difference.cause not in {Cause.IN_USE, *NO_DRIFT}
                    and difference.cgroup not in unset
                    and (difference.pod or difference.cause is not Cause.CONTROLLER_LOST)
                    and not self._by_configuration(difference)
                )
            )
            settled = self._observed(report)
            contested = _contested(report, resting)
            # What is repaired before its pause is over is part of the contest that is known.
            self._backoff.note(
                _repaired(report, (each for each in drift if each.cgroup not in resting)), now
            )
            return replace(
                _noted(_calmed(report), *(left.reason for left in kept)),
                drift=drift,
                settled=tuple(sorted(settled)),
                contested=contested,
                given_way=tuple(self._news(contested, report, resting, now)),
                ended=ended,
                orphaned=frozenset(self._orphaned(kept)),
            )

        return self._followed(target, repair, thorough=True)

    def _by_configuration(self, difference: Difference) -> bool:
        of_node = difference.cgroup == self._layout.pods() and difference.file not in _SETS
        return of_node or difference.file in _MEMORY_QOS

    def verify(self, target: Desired, online: Mask) -> VerificationDocument:
        """Compare the kernel with the ledger and look for intruding tasks, without writing."""
        with readable():
            report = self._enforcer.verify(target)
            return verification(self._tree, target, report, *self._read_tasks(online))

    def count_intruders(
        self, target: Desired, outcome: EnforcementReport, online: Mask
    ) -> Intruders | None:
        """Return what intrudes, None if it is too early to count or the tree cannot be read.

        `outcome` is that of `reconcile`; one that could not read the tree names no cgroups, and
        the pods' own tasks would seem to intrude.
        """
        if not outcome.compared:
            return None
        try:
            return self._intruders.count(target, outcome, partial(self._read_tasks, online))
        except OSError as error:
            # If it lasts, the next comparison says so. The count comes again when it is time.
            log.info("intruding tasks not counted", why=str(error))
            return None

    def _read_tasks(self, online: Mask) -> tuple[tuple[Task, ...], Mask]:
        """Return the tasks of the host, and the CPUs of a task that nothing confines.

        These are read before and after the tasks: a partition that comes or goes meanwhile changes
        the CPUs of every task.
        """
        before = self._unconfined(online)
        tasks = tuple(self._probes.tasks())
        return tasks, before & self._unconfined(online)

    def _unconfined(self, online: Mask) -> Mask:
        """Return the CPUs of a task that nothing confines: those online that no partition has."""
        (shown,) = self._tree.read_many("", (CPUS_EFFECTIVE,))
        return online if shown is None else online & Mask.parse(shown)

    def observe(
        self, target: Desired, allocation: PodAllocation
    ) -> Mapping[str | None, tuple[KernelDocument, ...]]:
        """Return the settings of a pod's cgroups by container (None: the pod's own cgroup)."""
        seen: dict[str | None, tuple[KernelDocument, ...]] = {}
        with readable():
            reports = self._enforcer.cgroups_of(target, allocation.uid)
        for report in reports:
            container = report.desired.container
            seen[container] = (*seen.get(container, ()), kernel_document(report))
        return seen

    def locate(
        self, target: Desired, allocation: PodAllocation, container: str, request: BindRequest
    ) -> Binding:
        """Return the binding that was asked for, checked; raises `BindingError`."""
        if request.pid is not None:
            cgroup = cgroup_of_pid(self._proc, request.pid)
        else:
            cgroup = cgroup_named(request.cgroup or "", self._mount)
        with readable():
            return make_binding(
                self._tree,
                self._layout,
                allocation,
                container,
                cgroup,
                others=OtherBindings(target.bindings, target.ledger.allocations.keys()),
                own=self._own,
            )

    def lives(self, target: Desired, allocations: Iterable[PodAllocation]) -> Lives:
        """Return which of some pods have processes, and the states of their units.

        A unit about which systemd does not answer is left out; comparisons report that.
        """
        inhabited: set[str] = set()
        restarted: set[str] = set()
        units: dict[str, UnitState] = {}
        for allocation in allocations:
            uid, unit = allocation.uid, allocation.lifetime.unit
            if unit:
                with suppress(SystemdError):
                    found = self._enforcer.unit(unit)
                    if found is not None:
                        units[unit] = found
                        if found.running and self._lacks_sets(target, uid):
                            restarted.add(uid)
                continue
            bound = (binding.cgroup for binding in target.bindings.of_pod(uid))
            with readable():
                cgroups = (pod_cgroup(self._tree, self._layout, allocation), *bound)
                if steadily(lambda: any(runs(self._tree, path) for path in cgroups)):  # noqa: B023  # called at once
                    inhabited.add(uid)
        return Lives(frozenset(inhabited), units, frozenset(restarted))

    def _followed(
        self,
        target: Desired,
        action: Callable[[], EnforcementReport],
        *uids: str,
        thorough: bool = False,
    ) -> EnforcementReport:
        """Run an action on the tree, with the files of containers and the host-wide settings.

        The files lose CPUs before the action and gain them after it. `thorough`: compare all
        host-wide settings with the host's, not only those of which what is asked changed.
        """
        allocations = target.ledger.allocations
        if self._assigned is not None:
            self._assigned.before(allocations)
        report = _guarded(action, *uids)
        if self._assigned is not None:
            self._assigned.after(allocations, report)
        isolation = self._isolation
        if isolation is not None and (thorough or isolation.active):
            isolation.note_invalid(
                report.pods if report.compared else (),
                {(each.pod, each.cgroup): each.detail for each in report.unpartitioned},
            )
            bound = frozenset(binding.cgroup for binding in target.bindings)
            isolation.apply(
                allocations.values(),
                bound,
                thorough=thorough,
                started=uids,
                cgroups_of=lambda pod: (
                    pod_cgroup(self._tree, self._layout, pod),
                    *(binding.cgroup for binding in target.bindings.of_pod(pod.uid)),
                ),
            )
        return report

    def _lacks_sets(self, target: Desired, uid: str) -> bool:
        """Return whether a cgroup of a pod has no set although it should, as a new one has none."""
        with readable():
            reports = self._enforcer.cgroups_of(target, uid)
        differences = (each for report in reports for each in report.differences)
        return any(each.file in (CPUS, MEMS) and not each.observed for each in differences)

    def _orphaned(self, kept: Iterable[ReleaseReport]) -> Iterator[str]:
        """Yield the uids of the pods whose cgroups still exist."""
        for left in kept:
            named = None if left.removed else self._layout.parse_pod(left.cgroup)
            if named is not None:
                yield named.uid

    def _news(
        self,
        contested: Iterable[Difference],
        report: EnforcementReport,
        resting: Mapping[str, WriterConflict],
        now: float,
    ) -> Iterator[str]:
        """Yield what is done about each contested file, once in each pause."""
        before = self._reported
        self._reported = {key: one for key, one in before.items() if key[0] in resting}
        waiting = {each.cgroup for each in report.postponed}
        for each in contested:
            key, contest = (each.cgroup, each.file), resting[each.cgroup]
            if before.get(key) == contest.since:
                continue
            self._reported[key] = contest.since
            file = shlex.quote(str(self._mount / each.cgroup / each.file))
            next_repair = (
                f"next repair in {contest.ends - now:.0f} s"
                if each.cgroup in waiting
                else "repaired at every comparison, since other pods are concerned"
            )
            found = (
                f"identify the writer: auditctl -w {file} -p w"
                if each.writer is None
                else each.writer.line()
            )
            yield (
                f"{each.detail} ({each.cause}); {contest.times} repairs were reverted, "
                f"{next_repair}; {found}"
            )

    def _observed(self, report: EnforcementReport) -> frozenset[str]:
        """Store which cgroups exist; return those that appeared since the last observation.

        The first observation returns none: its differences arose while the agent was stopped.
        """
        there, before = report.cgroups.by_pod, self._seen
        if report.pods is None or before is None:
            self._seen = {**there}
            same = before is None or before == there
            return frozenset() if same else _all(there) - _all(before or {})
        appeared = _all(there).difference(*(before.pop(uid, ()) for uid in report.pods))
        # Only a part of the cgroups without a pod was observed.
        alone = there.get("", frozenset()) | before.get("", frozenset())
        before.update({**there, "": alone})
        return appeared


def _all(cgroups: Mapping[str, Iterable[str]]) -> frozenset[str]:
    return frozenset().union(*cgroups.values())


def _guarded(action: Callable[[], EnforcementReport], *uids: str) -> EnforcementReport:
    """Run an action on the tree; an error becomes a difference of each pod that it is for."""
    try:
        return action()
    except (OSError, CgroupError, SystemdError) as error:
        detail = f"the cgroup tree failed: {error}"
        failures = (Difference("", detail, Cause.UNKNOWN, uid) for uid in uids or ("",))
        return EnforcementReport(differences=tuple(failures), compared=False)


def _noted(report: EnforcementReport, *further: str) -> EnforcementReport:
    """Return a report with further notes, without empty ones."""
    return replace(report, notes=(*report.notes, *filter(None, further)))


def _calmed(report: EnforcementReport) -> EnforcementReport:
    """Return a report with constant details for delayed repairs.

    Otherwise each write of the other writer would be reported as a new difference.
    """
    waiting = {difference.cgroup for difference in report.postponed}
    cgroups = (
        replace(each, differences=tuple(replace(p, detail=_calm(p)) for p in each.differences))
        if each.desired.setting.cgroup in waiting
        else each
        for each in report.cgroups
    )
    return replace(report, cgroups=CgroupReports(cgroups)) if waiting else report


def _calm(difference: Difference) -> str:
    what = f"{difference.file} of" if difference.is_written else "a cgroup above"
    return f"another writer modifies {what} /{difference.cgroup}; its repair is delayed"


def _contested(
    report: EnforcementReport, resting: Mapping[str, WriterConflict]
) -> tuple[Difference, ...]:
    """Return what another process wrote again after repairs, whether or not it waits for the next.

    What a cgroup inside has or lacks because of that is not written by anyone.
    """
    return tuple(
        each
        for each in (*report.found, *report.postponed)
        if each.cgroup in resting and each.is_written and each.cause not in NO_DRIFT
    )


def _repaired(
    report: EnforcementReport, drift: Iterable[Difference]
) -> Iterator[tuple[Setting, str]]:
    """Yield the settings of cgroups of which another process wrote files, with the differences."""
    found: dict[str, list[str]] = {}
    for difference in drift:
        if difference.is_written:
            found.setdefault(difference.cgroup, []).append(difference.detail)
    if not found:
        return
    for each in report.cgroups:
        if details := found.get(each.desired.setting.cgroup):
            yield each.desired.setting, "; ".join(details)
