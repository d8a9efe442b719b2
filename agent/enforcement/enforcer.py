"""The one place that writes cgroups.

Blocking; call it from one thread. Every call reads the tree, so that it can be repeated after any
failure and does only what is left to do. What is remembered saves work and tells drift from what
is new; nothing goes wrong without it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from agent.enforcement.assess import as_wanted, assess
from agent.enforcement.desired import Role, desired
from agent.enforcement.locate import leftovers, pod_cgroup, survey
from agent.enforcement.pod_cgroups import CreateError
from agent.enforcement.report import (
    CgroupReport,
    EnforcementReport,
    Problem,
    ReleaseReport,
    WriteRecord,
    write_record,
)
from cgroupfs.apply import Result, apply
from cgroupfs.controllers import ENABLED, NEEDED, enable, enabled
from cgroupfs.diagnose import Cause
from cgroupfs.errors import CgroupError, CgroupNameError
from cgroupfs.plan import Plan, Setting, make_plan
from cgroupfs.state import CPUS_EFFECTIVE, MEMS_EFFECTIVE, State, read_states
from cgroupfs.tree import ancestors, join
from cgroupfs.values import UNLIMITED
from cgroupfs.verify import Record, Records
from sysfs.mask import EMPTY, Mask
from systemd.errors import SystemdError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from agent.enforcement.desired import Target, Wanted
    from agent.enforcement.locate import ContainerFinder, Landscape, LocatedPod
    from agent.enforcement.pod_cgroups import PodCgroups
    from agent.ledger import PodGrant
    from cgroupfs.apply import Outcome
    from cgroupfs.names import Layout
    from cgroupfs.tree import Tree


#: Stands for a child that is still to come: its ancestors are what matters.
_ANY_CHILD: Final = "container"
#: So many containers may end right under our eyes before it counts as a failure of the tree.
_LOOKS: Final = 8

_NOBODY: Final[Mapping[str, Setting]] = MappingProxyType({})

_Seen = TypeVar("_Seen")


@dataclass(frozen=True, slots=True)
class _Scene:
    """One look at the tree: who is where, what is wanted, what the kernel shows."""

    landscape: Landscape
    wanted: tuple[Wanted, ...]
    states: Mapping[str, State]

    def missing(self) -> dict[str, str]:
        """Return the pod cgroups that do not exist, with the pods' uids."""
        return {pod.cgroup: uid for uid, pod in self.landscape.pods.items() if not pod.exists}

    def paths(self, tree: Tree, unmade: Collection[str]) -> dict[str, str]:
        """Return the cgroups whose controllers are ours to enable, with the pods' uids.

        A new pod's cgroup passes them on from the start, before its first container is there,
        unless it could not be made.
        """
        inside = {
            join(pod.cgroup, _ANY_CHILD): uid
            for uid, pod in self.landscape.pods.items()
            if pod.cgroup not in unmade and self._is_empty(pod)
        }
        return inside | {
            item.setting.cgroup: item.pod
            for item in self.wanted
            if item.role is not Role.SUBGROUP
            and (item.setting.cgroup in self.states or tree.exists(item.setting.cgroup))
        }

    def _is_empty(self, pod: LocatedPod) -> bool:
        """Tell whether nothing runs in a pod yet.

        Where processes live in the pod's cgroup itself, passing controllers on to children would
        keep containers out.
        """
        state = self.states.get(pod.cgroup)
        return not pod.containers and not (state is not None and state.populated)


class Enforcer:
    """Makes the kernel honour a ledger.

    `pods` is the driver (`SliceCgroups`, `DirectoryCgroups`), `finder` knows more about containers
    than their cgroups' names tell.
    """

    def __init__(
        self,
        tree: Tree,
        layout: Layout,
        pods: PodCgroups,
        finder: ContainerFinder | None = None,
    ) -> None:
        self._tree = tree
        self._layout = layout
        self._pods = pods
        self._finder = finder
        self._told: dict[str, Record] = {}
        self._asked: Mapping[str, Setting] = {}
        self._left: frozenset[Problem] = frozenset()

    def prepare(self) -> EnforcementReport:
        """Make the cgroup of all pods with its controllers; call it once at the start.

        Raises `EnforcementStartError` when the driver cannot work; what the kernel refuses is in
        the report.
        """
        self._pods.check()
        path = self._layout.pods()
        created, refused = self._create({path: ""})
        enabled, lacking = self._enable({join(path, _ANY_CHILD): ""})
        return EnforcementReport(
            problems=(*refused, *lacking), created=tuple(created), enabled=tuple(enabled)
        )

    def enforce(
        self,
        target: Target,
        *,
        move_memory: bool = False,
        resting: Mapping[str, Setting] = _NOBODY,
    ) -> EnforcementReport:
        """Do what is left to do so that the kernel honours `target`.

        Shared containers shrink and are verified, then exclusive CPUs are given, pods first;
        systemd is told; everything is read back. Pod cgroups that are missing are made.
        `cpuset.mems` is written where it was unset; a set that somebody wrote in a running
        container is rewritten (which migrates its memory) only with `move_memory`. A cgroup of
        `resting` is left alone, as is what is inside it, as long as that very setting is wanted.
        Raises `OSError` only when the tree itself fails.
        """
        scene = self._look(target)
        resting = _still_resting(scene, resting)
        differing = self._found(scene)
        postponed = tuple(p for p in differing if _rests(p.cgroup, resting) and p.file != ENABLED)
        found = tuple(problem for problem in differing if problem not in postponed)
        created, enabled, refused = self._make_room(scene)
        if created or enabled:
            scene = self._again(scene)
        if found or created or enabled:
            scene, plan, outcomes = self._write(scene, resting, move_memory=move_memory)
        else:
            plan, outcomes = Plan(), ()
        recorded, untold = self._tell(scene, {problem.cgroup for problem in found})
        if recorded:
            # Being told, systemd writes as well, a quota in whole percents and never narrower.
            scene, plan, more = self._write(self._again(scene), resting, move_memory=move_memory)
            outcomes += more
        left = self._assess(scene) if differing or outcomes else ()
        drift = self._drift(scene, found)
        self._asked = _settings_in_place(scene)
        self._left = frozenset(_beyond_repair(left, outcomes, resting))
        return EnforcementReport(
            cgroups=_reports(scene, left),
            found=found,
            drift=drift,
            postponed=postponed,
            problems=(*refused, *untold, *_skipped(scene, outcomes), *_beside(scene, left)),
            writes=tuple(write_record(outcome) for outcome in outcomes),
            created=tuple(created),
            enabled=tuple(enabled),
            recorded=tuple(recorded),
            notes=(*_notes(scene), *_withheld(plan)),
        )

    def repair(self, target: Target, resting: Mapping[str, Setting] = _NOBODY) -> EnforcementReport:
        """Enforce, memory nodes that were changed under a running container included."""
        return self.enforce(target, move_memory=True, resting=resting)

    def verify(self, target: Target) -> EnforcementReport:
        """Compare the kernel with `target`; nothing is written."""
        scene = self._look(target)
        found = self._found(scene)
        return EnforcementReport(
            cgroups=_reports(scene, found),
            found=found,
            drift=self._drift(scene, found),
            problems=tuple(_beside(scene, found)),
            notes=tuple(_notes(scene)),
        )

    def preview(self, target: Target) -> EnforcementReport:
        """Return what `enforce` would write and make; nothing is written.

        The new pods' cgroups are taken as they will be when just made.
        """
        scene = self._look(target)
        new = tuple(scene.missing())
        fresh = self._fresh_state()
        scene = replace(scene, states={**scene.states, **dict.fromkeys(new, fresh)})
        plan = make_plan(scene.states, _settings(scene, move_memory=False))
        writes = tuple(WriteRecord(w.cgroup, w.file, w.value, w.stage) for w in plan.writes)
        above = dict.fromkeys(a for path in scene.states for a in ancestors(path))
        return EnforcementReport(
            writes=writes,
            created=new,
            enabled=tuple(a for a in above if not set(NEEDED) <= enabled(self._tree, a)),
            notes=tuple(_notes(scene)),
        )

    def release(self, pod: PodGrant) -> ReleaseReport:
        """Remove the cgroup of a pod that is no longer in the ledger.

        It stays while processes live in it: nothing is ever ended. The next `enforce` then
        confines them to the node's shared pool. Raises `OSError` only when the tree itself fails.
        """
        try:
            return self._remove(pod_cgroup(self._layout, pod))
        except CgroupNameError:
            # It never had one.
            return ReleaseReport("", removed=True)

    def release_leftovers(self, target: Target) -> tuple[ReleaseReport, ...]:
        """Remove the empty cgroups of pods that are not in the ledger; report those that stay."""
        found = leftovers(self._tree, self._layout, target.ledger)
        return tuple(self._remove(leftover.cgroup) for leftover in found)

    def cgroups_of(self, target: Target, uid: str) -> tuple[CgroupReport, ...]:
        """Return a pod's cgroups as they are; nothing is written."""
        return self.verify(target).of_pod(uid)

    def _look(self, target: Target) -> _Scene:
        return _steadily(lambda: self._look_once(target))

    def _look_once(self, target: Target) -> _Scene:
        landscape = survey(self._tree, self._layout, target.ledger, target.bindings, self._finder)
        wanted = desired(target, landscape)
        return _Scene(landscape, wanted, self._read(wanted))

    def _again(self, scene: _Scene) -> _Scene:
        return _steadily(lambda: replace(scene, states=self._read(scene.wanted)))

    def _assess(self, scene: _Scene) -> tuple[Problem, ...]:
        return _steadily(lambda: assess(self._tree, self._recorded, scene.wanted))

    def _recorded(self, cgroup: str) -> Records:
        runtime = None if self._finder is None else self._finder.remembered(cgroup)
        return Records(self._pods.remembered(cgroup), runtime)

    def _read(self, wanted: Iterable[Wanted]) -> Mapping[str, State]:
        return read_states(self._tree, (item.setting.cgroup for item in wanted))

    def _found(self, scene: _Scene) -> tuple[Problem, ...]:
        # Reading everything once more is worth it only where the first look found a difference.
        if _honoured(scene):
            return ()
        return self._assess(scene)

    def _drift(self, scene: _Scene, found: Iterable[Problem]) -> tuple[Problem, ...]:
        """Return what somebody undid: the rest is new, or nobody could repair it the last time."""
        same = {
            item.setting.cgroup
            for item in scene.wanted
            if self._asked.get(item.setting.cgroup) == item.setting
        }
        return tuple(p for p in found if p not in self._left and _concerns(p, same))

    def _make_room(self, scene: _Scene) -> tuple[list[str], list[str], list[Problem]]:
        """Make missing pod cgroups and enable controllers; return both, and what was refused."""
        created, refused = self._create(scene.missing())
        unmade = {problem.cgroup for problem in refused}
        enabled, lacking = self._enable(scene.paths(self._tree, unmade))
        return created, enabled, refused + lacking

    def _write(
        self, scene: _Scene, resting: Collection[str], *, move_memory: bool
    ) -> tuple[_Scene, Plan, tuple[Outcome, ...]]:
        """Write what differs, in the safe order; return how it looks then."""
        settings = _settings(scene, move_memory=move_memory)
        awake = (each for each in settings if not _rests(each.cgroup, resting))
        plan = make_plan(scene.states, awake)
        outcomes = apply(self._tree, plan).outcomes
        return (self._again(scene) if outcomes else scene), plan, outcomes

    def _create(self, owners: Mapping[str, str]) -> tuple[list[str], list[Problem]]:
        """Make the cgroups that `owners` maps to pod uids."""
        created: list[str] = []
        problems: list[Problem] = []
        for cgroup, uid in owners.items():
            try:
                created.extend(self._pods.create(cgroup))
            except CreateError as error:
                problems.append(Problem(cgroup, str(error), Cause.UNKNOWN, uid))
        return created, problems

    def _enable(self, owners: Mapping[str, str]) -> tuple[list[str], list[Problem]]:
        """Enable the controllers on the way to each cgroup; every ancestor is looked at once."""
        written: list[str] = []
        problems: list[Problem] = []
        passes: dict[str, bool] = {}
        for cgroup, uid in owners.items():
            for above in ancestors(cgroup):
                if above not in passes:
                    passes[above] = set(NEEDED) <= enabled(self._tree, above)
            if all(passes[above] for above in ancestors(cgroup)):
                continue
            try:
                written.extend(enable(self._tree, cgroup))
            except CgroupError as error:
                problems.append(Problem(cgroup, str(error), Cause.CONTROLLER_LOST, uid))
            else:
                passes.update(dict.fromkeys(ancestors(cgroup), True))
        return written, problems

    def _tell(self, scene: _Scene, suspect: Collection[str]) -> tuple[list[str], list[Problem]]:
        """Have the settings of every cgroup remembered; return the units told and what failed.

        Of a `suspect` they are compared with what is remembered: that may be what undid them.
        """
        recorded: list[str] = []
        problems: list[Problem] = []
        told: dict[str, Record] = {}
        for item in scene.wanted:
            cgroup, state = item.setting.cgroup, scene.states.get(item.setting.cgroup)
            if state is None or item.role is Role.SUBGROUP:
                continue
            record = _to_tell(item, state)
            try:
                if cgroup in suspect or self._told.get(cgroup) != record:
                    unit = self._pods.record(cgroup, record)
                    recorded.extend([] if unit is None else [unit])
                told[cgroup] = record
            except SystemdError as error:
                problems.append(_untold(item, error))
        self._told = told
        return recorded, problems

    def _remove(self, cgroup: str) -> ReleaseReport:
        for path in [path for path in self._told if f"{path}/".startswith(f"{cgroup}/")]:
            del self._told[path]
        if not self._tree.exists(cgroup):
            return ReleaseReport(cgroup, removed=True)
        return self._pods.remove(cgroup)

    def _fresh_state(self) -> State:
        texts = self._tree.read_many("", (CPUS_EFFECTIVE, MEMS_EFFECTIVE))
        cpus, mems = (Mask.parse(text or "") for text in texts)
        return State(EMPTY, cpus, EMPTY, mems, UNLIMITED, populated=False)


def _steadily(look: Callable[[], _Seen]) -> _Seen:
    """Look again when a cgroup went away between opening its file and reading it (ENODEV)."""
    for _ in range(_LOOKS):
        try:
            return look()
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
    return look()


def _still_resting(scene: _Scene, resting: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return the cgroups that rest and of which still the same is wanted."""
    if not resting:
        return resting
    wanted = {item.setting.cgroup: item.setting for item in scene.wanted}
    return {path: setting for path, setting in resting.items() if wanted.get(path) == setting}


def _rests(cgroup: str, resting: Collection[str]) -> bool:
    return any(f"{cgroup}/".startswith(f"{path}/") for path in resting)


def _settings(scene: _Scene, *, move_memory: bool) -> Iterator[Setting]:
    for item in scene.wanted:
        state = scene.states.get(item.setting.cgroup)
        if state is None:
            continue
        # An unset set was nobody's wish; pinning it is what the grant asks for.
        unset = state.mems is not None and not state.mems
        yield replace(item.setting, move_memory=move_memory or unset)


def _to_tell(item: Wanted, state: State) -> Record:
    """Return what systemd must hold; it rewrites `cpu.max` always, so one is always told."""
    setting = item.setting
    return Record(setting.cpus, setting.mems, setting.cpu_max or state.cpu_max)


def _withheld(plan: Plan) -> Iterator[str]:
    for write in plan.withheld:
        yield (
            f"{write.file} of /{write.cgroup} is left as it is: writing {write.value} would "
            "migrate the memory of what runs there; a repair does"
        )


def _untold(item: Wanted, error: SystemdError) -> Problem:
    cgroup = item.setting.cgroup
    detail = f"systemd was not told of /{cgroup} and may undo its settings: {error}"
    return Problem(cgroup, detail, Cause.REVERTED_BY_SYSTEMD, item.pod, item.container)


def _skipped(scene: _Scene, outcomes: Iterable[Outcome]) -> Iterator[Problem]:
    """Explain what was not written because somebody could not be narrowed first."""
    owners = {item.setting.cgroup: item for item in scene.wanted}
    for outcome in outcomes:
        if outcome.result is Result.SKIPPED:
            write, item = outcome.write, owners[outcome.write.cgroup]
            cause = outcome.cause or Cause.UNKNOWN
            yield Problem(write.cgroup, outcome.detail, cause, item.pod, item.container, write.file)


def _concerns(problem: Problem, cgroups: Collection[str]) -> bool:
    """Tell whether a problem is one of these cgroups; a lost controller is one of those inside."""
    if problem.file != ENABLED:
        return problem.cgroup in cgroups
    inside = f"{problem.cgroup}/" if problem.cgroup else ""
    return any(cgroup.startswith(inside) for cgroup in cgroups)


def _settings_in_place(scene: _Scene) -> Mapping[str, Setting]:
    settings = (item.setting for item in scene.wanted)
    return {setting.cgroup: setting for setting in settings if setting.cgroup in scene.states}


def _beyond_repair(
    left: Iterable[Problem], outcomes: Iterable[Outcome], resting: Collection[str]
) -> Iterator[Problem]:
    """Yield what the kernel does not honour whatever is written (a CPU that is offline).

    It is not what waits, nor what shows another value than the kernel took: that somebody undid.
    """
    taken = {(each.write.cgroup, each.write.file) for each in outcomes if each.shown is not None}
    for problem in left:
        if (problem.cgroup, problem.file) not in taken and not _rests(problem.cgroup, resting):
            yield problem


def _honoured(scene: _Scene) -> bool:
    """Tell whether every cgroup shows what is wanted and none is missing."""
    for item in scene.wanted:
        state = scene.states.get(item.setting.cgroup)
        if state is None and item.role is not Role.POD:
            continue
        if state is None or not as_wanted(item.setting, state):
            return False
    return True


def _reports(scene: _Scene, problems: Iterable[Problem]) -> tuple[CgroupReport, ...]:
    mine: dict[str, list[Problem]] = {}
    for problem in problems:
        mine.setdefault(problem.cgroup, []).append(problem)
    return tuple(
        CgroupReport(item, scene.states.get(cgroup), tuple(mine.get(cgroup, ())))
        for item in scene.wanted
        if (cgroup := item.setting.cgroup) in scene.states or cgroup in mine
    )


def _beside(scene: _Scene, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems of no cgroup of ours: an ancestor's controllers, a pod without a name."""
    for uid, why in scene.landscape.unnamed.items():
        yield Problem("", f"the pod cannot have a cgroup: {why}", Cause.UNKNOWN, uid)
    own = {item.setting.cgroup for item in scene.wanted}
    yield from (problem for problem in problems if problem.cgroup not in own)


def _notes(scene: _Scene) -> Iterator[str]:
    for item in scene.wanted:
        if item.role is Role.UNIDENTIFIED and item.setting.cgroup in scene.states:
            yield (
                f"/{item.setting.cgroup} in pod {item.pod} cannot be told to be one of its "
                f"containers; it runs on {item.setting.cpus or 'what its pod has'} until it is "
                "bound with 'numawarden bind'"
            )
    for leftover in scene.landscape.leftovers:
        yield (
            f"/{leftover.cgroup} belongs to no admitted pod; what runs there is confined to the "
            "node's shared pool, and it is removed when it is empty"
        )
