"""One look at the tree: who is where, what is desired, what the kernel shows."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agent.reconcile.desired.above import whole, with_ancestors
from agent.reconcile.desired.limits import EVERYTHING, EnforcedControllers
from agent.reconcile.desired.settings import ABOVE_PODS, Role, desired_cgroups
from agent.reconcile.differences import as_desired, differing_values
from agent.reconcile.identify.containers import survey
from cgroupfs.controllers import CPUSET
from cgroupfs.state import VALUES, read_states, with_use
from cgroupfs.tree import is_within, join

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from agent.reconcile.affected import AffectedPods
    from agent.reconcile.desired.settings import DesiredCgroup
    from agent.reconcile.desired.state import Desired
    from agent.reconcile.identify.containers import IdentifiedCgroups, LocatedPod
    from agent.runtimes.identifier import ContainerIdentifier
    from cgroupfs.names import Layout
    from cgroupfs.plan import Setting
    from cgroupfs.state import CgroupState
    from cgroupfs.tree import CgroupTree

#: Stands for a child that is still to come: its ancestors are what matters.
ANY_CHILD: Final = "container"
#: So many containers may end right under our eyes before it counts as a failure of the tree.
_LOOKS: Final = 8

_Seen = TypeVar("_Seen")


class NeededControllers(Struct, frozen=True):
    """The controllers that a cgroup needs, and the pod (uid) for whose sake.

    `all` are those of every cgroup, `further` those of limits that not every cgroup has.
    """

    pod: str
    all: tuple[str, ...]
    further: tuple[str, ...] = ()


class Observation(Struct, frozen=True):
    """What was seen of the tree, or of a part of it (`scope`, None: all of it)."""

    landscape: IdentifiedCgroups
    desired: tuple[DesiredCgroup, ...]
    states: Mapping[str, CgroupState]
    scope: AffectedPods | None = None
    enforced: EnforcedControllers = EVERYTHING

    @classmethod
    def of(
        cls,
        tree: CgroupTree,
        layout: Layout,
        target: Desired,
        finder: ContainerIdentifier | None,
        scope: AffectedPods | None,
        enforced: EnforcedControllers = EVERYTHING,
    ) -> Observation:
        """Look. Raises `OSError` as the tree does, not for absence."""
        landscape = survey(tree, layout, target.ledger, target.bindings, finder, scope)
        desired = desired_cgroups(target, landscape, enforced)
        if CPUSET in enforced.controllers:
            own = (layout.pods(), *landscape.classes.values())
            desired = with_ancestors(desired, own, whole(tree, layout.pods()))
        scene = cls(landscape, desired, {}, scope, enforced)
        return replace(scene, states=scene.read(tree, {item.setting.cgroup for item in desired}))

    def again(self, tree: CgroupTree, touched: Collection[str]) -> Observation:
        """Return the scene with what was touched, and all that is inside it, read again."""
        inside = {path for item in self.desired if is_within(path := item.setting.cgroup, touched)}
        kept = {path: state for path, state in self.states.items() if path not in inside}
        return replace(self, states=kept | self.read(tree, inside))

    def read(self, tree: CgroupTree, cgroups: Collection[str]) -> dict[str, CgroupState]:
        """Return what some of the desired cgroups show, those that are gone left out.

        Of limits that differ also how much is in use: a limit below that kills.
        """
        states = read_states(tree, cgroups, (*VALUES, *self.enforced.files))
        for item in self.desired:
            state = states.get(item.setting.cgroup)
            differing = () if state is None else differing_values(item.setting, state)
            if state is not None and differing:
                states[item.setting.cgroup] = with_use(tree, item.setting.cgroup, state, differing)
        return states

    def pods(self) -> frozenset[str] | None:
        """Return the pods (uids) that were looked at, None when everything was."""
        if self.scope is None:
            return None
        return self.scope.pods | {pod.uid for pod in self.scope.gone}

    def differing(self) -> tuple[DesiredCgroup, ...]:
        """Return what shows something else than is desired, and the pods that are missing."""
        return tuple(item for item in self.desired if self._differs(item))

    def missing(self) -> dict[str, str]:
        """Return the pod cgroups that do not exist, with the pods' uids."""
        return {pod.cgroup: uid for uid, pod in self.landscape.pods.items() if not pod.exists}

    def lacking(self, tree: CgroupTree, unmade: Collection[str]) -> dict[str, NeededControllers]:
        """Return the cgroups whose controllers may be ours to enable, with what they need.

        One that has the files of all controllers is none: every cgroup above it passes them on. A
        new pod's cgroup passes them on from the start, before its first container is there, unless
        it could not be made.
        """
        needed = self.enforced.needed
        inside = {
            join(pod.cgroup, ANY_CHILD): NeededControllers(uid, needed)
            for uid, pod in self.landscape.pods.items()
            if pod.cgroup not in unmade and self._is_empty(pod)
        }
        needs = (self._need(tree, item) for item in self.desired if item.role is not Role.SUBGROUP)
        return inside | {cgroup: need for cgroup, need in needs if need is not None}

    def settings(self, *, move_memory: bool) -> Iterator[Setting]:
        """Yield what is desired of the cgroups that are there."""
        for item in self.desired:
            state = self.states.get(item.setting.cgroup)
            if state is None:
                continue
            # An unset set was nobody's wish; pinning it is what the allocation asks for.
            unset = state.mems is not None and not state.mems
            yield replace(item.setting, move_memory=move_memory or unset)

    def _differs(self, item: DesiredCgroup) -> bool:
        state = self.states.get(item.setting.cgroup)
        if state is None:
            return item.role is Role.POD
        return not as_desired(item.setting, state)

    def _is_empty(self, pod: LocatedPod) -> bool:
        """Return whether nothing runs in a pod yet.

        Where processes live in the pod's cgroup itself, passing controllers on to children would
        keep containers out.
        """
        state = self.states.get(pod.cgroup)
        return not pod.containers and not (state is not None and state.populated)

    def _need(self, tree: CgroupTree, item: DesiredCgroup) -> tuple[str, NeededControllers | None]:
        cgroup, needed = item.setting.cgroup, self.enforced.needed
        state = self.states.get(cgroup)
        if state is None and (item.role in ABOVE_PODS or not tree.exists(cgroup)):
            return cgroup, None
        if state is not None and _has_all(state, item.setting):
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


def _has_all(state: CgroupState, setting: Setting) -> bool:
    """Return whether a cgroup has every file that may be desired; most have, so this is quick."""
    if state.cpus is None or state.mems is None or state.cpu_max is None:
        return False
    shown = state.values.keys()
    return setting.values.keys() <= shown and setting.defaults.keys() <= shown


def _has(state: CgroupState, controller: str) -> bool:
    if controller == CPUSET:
        return state.cpus is not None and state.mems is not None
    return state.cpu_max is not None


def steadily(look: Callable[[], _Seen]) -> _Seen:
    """Look again when a cgroup went away between opening its file and reading it (ENODEV)."""
    for _ in range(_LOOKS):
        try:
            return look()
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
    return look()


def still_resting(scene: Observation, resting: Mapping[str, Setting]) -> Mapping[str, Setting]:
    """Return the cgroups that rest and of which still the same is desired."""
    if not resting:
        return resting
    desired = {item.setting.cgroup: item.setting for item in scene.desired}
    return {path: setting for path, setting in resting.items() if desired.get(path) == setting}
