"""Which pods have ended by themselves: with their processes, or with their systemd unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.pods.lifetime import End

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.managers.allocations.allocation import PodAllocation
    from agent.managers.allocations.bindings import Bindings
    from agent.reconcile.drivers.pod_cgroups import UnitState

#: How long a pod that ends with its processes may wait for the first one, in seconds.
START_SECONDS: Final = 300.0
#: How long a unit must be stopped before its pod ends, in seconds: a restart takes less.
STOPPED_SECONDS: Final = 30.0


class Lives(Struct, frozen=True):
    """What was observed of the pods that end by themselves.

    `inhabited` are the uids of pods in whose cgroups processes live. `units` are the states of
    units by name; one that is missing is not known now. `restarted` are the uids of pods whose unit
    runs in a new cgroup, which has none of the pod's sets.
    """

    inhabited: frozenset[str]
    units: Mapping[str, UnitState]
    restarted: frozenset[str] = frozenset()


class Changes(Struct, frozen=True):
    """What follows: pods (uids) that ended, each with the reason; pods whose processes started.

    `moved` are pods whose unit has a cgroup that their container is not bound to, with the cgroup.
    """

    ended: tuple[tuple[str, str], ...] = ()
    started: tuple[str, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()


class Endings:
    """Remembers since when pods have been without processes or without their unit."""

    def __init__(self) -> None:
        self._without: dict[str, float] = {}

    @property
    def idle(self) -> bool:
        """Whether no pod is without processes or without its unit."""
        return not self._without

    def changes(
        self,
        allocations: Iterable[PodAllocation],
        bindings: Bindings,
        lives: Lives,
        now: float,
    ) -> Changes:
        """Return what follows for some pods from what was observed; `now` is monotonic, seconds."""
        ended: list[tuple[str, str]] = []
        started: list[str] = []
        moved: list[tuple[str, str]] = []
        without: dict[str, float] = {}
        for allocation in allocations:
            uid, lifetime = allocation.uid, allocation.lifetime
            bound = [binding.cgroup for binding in bindings.of_pod(uid)]
            if lifetime.end is End.UNIT:
                unit = lives.units.get(lifetime.unit)
                if unit is not None and unit.running:
                    if unit.cgroup and bound != [unit.cgroup]:
                        moved.append((uid, unit.cgroup))
                    continue
                reason, patience = f"{lifetime.unit} is stopped", STOPPED_SECONDS
                if unit is None:
                    continue
            elif uid in lives.inhabited:
                if not lifetime.started:
                    started.append(uid)
                continue
            elif lifetime.started or bound:
                ended.append((uid, "its last process has ended"))
                continue
            else:
                reason, patience = "none of its processes has started", START_SECONDS
            since = without[uid] = self._without.get(uid, now)
            if now - since >= patience:
                ended.append((uid, f"{reason} for {patience:.0f} s"))
        self._without = without
        return Changes(tuple(ended), tuple(started), tuple(moved))
