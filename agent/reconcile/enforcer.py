"""The only writer of cgroups.

Blocking; call it from one thread. Every call observes the cgroups first, so it can be repeated
after any failure and writes only what still differs: `enforce`, `repair` and `verify` observe all
cgroups, `enforce_change` those that a change affects (`agent.reconcile.scope` says which may be
left out, and why). Each cgroup is read once; a cgroup that was written is read back with all
cgroups inside it; a cgroup that then still differs is read again to find the cause. The cache
(`agent.reconcile.observe`) saves work and distinguishes drift from new settings; the result does
not depend on it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.cpu.manager import exclusive_cpus
from agent.reconcile.desired import (
    HostSets,
    KnownChanges,
    KnownPods,
    Role,
    desired_cgroups,
    no_host_settings,
    no_partitions,
    with_partitions,
)
from agent.reconcile.diff import (
    NO_DRIFT,
    Cause,
    Difference,
    WriterRecords,
    assess,
    by_the_kubelet,
    unknown_writer,
    without_the_kubelets,
)
from agent.reconcile.drivers import CreateError, ToRecord, record_of
from agent.reconcile.ending import Releaser
from agent.reconcile.enforced import EVERYTHING, EnforcedControllers
from agent.reconcile.observe import (
    ANY_CHILD,
    NeededControllers,
    Observation,
    ObservationCache,
    steadily,
    still_resting,
)
from agent.reconcile.pod_cgroups import identify_cgroups
from agent.reconcile.pod_classes import NO_PODS
from agent.reconcile.remarks import (
    beside,
    beyond_repair,
    concerns,
    none_recorded,
    not_fitting,
    not_offered,
    not_recorded,
    not_there,
    notes,
    reports,
    skipped,
    withheld,
)
from agent.reconcile.report import CgroupReport, EnforcementReport, PlannedChange, write_record
from agent.reconcile.scope import AffectedPods, scope_of
from cgroupfs.apply import CPUSET, ENABLED, apply, available, enable, enabled
from cgroupfs.errors import CgroupError
from cgroupfs.plan import Plan, make_plan
from cgroupfs.settings import EFFECTIVE, PARTITION_FILES
from cgroupfs.state import WriterRecord, effective_sets, fresh_state
from cgroupfs.tree import ancestors, is_within, join, parent
from sysfs.mask import EMPTY
from systemd.units import BusTimeoutError, BusUnavailableError, NotAskedError, SystemdError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from agent.reconcile.desired import DesiredCgroup, HostSettings, PartitionWords
    from agent.reconcile.diff import WriterOf
    from agent.reconcile.drivers import PodCgroups, UnitState
    from agent.reconcile.pod_cgroups import KnownContainers
    from agent.reconcile.target import Desired
    from agent.runtimes import ContainerIdentifier
    from cgroupfs.apply import WriteOutcome
    from cgroupfs.names import Layout
    from cgroupfs.plan import Setting
    from cgroupfs.tree import CgroupTree

    #: Cgroups with how they differ from what is desired.
    Differing: TypeAlias = Sequence[tuple[DesiredCgroup, tuple[Difference, ...]]]


_NONE: Final[Mapping[str, Setting]] = MappingProxyType({})


class _Repair(Struct, frozen=True):
    """One repair: the cgroups observed after it, the last plan, all writes, what failed.

    `created` and `enabled` are cgroups, `recorded` the units whose properties were set in systemd.
    """

    observed: Observation
    plan: Plan
    outcomes: tuple[WriteOutcome, ...]
    created: Sequence[str]
    enabled: Sequence[str]
    recorded: Sequence[str]
    rejected: Sequence[Difference]

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        did = self.created or self.enabled or self.outcomes or self.recorded
        return not (did or self.rejected)


def _apart(
    differences: Iterable[Difference],
) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """Return those of partitions, which are no condition of the pod's enforcement, and the rest."""
    found: tuple[list[Difference], list[Difference]] = ([], [])
    for each in differences:
        found[each.file not in PARTITION_FILES].append(each)
    return tuple(found[0]), tuple(found[1])


def _may_wait(
    resting: Mapping[str, Setting], target: Desired, differing: Differing
) -> Mapping[str, Setting]:
    """Return the resting cgroups in which no set names exclusive CPUs of other pods.

    A set that a cgroup above confines counts as well: its processes would have these CPUs as soon
    as the one above is widened.
    """
    if not resting:
        return resting
    allocations, exclusive = target.ledger.allocations, exclusive_cpus(target.ledger)
    naming: set[str] = set()
    for item, found in differing:
        own = allocations[item.pod].exclusive_cpus if item.pod in allocations else EMPTY
        if any(each.named & (exclusive - own) for each in found):
            naming.add(item.setting.cgroup)
    return {
        path: setting
        for path, setting in resting.items()
        if not any(is_within(each, (path,)) for each in naming)
    }


class Enforcer:
    """Makes the kernel enforce a ledger.

    `pods` is the driver (`SliceCgroups`, `DirectoryCgroups`), `finder` identifies containers by
    more than the names of their cgroups, `enforced` are the controllers whose files are written,
    `writer_of` names the process that wrote a file last, `beside` says what the host's own cgroups
    are to have, `partitions` which pods are partitions.
    """

    def __init__(  # noqa: PLR0913  # what is enforced, and by what
        self,
        tree: CgroupTree,
        layout: Layout,
        pods: PodCgroups,
        finder: ContainerIdentifier | None = None,
        enforced: EnforcedControllers = EVERYTHING,
        writer_of: WriterOf = unknown_writer,
        beside: HostSettings = no_host_settings,
        *,
        partitions: PartitionWords = no_partitions,
    ) -> None:
        self._beside = beside
        self._partitions = partitions
        self._tree = tree
        self._layout = layout
        self._pods = pods
        self._finder = finder
        self._enforced = enforced
        self._writer_of = writer_of
        self._memory = ObservationCache()
        #: Removes cgroups of pods that ended.
        self.releaser = Releaser(tree, layout, pods, self._memory)
        self._left: frozenset[Difference] = frozenset()
        #: The QoS classes of the last ledger that was enforced, from which the next are made.
        self._classes = NO_PODS
        self._known = KnownPods()
        self._without_the_kubelets = KnownChanges()
        self._with_partitions = KnownChanges()
        self._containers: KnownContainers = {}
        #: What was last enforced in full, None as soon as an enforcement fails.
        self._last: Desired | None = None
        #: What was last observed of all cgroups, and reported, if there was nothing to do.
        self._rest: tuple[Observation, EnforcementReport] | None = None

    def prepare(self) -> EnforcementReport:
        """Create the cgroup of all pods with its controllers; call this once at the start.

        Where the kubelet makes cgroups, nothing is created or enabled. Raises
        `EnforcementStartError` when the driver cannot work; what the kernel rejects is in the
        report.
        """
        self._pods.check()
        path = self._layout.pods()
        asked, self._enforced = self._enforced, self._enforced.available_in(available(self._tree))
        if not self._pods.makes:
            lacks = not_offered(asked.controllers - self._enforced.controllers)
            return EnforcementReport(notes=tuple(lacks))
        created, rejected = self._create({path: ""})
        need = NeededControllers("", self._enforced.needed, self._enforced.for_limits)
        enabled, lacking = self._enable({join(path, ANY_CHILD): need})
        return EnforcementReport(
            differences=(*rejected, *lacking),
            created=tuple(created),
            enabled=tuple(enabled),
            notes=tuple(not_offered(asked.controllers - self._enforced.controllers)),
        )

    def enforce(
        self,
        target: Desired,
        *,
        move_memory: bool = False,
        resting: Mapping[str, Setting] = _NONE,
    ) -> EnforcementReport:
        """Write what differs, so that the kernel enforces `target`.

        Shared containers shrink and are verified, then exclusive CPUs are given, pods first; the
        settings are recorded in systemd; all of them are read back. Missing pod cgroups are
        created. `cpuset.mems` is written where it was unset; a set that another process wrote in a
        running container is rewritten (which migrates its memory) only with `move_memory`. A limit
        below the current use is never written: the kernel would kill processes for it. A cgroup in
        `resting` and the cgroups inside it are not written as long as the same setting is desired
        and its set names no exclusive CPUs of other pods.

        A systemd that did not answer is asked again here and by `verify`, and by no other call: so
        any number of changes in a row waits for one deadline.
        """
        self._pods.try_again()
        return self._enforce(target, None, resting, move_memory=move_memory)

    def enforce_change(
        self, target: Desired, *uids: str, move_memory: bool = False
    ) -> EnforcementReport:
        """Enforce `target`, observing only what differs from the last `Desired` enforced in full.

        The pods `uids` are observed in any case. The report covers `EnforcementReport.pods`; all
        other pods were enforced when they were last observed. Raises `OSError` as `enforce` does.
        """
        return self._enforce(target, self._scope(target, uids), _NONE, move_memory=move_memory)

    def repair(self, target: Desired, resting: Mapping[str, Setting] = _NONE) -> EnforcementReport:
        """Enforce, including memory nodes that were changed under a running container."""
        return self.enforce(target, move_memory=True, resting=resting)

    def verify(self, target: Desired) -> EnforcementReport:
        """Compare the kernel with `target`; nothing is written."""
        self._pods.try_again()
        return self._verify(target, None)

    def plan(self, target: Desired, uid: str) -> PlannedChange:
        """Return what `enforce_change` would create and write for the pod; nothing is written.

        The cgroups that would be created are assumed to be as the kernel creates them.
        """
        observed = self._observe(target, self._scope(target, (uid,)))
        new = tuple(observed.missing()) if self._pods.makes else ()
        above = [path for pod in new for path in ancestors(pod)[1:] if not self._tree.exists(path)]
        created = tuple(dict.fromkeys((*above, *new)))
        files = (*self._enforced.files, *PARTITION_FILES)
        fresh = dict.fromkeys(created, fresh_state(self._tree, files))
        observed = replace(observed, states={**observed.states, **fresh})
        plan = make_plan(observed.states, observed.settings(move_memory=False))
        return PlannedChange(created, plan.writes)

    def unit(self, name: str) -> UnitState | None:
        """Return the state of a systemd unit; see `PodCgroups.unit`."""
        return self._pods.unit(name)

    def cgroups_of(self, target: Desired, uid: str) -> tuple[CgroupReport, ...]:
        """Return the observed cgroups of a pod; nothing is written."""
        scope = AffectedPods(frozenset({uid} & target.ledger.allocations.keys()))
        return self._verify(target, scope).cgroups_of(uid)

    def _enforce(
        self,
        target: Desired,
        scope: AffectedPods | None,
        resting: Mapping[str, Setting],
        *,
        move_memory: bool,
    ) -> EnforcementReport:
        # If anything fails from here on, the next change observes all cgroups.
        self._last = None
        rest, self._rest = self._rest if scope is None else None, None
        # A record in systemd has weight and limits as they are shown.
        observed = self._observe(
            target,
            scope,
            all_values=self._pods.records,
            all_nodes=False,
            rest=None if rest is None else rest[0],
        )
        if rest is not None and observed is rest[0]:
            self._last, self._rest = target, rest
            return rest[1]
        differing = observed.differing()
        resting = _may_wait(still_resting(observed, resting), target, differing)
        wrong = self._assess(self._not_as_before(observed, differing))
        if scope is not None and self._crossed(observed, scope, wrong):
            return self._enforce(target, None, resting, move_memory=move_memory)
        postponed = tuple(p for p in wrong if is_within(p.cgroup, resting) and p.file != ENABLED)
        found = tuple(difference for difference in wrong if difference not in postponed)
        done = self._repair(observed, resting, found, differing, move_memory=move_memory)
        if done.observed is not observed:
            differing = done.observed.differing()
        left = self._assess(differing)
        unpartitioned, unenforced = _apart(left)
        drift = self._drift(done.observed, found)
        self._memory.note_asked(done.observed, {p.cgroup for p in left if p.cause is Cause.IN_USE})
        self._left = frozenset(beyond_repair(left, done.outcomes, resting))
        self._memory.note_settled(done.observed, {item.setting.cgroup for item, _ in differing})
        report = EnforcementReport(
            pods=done.observed.pods(),
            cgroups=reports(done.observed, unenforced),
            found=found,
            drift=drift,
            postponed=postponed,
            differences=(
                *done.rejected,
                *_apart(skipped(done.observed, done.outcomes))[1],
                *not_fitting(done.observed, done.plan),
                *beside(done.observed, unenforced),
                *not_there(done.observed, target),
            ),
            unpartitioned=unpartitioned,
            writes=tuple(write_record(outcome) for outcome in done.outcomes),
            created=tuple(done.created),
            enabled=tuple(done.enabled),
            recorded=tuple(done.recorded),
            notes=(
                *notes(done.observed, orphans=self._pods.makes),
                *withheld(done.plan),
                *(each.detail for each in unpartitioned),
            ),
        )
        self._last = target if report.ok else None
        quiet = scope is None and done.idle and not differing and report.ok
        # An empty pod may lose controllers without a trace in what is read.
        if quiet and not observed.lacking(self._tree, ()):
            self._rest = observed, report
        return report

    def _repair(
        self,
        observed: Observation,
        resting: Collection[str],
        found: Iterable[Difference],
        differing: Differing,
        *,
        move_memory: bool,
    ) -> _Repair:
        """Create what is missing, write what differs, and record the settings in systemd."""
        plan = Plan()
        outcomes: tuple[WriteOutcome, ...] = ()
        created, enabled, rejected = self._create_and_enable(observed)
        if created or enabled:
            observed = self._reread(observed, {*created, *enabled})
        if differing or created or enabled:
            observed, plan, outcomes = self._write(observed, resting, move_memory=move_memory)
        recorded, unrecorded = self._record(observed, {difference.cgroup for difference in found})
        if recorded:
            # When a property is set, systemd writes the cgroup too, with the quota rounded up to
            # whole percents, and may update neighbouring units.
            observed, plan, more = self._write(
                self._reread(observed), resting, move_memory=move_memory
            )
            outcomes += more
        return _Repair(observed, plan, outcomes, created, enabled, recorded, rejected + unrecorded)

    def _verify(self, target: Desired, scope: AffectedPods | None) -> EnforcementReport:
        observed = self._observe(target, scope)
        found = self._assess(observed.differing())
        unpartitioned, unenforced = _apart(found)
        return EnforcementReport(
            pods=observed.pods(),
            cgroups=reports(observed, unenforced),
            found=found,
            drift=self._drift(observed, found),
            differences=(*beside(observed, unenforced), *not_there(observed, target)),
            unpartitioned=unpartitioned,
            notes=(
                *notes(observed, orphans=self._pods.makes),
                *(each.detail for each in unpartitioned),
            ),
        )

    def _scope(self, target: Desired, uids: Collection[str]) -> AffectedPods | None:
        self._classes = self._classes.of(target.ledger.allocations)
        known, all_pods = self._memory, self._layout.pods()
        return scope_of(
            self._last, target, uids, known.shares, known.inheriting, all_pods, self._classes
        )

    def _observe(
        self,
        target: Desired,
        scope: AffectedPods | None = None,
        *,
        all_values: bool = True,
        all_nodes: bool = True,
        rest: Observation | None = None,
    ) -> Observation:
        """Observe the tree; `rest` is what was observed before, if all of that was as desired."""
        allocations = target.ledger.allocations
        self._classes = self._classes.of(allocations)
        tree, enforced, all_pods = self._tree, self._enforced, self._layout.pods()
        words = self._partitions(target, all_pods) if CPUSET in enforced.controllers else None

        def observed() -> Observation:
            identified = identify_cgroups(
                tree,
                self._layout,
                target.ledger,
                target.bindings,
                self._finder,
                scope,
                self._containers,
            )
            above = parent(all_pods)
            sets = effective_sets(tree, above)
            online = effective_sets(tree, "")[0] if above else sets[0]
            desired = desired_cgroups(
                target,
                identified,
                enforced,
                HostSets(*sets, online),
                self._classes,
                self._known,
                self._beside,
            )
            if not self._pods.makes:
                desired = without_the_kubelets(
                    desired, allocations, identified.pods, self._without_the_kubelets
                )
            if words is not None:
                desired = with_partitions(
                    desired, words, all_pods, allocations, self._with_partitions
                )
            now = Observation(
                identified,
                desired,
                scope=scope,
                enforced=enforced,
                all_values=all_values,
                all_nodes=all_nodes,
            )
            if rest is not None and rest.lasts(tree, now):
                return rest
            return now.with_states(tree, self._memory.settled)

        return steadily(observed)

    def _reread(self, observed: Observation, touched: Collection[str] = ("",)) -> Observation:
        return steadily(lambda: observed.again(self._tree, touched))

    def _recorded(self, cgroup: str) -> WriterRecords:
        runtime = None if self._finder is None else self._finder.remembered(cgroup)
        return WriterRecords(self._pods.remembered(cgroup), runtime)

    def _assess(self, differing: Differing) -> tuple[Difference, ...]:
        """Return the differences of the cgroups that were observed to differ, with their causes."""
        if not differing:
            return ()
        needed = self._enforced.needed
        # What was never written was not reverted: systemd and the runtime need not be asked.
        new = {item.setting.cgroup for item, _ in differing if self._memory.is_new(item)}
        units: dict[str, WriterRecord | None] = {}

        def recorded(cgroup: str) -> WriterRecords:
            records = WriterRecords() if cgroup in new else self._recorded(cgroup)
            units[cgroup] = records.systemd
            return records

        found = steadily(lambda: assess(self._tree, differing, recorded, needed, self._writer_of))
        if self._pods.makes:
            return found
        roles = {item.setting.cgroup: item.role for item, _ in differing}
        return tuple(
            by_the_kubelet(p, roles.get(p.cgroup, Role.ALL_PODS), units.get(p.cgroup))
            for p in found
        )

    def _not_as_before(self, observed: Observation, differing: Differing) -> Differing:
        """Leave out cgroups that show what was desired before: only the desired state changed."""
        return tuple(
            (item, differences)
            for item, differences in differing
            if not self._memory.shows_former(item, observed.states.get(item.setting.cgroup))
        )

    def _drift(self, observed: Observation, found: Iterable[Difference]) -> tuple[Difference, ...]:
        """Return what another process changed.

        The rest is new, was beyond repair last time, is the kubelet's normal work, or the set of
        a cgroup above that was changed. A cgroup above the pods that shows no set was made again,
        as the kubelet and systemd do: the kernel clears no set in use.
        """
        if not found:
            return ()
        same = {item.setting.cgroup for item in observed.desired if self._memory.was_asked(item)}
        return tuple(
            p
            for p in found
            if p.cause not in NO_DRIFT and p not in self._left and concerns(p, same)
            if p.pod or p.file not in EFFECTIVE or p.observed != ""
        )

    def _crossed(
        self, observed: Observation, scope: AffectedPods, wrong: Iterable[Difference]
    ) -> bool:
        """Return whether another process changed a boundary, so that anything may be inside."""
        return any(
            each.file == ENABLED or each.pod in scope.boundaries
            for each in self._drift(observed, wrong)
        )

    def _create_and_enable(
        self, observed: Observation
    ) -> tuple[list[str], list[str], list[Difference]]:
        """Create missing pod cgroups and enable controllers; return both, and what failed."""
        missing = observed.missing()
        created, rejected = self._create(missing) if self._pods.makes else ([], [])
        unmade = {difference.cgroup for difference in rejected} if self._pods.makes else {*missing}
        enabled, lacking = self._enable(observed.lacking(self._tree, unmade))
        return created, enabled, rejected + lacking

    def _write(
        self, observed: Observation, resting: Collection[str], *, move_memory: bool
    ) -> tuple[Observation, Plan, tuple[WriteOutcome, ...]]:
        """Write what differs, in the safe order; return what is observed after it."""
        settings = observed.settings(move_memory=move_memory)
        awake = (each for each in settings if not is_within(each.cgroup, resting))
        plan = make_plan(observed.states, awake)
        outcomes = apply(self._tree, plan, observed.hosts()).outcomes
        written = {outcome.write.cgroup for outcome in outcomes}
        return (self._reread(observed, written) if written else observed), plan, outcomes

    def _create(self, owners: Mapping[str, str]) -> tuple[list[str], list[Difference]]:
        """Create the cgroups that `owners` maps to pod uids."""
        created: list[str] = []
        differences: list[Difference] = []
        for cgroup, uid in owners.items():
            try:
                created.extend(self._pods.create(cgroup))
            except CreateError as error:
                differences.append(Difference(cgroup, str(error), Cause.UNKNOWN, uid))
        return created, differences

    def _enable(self, needs: Mapping[str, NeededControllers]) -> tuple[list[str], list[Difference]]:
        """Enable the controllers on the way to each cgroup; every ancestor is read once.

        A controller that not every cgroup needs is enabled separately, since that may fail where
        the others succeed.
        """
        written: list[str] = []
        differences: list[Difference] = []
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
                    differences.append(
                        Difference(cgroup, str(error), Cause.CONTROLLER_LOST, need.pod)
                    )
                else:
                    for path in above:
                        passes[path].update(controllers)
        return list(dict.fromkeys(written)), differences

    def _record(
        self, observed: Observation, suspect: Collection[str]
    ) -> tuple[list[str], list[Difference]]:
        """Record the settings of every cgroup in systemd; return the units set and what failed.

        For a `suspect` cgroup the settings are compared with what systemd has on record, since
        systemd may have reverted them.
        """
        if not self._pods.records:
            return [], []
        recorded: list[str] = []
        differences: list[Difference] = []
        silence: list[SystemdError] = []
        known: list[tuple[DesiredCgroup, WriterRecord]] = []
        changed: list[tuple[DesiredCgroup, ToRecord]] = []
        for item in observed.desired:
            cgroup, state = item.setting.cgroup, observed.states.get(item.setting.cgroup)
            if state is None or item.role is Role.SUBGROUP:
                continue
            whole = self._pods.makes and item.role is not Role.HOST
            record = record_of(item, state, whole=whole)
            unset = record.cpus is None and record.mems is None and not item.setting.values
            if item.role is Role.ALL_PODS and unset:
                continue  # its sets are as desired, and its other files are not the agent's
            before = None if cgroup in suspect else self._memory.recorded(item)
            if before == record:
                known.append((item, record))
            else:
                ours = item.role is not Role.HOST
                changed.append((item, ToRecord(cgroup, record, before, ours=ours)))
        results = self._pods.record([desired for _, desired in changed])
        for (item, desired), result in zip(changed, results, strict=True):
            match result:
                case BusTimeoutError() | BusUnavailableError() | NotAskedError():
                    silence.append(result)
                case SystemdError():
                    differences.append(not_recorded(item, result))
                case _:
                    recorded.extend([] if result is None else [result])
                    known.append((item, desired.record))
        if silence:
            differences.append(none_recorded(len(silence), silence[0]))
        self._memory.note_recorded(observed, known)
        return recorded, differences
