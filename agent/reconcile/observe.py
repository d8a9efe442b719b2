"""One observation of the cgroup tree: which cgroup is which, what is desired, what is there."""

from __future__ import annotations

import errno
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agent.reconcile.desired import ABOVE_PODS, NOTED, Role
from agent.reconcile.diff import diff
from agent.reconcile.enforced import EVERYTHING, EnforcedControllers
from cgroupfs.apply import CPUSET
from cgroupfs.settings import CPU_MAX
from cgroupfs.state import read_cgroup, with_use
from cgroupfs.tree import is_within, join, parent
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from agent.reconcile.desired import DesiredCgroup
    from agent.reconcile.diff import Difference
    from agent.reconcile.pod_cgroups import IdentifiedCgroups, LocatedPod
    from agent.reconcile.scope import AffectedPods
    from cgroupfs.plan import Setting
    from cgroupfs.state import CgroupState, Reading, WriterRecord
    from cgroupfs.tree import CgroupTree
    from sysfs.mask import Mask


#: Stands for a child that does not exist yet: only its ancestors matter.
ANY_CHILD: Final = "container"
#: So many cgroups may vanish while they are read before that counts as a failure of the tree.
_ATTEMPTS: Final = 8

_Read = TypeVar("_Read")

#: A cgroup that is as desired, and what was read of it. What is desired is compared by identity:
#: it is made again only when an input changed (`KnownPods`), and then the cgroup is compared again.
Settled: TypeAlias = "tuple[DesiredCgroup, Reading]"


class NeededControllers(Struct, frozen=True):
    """The controllers that a cgroup needs, and the pod (uid) that needs them.

    `all` are those of every cgroup, `further` those of limits that not every cgroup has.
    """

    pod: str
    all: tuple[str, ...]
    further: tuple[str, ...] = ()


class Observation(Struct, frozen=True):
    """What was observed in the tree, or in a part of it (`scope`, None: all of it).

    With `all_values` every cgroup is read with its weight and limits, with `all_nodes` with its
    memory nodes, else only with those that are desired of it.
    """

    identified: IdentifiedCgroups
    desired: tuple[DesiredCgroup, ...]
    states: Mapping[str, CgroupState] = MappingProxyType({})
    #: What is left to compare of `desired`: without what is settled (`ObservationCache`).
    compared: tuple[DesiredCgroup, ...] = ()
    #: What was read of each desired cgroup, None where there is none.
    readings: Mapping[str, Reading | None] = MappingProxyType({})
    scope: AffectedPods | None = None
    enforced: EnforcedControllers = EVERYTHING
    all_values: bool = True
    all_nodes: bool = True

    def hosts(self) -> frozenset[str]:
        """Return the cgroups beside the pods', which are the host's own."""
        return frozenset(item.setting.cgroup for item in self.desired if item.role is Role.HOST)

    def with_states(
        self, tree: CgroupTree, settled: Mapping[str, Settled] = MappingProxyType({})
    ) -> Observation:
        """Return the observation with every desired cgroup read.

        `settled` is what was as desired before: where the same is desired and shown, nothing is
        left to compare. Raises `OSError` as the tree does, but not for missing cgroups.
        """
        # More is read for a document than for a repair.
        return self._read(tree, self.desired, {} if self.all_nodes else settled)

    def again(self, tree: CgroupTree, touched: Collection[str]) -> Observation:
        """Return the observation with the cgroups of `touched` and all inside them read again.

        So are the pods around them: what a partition takes, its pod loses, and what a container
        without a set has follows from its pod's.
        """
        around = {*map(parent, touched)}
        near = [
            item
            for item in self.desired
            if is_within(path := item.setting.cgroup, touched)
            or (path in around and item.role is Role.POD)
        ]
        return replace(self._read(tree, near, {}), compared=self.desired)

    def lasts(self, tree: CgroupTree, now: Observation) -> bool:
        """Read all of it again; return whether all is as in `now`, of which nothing was read yet.

        Raises `OSError` as the tree does, but not for missing cgroups.
        """
        return (
            self.desired == now.desired
            and self.identified == now.identified
            # Where a pod shows the same, what follows from that for its containers is the same.
            and all(
                not tree.exists(path) if each is None else each.lasts(tree, path, each.above)
                for path, each in self.readings.items()
            )
        )

    def _read(
        self, tree: CgroupTree, items: Iterable[DesiredCgroup], settled: Mapping[str, Settled]
    ) -> Observation:
        """Return the observation with some of the desired cgroups read.

        Only with `all_nodes` is read of containers what follows from their pod's CPUs in effect.
        """
        states, readings = {**self.states}, {**self.readings}
        compared: list[DesiredCgroup] = []
        inside = "/"
        effective: str | None = None
        for item in items:
            path = item.setting.cgroup
            above = effective if path.startswith(inside) else None
            before = settled.get(path)
            reading: Reading | None
            if before is not None and before[0] is item and before[1].lasts(tree, path, above):
                reading = before[1]
                states[path] = reading.state
            else:
                compared.append(item)
                reading = self._reading(tree, item, above)
                if reading is None:
                    states.pop(path, None)
                else:
                    states[path] = _with_use(tree, item, reading.state)
            readings[path] = reading
            if above is None and item.role is Role.POD and not self.all_nodes:
                inside, effective = f"{path}/", "" if reading is None else reading.effective
        return replace(self, states=states, readings=readings, compared=tuple(compared))

    def _reading(self, tree: CgroupTree, item: DesiredCgroup, above: str | None) -> Reading | None:
        setting = item.setting
        nodes = self.all_nodes or setting.mems is not None or bool(setting.whole_mems)
        always = self.enforced.files if self.all_values else ()
        files = _files(always, (*setting.values, *setting.defaults))
        return read_cgroup(tree, setting.cgroup, files, nodes=nodes, above=above)

    def pods(self) -> frozenset[str] | None:
        """Return the pods (uids) that were observed, None when all of them were."""
        if self.scope is None:
            return None
        return self.scope.pods | {pod.uid for pod in self.scope.gone}

    def differing(self) -> tuple[tuple[DesiredCgroup, tuple[Difference, ...]], ...]:
        """Return the cgroups that are not as desired with how they differ, causes not yet known."""
        states = self.states
        return tuple(
            [
                (item, differences)
                for item in self.compared
                if (differences := diff(item, states.get(item.setting.cgroup)))
            ]
        )

    def missing(self) -> dict[str, str]:
        """Return the pod cgroups that do not exist, with the pods' uids."""
        return {pod.cgroup: uid for uid, pod in self.identified.pods.items() if not pod.exists}

    def lacking(self, tree: CgroupTree, unmade: Collection[str]) -> dict[str, NeededControllers]:
        """Return the cgroups whose ancestors may lack controllers, with what they need.

        A cgroup that has the files of all controllers is left out: all its ancestors pass them on.
        A new pod's cgroup passes them on before its first container starts, unless the cgroup
        could not be created.
        """
        empty = {
            uid: pod.cgroup
            for uid, pod in self.identified.pods.items()
            if not (pod.containers or pod.boundary or pod.cgroup in unmade) and self._is_empty(pod)
        }
        # The containers of a pod that inherits do so as well.
        inside = {
            join(empty[item.pod], ANY_CHILD): NeededControllers(
                item.pod, item.needed(self.enforced.needed)
            )
            for item in (self.desired if empty else ())
            if item.role is Role.POD and item.pod in empty
        }
        needs = (
            self._need(tree, item)
            for item in self.compared
            if item.role is not Role.SUBGROUP
            and not _has_all(self.states.get(item.setting.cgroup), item.setting)
        )
        return inside | {cgroup: need for cgroup, need in needs if need is not None}

    def settings(self, *, move_memory: bool) -> Iterator[Setting]:
        """Yield the desired settings of the cgroups that exist."""
        for item in self.desired:
            state = self.states.get(item.setting.cgroup)
            if state is None:
                continue
            # No process chose an unset set, and the allocation asks for pinning it.
            unset = state.mems is not None and not state.mems
            yield replace(item.setting, move_memory=move_memory or unset)

    def _is_empty(self, pod: LocatedPod) -> bool:
        """Return whether no process runs in a pod yet.

        Enabling controllers for the children of a cgroup that has processes itself would keep
        containers out (cgroup-v2.rst, "No Internal Process Constraint").
        """
        state = self.states.get(pod.cgroup)
        return not pod.containers and not (state is not None and state.populated)

    def _need(self, tree: CgroupTree, item: DesiredCgroup) -> tuple[str, NeededControllers | None]:
        cgroup, needed = item.setting.cgroup, item.needed(self.enforced.needed)
        state = self.states.get(cgroup)
        if state is None and (item.role in ABOVE_PODS or not tree.exists(cgroup)):
            return cgroup, None
        lacking = [name for name in needed if state is None or not _has(state, name)]
        files = (*item.setting.values, *item.setting.defaults)
        missing = [file for file in files if state is None or file not in state.values]
        if not lacking and not missing:
            return cgroup, None
        further = dict.fromkeys(file.partition(".")[0] for file in missing)
        return cgroup, NeededControllers(
            item.pod, needed, tuple(n for n in further if n not in needed)
        )


@lru_cache(maxsize=256)  # thousands of cgroups have few different sets of files
def _files(always: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files of one value that are read of a cgroup: these, each once."""
    files = dict.fromkeys((*always, *own))
    # The quota shows whether the cgroup has the controller.
    return tuple(files) if CPU_MAX in files else (CPU_MAX, *files)


def _with_use(tree: CgroupTree, item: DesiredCgroup, state: CgroupState) -> CgroupState:
    """Return a state with the current use of the limits that differ.

    The kernel kills processes when a limit is set below it.
    """
    differing = item.setting.differing(state.values)
    return with_use(tree, item.setting.cgroup, state, differing) if differing else state


def _has_all(state: CgroupState | None, setting: Setting) -> bool:
    """Return whether a cgroup has every file that may be desired: the quick and common case."""
    if state is None or CPU_MAX not in state.values:
        return False
    if state.cpus is None and not setting.inherits:
        return False
    shown = state.values.keys()
    return setting.values.keys() <= shown and (
        not setting.defaults or setting.defaults.keys() <= shown
    )


def _has(state: CgroupState, controller: str) -> bool:
    if controller == CPUSET:
        return state.cpus is not None  # whether the memory nodes were asked for or not
    return CPU_MAX in state.values


def steadily(read: Callable[[], _Read]) -> _Read:
    """Read again when a cgroup was removed between opening its file and reading it (ENODEV)."""
    for _ in range(_ATTEMPTS):
        try:
            return read()
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
    return read()


def still_resting(observed: Observation, resting: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return the resting cgroups of which the same setting is still desired.

    None rests above the pods: all pods inside would have to wait.
    """
    if not resting:
        return resting
    desired = {
        item.setting.cgroup: item.setting
        for item in observed.desired
        if item.role not in ABOVE_PODS
    }
    return {path: setting for path, setting in resting.items() if desired.get(path) == setting}


_Value = TypeVar("_Value")


class ObservationCache:
    """What an enforcer remembers between two observations, by pod uid ("" for cgroups of no pod).

    These are the settings last written to the kernel, and the properties last recorded in systemd.
    The cache saves work, and distinguishes drift from settings that are new. The result of an
    enforcement does not depend on it.
    """

    def __init__(self) -> None:
        self._asked: dict[str, dict[str, DesiredCgroup]] = {}
        #: The pods (uids) whose own cgroup was to have what the cgroup above has.
        self.inheriting: set[str] = set()
        #: What was as desired, with all its files, by path.
        self.settled: dict[str, Settled] = {}
        self._recorded: dict[str, dict[str, WriterRecord]] = {}

    def was_asked(self, item: DesiredCgroup) -> bool:
        """Return whether the same setting was desired last time, of a cgroup that existed."""
        known = _known(self._asked, item)
        return known is not None and known.setting == item.setting

    def is_new(self, item: DesiredCgroup) -> bool:
        """Return whether a cgroup appeared after others were observed; False before the first."""
        return bool(self._asked) and _known(self._asked, item) is None

    def shows_former(self, item: DesiredCgroup, state: CgroupState | None) -> bool:
        """Return whether a cgroup shows its former setting: only the desired setting changed."""
        known = _known(self._asked, item)
        if known is None or state is None or known.setting == item.setting:
            return False
        former = known.setting
        if item.setting.mems is None and not item.setting.whole_mems:
            former = replace(former, mems=None, whole_mems=EMPTY)  # they were not read
        return not diff(replace(known, setting=former), state)

    def shares(self, uid: str, pool: Mask) -> bool:
        """Return whether the cgroup of a pod was to include this shared pool; True if unknown."""
        own = [item for item in self._asked.get(uid, {}).values() if item.role is Role.POD]
        return not own or any(one.setting.cpus is None or pool <= one.setting.cpus for one in own)

    def recorded(self, item: DesiredCgroup) -> WriterRecord | None:
        """Return what was last recorded in systemd for a cgroup."""
        return _known(self._recorded, item)

    def note_asked(self, observed: Observation, waiting: Collection[str] = ()) -> None:
        """Remember what is desired of each cgroup, except where it is not yet written."""
        self._forget(self._asked, observed)
        pods = observed.pods()
        self.inheriting -= self.inheriting if pods is None else pods
        for item in observed.desired:
            if item.setting.cgroup in observed.states and item.setting.cgroup not in waiting:
                self._asked.setdefault(item.pod, {})[item.setting.cgroup] = item
                if item.role is Role.POD and item.setting.whole_cpus.bits:
                    self.inheriting.add(item.pod)

    def note_settled(self, observed: Observation, differing: Collection[str]) -> None:
        """Remember which of the observed cgroups are as desired: all but those that differ."""
        if observed.scope is None and len(self.settled) > len(observed.desired):
            there = {item.setting.cgroup for item in observed.desired}
            self.settled = {path: one for path, one in self.settled.items() if path in there}
        for item in observed.compared:
            path = item.setting.cgroup
            reading = observed.readings.get(path)
            if (
                reading is not None
                and path not in differing
                and item.role not in NOTED
                and _has_all(reading.state, item.setting)
            ):
                self.settled[path] = item, reading

    def note_recorded(
        self, observed: Observation, records: Iterable[tuple[DesiredCgroup, WriterRecord]]
    ) -> None:
        """Remember what systemd has on record for the observed cgroups."""
        self._forget(self._recorded, observed)
        for item, record in records:
            self._recorded.setdefault(item.pod, {})[item.setting.cgroup] = record

    def forget_recorded(self, uid: str, cgroup: str) -> None:
        """Forget what was recorded for a cgroup of a pod and for all cgroups inside it."""
        known = self._recorded.get(uid, {})
        for path in [path for path in known if f"{path}/".startswith(f"{cgroup}/")]:
            del known[path]

    @staticmethod
    def _forget(known: dict[str, dict[str, _Value]], observed: Observation) -> None:
        """Forget the entries that are about to be written again."""
        pods = observed.pods()
        if pods is None:
            known.clear()
            return
        for uid in pods:
            known.pop(uid, None)
        if observed.scope is not None and observed.scope.orphaned:
            known.pop("", None)


def _known(known: dict[str, dict[str, _Value]], item: DesiredCgroup) -> _Value | None:
    """Return what is known of a cgroup: of its pod, or of no pod from before its admission."""
    path = item.setting.cgroup
    found = known.get(item.pod, {}).get(path)
    return known.get("", {}).get(path) if found is None else found
