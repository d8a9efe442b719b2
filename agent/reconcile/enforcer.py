"""The one place that writes cgroups.

Blocking; call it from one thread. What a call is about is read first, so that it can be repeated
after any failure and does only what is left to do: `enforce`, `repair` and `verify` look at
everything, `enforce_change` at what a change concerns (`agent.reconcile.affected` says what may be
left out, and why). What was there is read once, what was written is read back, and so is what lies
inside it; only what then differs is read again to tell why. What is remembered
(`agent.reconcile.cache`) saves work and tells drift from what is new; nothing goes wrong
without it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.reconcile.affected import AffectedPods, scope_of
from agent.reconcile.cache import ObservationCache
from agent.reconcile.desired.limits import EVERYTHING, EnforcedControllers
from agent.reconcile.desired.settings import Role
from agent.reconcile.differences import assess
from agent.reconcile.drivers.pod_cgroups import CreateError
from agent.reconcile.drivers.unit_record import record_of
from agent.reconcile.identify.containers import given_up, leftovers, pod_cgroup, runs, subgroups
from agent.reconcile.remarks import (
    beside,
    beyond_repair,
    concerns,
    none_told,
    not_offered,
    not_told,
    notes,
    reports,
    skipped,
    withheld,
)
from agent.reconcile.report import (
    CgroupReport,
    Difference,
    EnforcementReport,
    ReleaseReport,
    WriteRecord,
    write_record,
)
from agent.reconcile.snapshot import (
    ANY_CHILD,
    NeededControllers,
    Observation,
    steadily,
    still_resting,
)
from cgroupfs.apply import apply
from cgroupfs.controllers import ENABLED, available, enable, enabled
from cgroupfs.errors import CgroupError, CgroupNameError
from cgroupfs.plan import Plan, make_plan
from cgroupfs.state import (
    CPU_WEIGHT,
    CPUS,
    CPUS_EFFECTIVE,
    DEFAULT_WEIGHT,
    MEMORY_MAX,
    MEMS,
    MEMS_EFFECTIVE,
    NO_LIMIT,
    UNLIMITED,
    CgroupState,
)
from cgroupfs.tree import ancestors, is_within, join
from cgroupfs.verify import Cause, WriterRecord, WriterRecords
from sysfs.mask import EMPTY, Mask
from systemd.errors import BusTimeoutError, BusUnavailableError, NotAskedError, SystemdError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from agent.managers.allocations.ledger import PodAllocation
    from agent.reconcile.desired.settings import DesiredCgroup
    from agent.reconcile.desired.state import Desired
    from agent.reconcile.drivers.pod_cgroups import PodCgroups
    from agent.runtimes.identifier import ContainerIdentifier
    from cgroupfs.apply import WriteOutcome
    from cgroupfs.names import Layout
    from cgroupfs.plan import Setting
    from cgroupfs.tree import CgroupTree


_SETS: Final = (CPUS, MEMS)
_NOBODY: Final[Mapping[str, Setting]] = MappingProxyType({})


class _Repair(Struct, frozen=True):
    """What was done: how it looks then, what was last written and in all, what was rejected.

    `created` and `enabled` are cgroups, `recorded` the units that systemd was told of.
    """

    scene: Observation
    plan: Plan
    outcomes: tuple[WriteOutcome, ...]
    created: Sequence[str]
    enabled: Sequence[str]
    recorded: Sequence[str]
    rejected: Sequence[Difference]


class Enforcer:
    """Makes the kernel enforce a ledger.

    `pods` is the driver (`SliceCgroups`, `DirectoryCgroups`), `finder` knows more about containers
    than their cgroups' names tell, `enforced` is what is set at all.
    """

    def __init__(
        self,
        tree: CgroupTree,
        layout: Layout,
        pods: PodCgroups,
        finder: ContainerIdentifier | None = None,
        enforced: EnforcedControllers = EVERYTHING,
    ) -> None:
        self._tree = tree
        self._layout = layout
        self._pods = pods
        self._finder = finder
        self._enforced = enforced
        self._memory = ObservationCache()
        self._left: frozenset[Difference] = frozenset()
        #: What was last enforced in full, None as soon as anything is not.
        self._last: Desired | None = None

    def prepare(self) -> EnforcementReport:
        """Make the cgroup of all pods with its controllers; call it once at the start.

        Raises `EnforcementStartError` when the driver cannot work; what the kernel rejects is in
        the report.
        """
        self._pods.check()
        path = self._layout.pods()
        asked, self._enforced = self._enforced, self._enforced.among(available(self._tree))
        created, rejected = self._create({path: ""})
        need = NeededControllers("", self._enforced.needed, self._enforced.further)
        enabled, lacking = self._enable({join(path, ANY_CHILD): need})
        return EnforcementReport(
            problems=(*rejected, *lacking),
            created=tuple(created),
            enabled=tuple(enabled),
            notes=tuple(not_offered(asked.controllers - self._enforced.controllers)),
        )

    def enforce(
        self,
        target: Desired,
        *,
        move_memory: bool = False,
        resting: Mapping[str, Setting] = _NOBODY,
    ) -> EnforcementReport:
        """Do what is left to do so that the kernel enforces `target`.

        Shared containers shrink and are verified, then exclusive CPUs are given, pods first;
        systemd is told; everything is read back. Pod cgroups that are missing are made.
        `cpuset.mems` is written where it was unset; a set that somebody wrote in a running
        container is rewritten (which migrates its memory) only with `move_memory`. A limit below
        what is in use is never set: the kernel would kill processes for it. A cgroup of `resting`
        is left alone, as is what is inside it, as long as that very setting is desired.

        A systemd that did not answer is asked again, here and by `verify`, and by no other call:
        however many changes follow each other, it costs them one deadline.
        """
        self._pods.try_again()
        return self._enforce(target, None, resting, move_memory=move_memory)

    def enforce_change(self, target: Desired, uid: str | None = None) -> EnforcementReport:
        """Enforce `target`, looking only at what differs from the last one that was enforced.

        The pod `uid` is looked at in any case. The report is about `EnforcementReport.pods`; all
        others were enforced when they were last looked at. Raises `OSError` as `enforce` does.
        """
        scope = scope_of(self._last, target, uid, self._memory.shares)
        return self._enforce(target, scope, _NOBODY, move_memory=False)

    def repair(
        self, target: Desired, resting: Mapping[str, Setting] = _NOBODY
    ) -> EnforcementReport:
        """Enforce, memory nodes that were changed under a running container included."""
        return self.enforce(target, move_memory=True, resting=resting)

    def verify(self, target: Desired) -> EnforcementReport:
        """Compare the kernel with `target`; nothing is written."""
        self._pods.try_again()
        return self._verify(target, None)

    def preview(self, target: Desired) -> EnforcementReport:
        """Return what `enforce` would write and make; nothing is written.

        The new pods' cgroups are taken as they will be when just made.
        """
        scene = self._look(target)
        new = tuple(scene.missing())
        fresh = self._fresh_state()
        scene = replace(scene, states={**scene.states, **dict.fromkeys(new, fresh)})
        plan = make_plan(scene.states, scene.settings(move_memory=False))
        writes = tuple(WriteRecord(w.cgroup, w.file, w.value, w.stage) for w in plan.writes)
        above = dict.fromkeys(a for path in scene.states for a in ancestors(path))
        return EnforcementReport(
            writes=writes,
            created=new,
            enabled=tuple(
                a for a in above if not set(self._enforced.needed) <= enabled(self._tree, a)
            ),
            notes=tuple(notes(scene)),
        )

    def release(self, pod: PodAllocation) -> ReleaseReport:
        """Remove the cgroup of a pod that is no longer in the ledger.

        It stays while processes live in it: nothing is ever ended. The next `enforce` then
        confines them to the node's shared pool. Raises `OSError` only when the tree itself fails.
        """
        try:
            return self._remove(pod.uid, pod_cgroup(self._layout, pod))
        except CgroupNameError:
            # It never had one.
            return ReleaseReport("", removed=True)

    def release_leftovers(self, target: Desired) -> tuple[ReleaseReport, ...]:
        """Remove the empty cgroups of pods that are not in the ledger; report those that stay."""
        found = leftovers(self._tree, self._layout, target.ledger)
        return tuple(self._remove("", leftover.cgroup) for leftover in found)

    def release_bound(self, target: Desired) -> frozenset[str]:
        """Clear the sets of cgroups that were bound and in which nothing runs any more.

        Whatever starts there afterwards is nobody's container, so it must not start on CPUs that
        are somebody's. Returns the cgroups of which nothing has to be remembered: these, and those
        that no longer exist.
        """
        bindings, living = target.bindings, target.ledger.allocations
        elsewhere = given_up(self._layout, target.ledger, bindings)
        return frozenset(
            path
            for path in bindings.given_up(living)
            if not self._tree.exists(path)
            or (path in elsewhere and not runs(self._tree, path) and self._clear(path))
        )

    def _clear(self, cgroup: str) -> bool:
        """Give a cgroup back as it was found; tell whether that was possible."""
        try:
            for path in (cgroup, *(each.cgroup for each in subgroups(self._tree, cgroup))):
                for file, text in zip(_SETS, self._tree.read_many(path, _SETS), strict=True):
                    if (text or "").strip():
                        self._tree.write(path, file, "\n")
            self._pods.forget(cgroup)
        except FileNotFoundError:
            return True
        except (OSError, SystemdError):
            # Something started there meanwhile (the kernel clears no set under processes), or
            # systemd would write the set again: it is confined, and tried again.
            return False
        return True

    def cgroups_of(self, target: Desired, uid: str) -> tuple[CgroupReport, ...]:
        """Return a pod's cgroups as they are; nothing is written."""
        scope = AffectedPods(frozenset({uid} & target.ledger.allocations.keys()))
        return self._verify(target, scope).of_pod(uid)

    def _enforce(
        self,
        target: Desired,
        scope: AffectedPods | None,
        resting: Mapping[str, Setting],
        *,
        move_memory: bool,
    ) -> EnforcementReport:
        # Whatever goes wrong from here on, the next change looks at everything.
        self._last = None
        scene = self._look(target, scope)
        resting = still_resting(scene, resting)
        differing = scene.differing()
        wrong = self._assess(self._not_as_asked(scene, differing))
        postponed = tuple(p for p in wrong if is_within(p.cgroup, resting) and p.file != ENABLED)
        found = tuple(problem for problem in wrong if problem not in postponed)
        done = self._repair(scene, resting, found, differs=bool(differing), move_memory=move_memory)
        left = self._assess(done.scene.differing())
        drift = self._drift(done.scene, found)
        self._memory.note_asked(done.scene, {p.cgroup for p in left if p.cause is Cause.IN_USE})
        self._left = frozenset(beyond_repair(left, done.outcomes, resting))
        report = EnforcementReport(
            pods=done.scene.pods(),
            cgroups=reports(done.scene, left),
            found=found,
            drift=drift,
            postponed=postponed,
            problems=(
                *done.rejected,
                *skipped(done.scene, done.outcomes),
                *beside(done.scene, left),
            ),
            writes=tuple(write_record(outcome) for outcome in done.outcomes),
            created=tuple(done.created),
            enabled=tuple(done.enabled),
            recorded=tuple(done.recorded),
            notes=(*notes(done.scene), *withheld(done.plan)),
        )
        self._last = target if report.ok else None
        return report

    def _repair(
        self,
        scene: Observation,
        resting: Collection[str],
        found: Iterable[Difference],
        *,
        differs: bool,
        move_memory: bool,
    ) -> _Repair:
        """Make what is missing, write what differs, and have the drivers remember it."""
        plan = Plan()
        outcomes: tuple[WriteOutcome, ...] = ()
        created, enabled, rejected = self._make_room(scene)
        if created or enabled:
            scene = self._again(scene, {*created, *enabled})
        if differs or created or enabled:
            scene, plan, outcomes = self._write(scene, resting, move_memory=move_memory)
        recorded, untold = self._tell(scene, {problem.cgroup for problem in found})
        if recorded:
            # Being told, systemd writes as well, a quota in whole percents and never narrower, and
            # it may bring the units beside up to date.
            scene, plan, more = self._write(self._again(scene), resting, move_memory=move_memory)
            outcomes += more
        return _Repair(scene, plan, outcomes, created, enabled, recorded, rejected + untold)

    def _verify(self, target: Desired, scope: AffectedPods | None) -> EnforcementReport:
        scene = self._look(target, scope)
        found = self._assess(scene.differing())
        return EnforcementReport(
            pods=scene.pods(),
            cgroups=reports(scene, found),
            found=found,
            drift=self._drift(scene, found),
            problems=tuple(beside(scene, found)),
            notes=tuple(notes(scene)),
        )

    def _look(self, target: Desired, scope: AffectedPods | None = None) -> Observation:
        return steadily(
            lambda: Observation.of(
                self._tree, self._layout, target, self._finder, scope, self._enforced
            )
        )

    def _again(self, scene: Observation, touched: Collection[str] = ("",)) -> Observation:
        return steadily(lambda: scene.again(self._tree, touched))

    def _recorded(self, cgroup: str) -> WriterRecords:
        runtime = None if self._finder is None else self._finder.remembered(cgroup)
        return WriterRecords(self._pods.remembered(cgroup), runtime)

    def _assess(self, differing: Sequence[DesiredCgroup]) -> tuple[Difference, ...]:
        """Tell what the kernel does not enforce of what was seen to differ."""
        if not differing:
            return ()
        needed = self._enforced.needed
        return steadily(lambda: assess(self._tree, self._recorded, differing, needed))

    def _not_as_asked(
        self, scene: Observation, differing: Sequence[DesiredCgroup]
    ) -> tuple[DesiredCgroup, ...]:
        """Leave out what shows what was asked before: only the wish has changed."""
        return tuple(
            item
            for item in differing
            if not self._memory.shows_former(item, scene.states.get(item.setting.cgroup))
        )

    def _drift(self, scene: Observation, found: Iterable[Difference]) -> tuple[Difference, ...]:
        """Return what somebody undid: the rest is new, or nobody could repair it the last time."""
        if not found:
            return ()
        same = {item.setting.cgroup for item in scene.desired if self._memory.was_asked(item)}
        return tuple(p for p in found if p not in self._left and concerns(p, same))

    def _make_room(self, scene: Observation) -> tuple[list[str], list[str], list[Difference]]:
        """Make missing pod cgroups and enable controllers; return both, and what was rejected."""
        created, rejected = self._create(scene.missing())
        unmade = {problem.cgroup for problem in rejected}
        enabled, lacking = self._enable(scene.lacking(self._tree, unmade))
        return created, enabled, rejected + lacking

    def _write(
        self, scene: Observation, resting: Collection[str], *, move_memory: bool
    ) -> tuple[Observation, Plan, tuple[WriteOutcome, ...]]:
        """Write what differs, in the safe order; return how it looks then."""
        settings = scene.settings(move_memory=move_memory)
        awake = (each for each in settings if not is_within(each.cgroup, resting))
        plan = make_plan(scene.states, awake)
        outcomes = apply(self._tree, plan).outcomes
        written = {outcome.write.cgroup for outcome in outcomes}
        return (self._again(scene, written) if written else scene), plan, outcomes

    def _create(self, owners: Mapping[str, str]) -> tuple[list[str], list[Difference]]:
        """Make the cgroups that `owners` maps to pod uids."""
        created: list[str] = []
        problems: list[Difference] = []
        for cgroup, uid in owners.items():
            try:
                created.extend(self._pods.create(cgroup))
            except CreateError as error:
                problems.append(Difference(cgroup, str(error), Cause.UNKNOWN, uid))
        return created, problems

    def _enable(self, needs: Mapping[str, NeededControllers]) -> tuple[list[str], list[Difference]]:
        """Enable the controllers on the way to each cgroup; every ancestor is looked at once.

        What not every cgroup needs is enabled by itself: that may fail where the rest does not.
        """
        written: list[str] = []
        problems: list[Difference] = []
        passes: dict[str, set[str]] = {}
        for cgroup, need in needs.items():
            above = ancestors(cgroup)
            for path in above:
                if path not in passes:
                    passes[path] = set(enabled(self._tree, path))
            for controllers in (need.all, *((name,) for name in need.further)):
                if all(passes[path].issuperset(controllers) for path in above):
                    continue
                try:
                    written.extend(enable(self._tree, cgroup, controllers))
                except CgroupError as error:
                    problems.append(Difference(cgroup, str(error), Cause.CONTROLLER_LOST, need.pod))
                else:
                    for path in above:
                        passes[path].update(controllers)
        return list(dict.fromkeys(written)), problems

    def _tell(
        self, scene: Observation, suspect: Collection[str]
    ) -> tuple[list[str], list[Difference]]:
        """Have the settings of every cgroup remembered; return the units told and what failed.

        Of a `suspect` they are compared with what is remembered: that may be what undid them.
        """
        recorded: list[str] = []
        problems: list[Difference] = []
        told: list[tuple[DesiredCgroup, WriterRecord]] = []
        silence: list[SystemdError] = []
        for item in scene.desired:
            cgroup, state = item.setting.cgroup, scene.states.get(item.setting.cgroup)
            if state is None or item.role is Role.SUBGROUP:
                continue
            record = record_of(item, state)
            if item.role is Role.ALL_PODS and record.cpus is None and record.mems is None:
                continue  # nobody undid anything there, and its other files are not ours
            try:
                if cgroup in suspect or self._memory.told(item) != record:
                    unit = self._pods.record(cgroup, record)
                    recorded.extend([] if unit is None else [unit])
                told.append((item, record))
            except (BusTimeoutError, BusUnavailableError, NotAskedError) as error:
                silence.append(error)
            except SystemdError as error:
                problems.append(not_told(item, error))
        if silence:
            problems.append(none_told(len(silence), silence[0]))
        self._memory.note_told(scene, told)
        return recorded, problems

    def _remove(self, uid: str, cgroup: str) -> ReleaseReport:
        self._memory.forget_told(uid, cgroup)
        if not self._tree.exists(cgroup):
            return ReleaseReport(cgroup, removed=True)
        return self._pods.remove(cgroup)

    def _fresh_state(self) -> CgroupState:
        texts = self._tree.read_many("", (CPUS_EFFECTIVE, MEMS_EFFECTIVE))
        cpus, mems = (Mask.parse(text or "") for text in texts)
        values = {MEMORY_MAX: NO_LIMIT, CPU_WEIGHT: DEFAULT_WEIGHT}
        values |= dict.fromkeys(self._enforced.files, NO_LIMIT)
        return CgroupState(EMPTY, cpus, EMPTY, mems, UNLIMITED, populated=False, values=values)
