"""Host-wide settings of isolation: observe, compare, save, write, read back, give back.

In go the pods with what they ask for, out comes what is not as asked (`IsolationReport`). A setting
that pods need is held: it differs from its original, which is what the host had. A pass
(`HostIsolation.apply`)

1. gives the originals back of settings that no pod needs any longer;
2. reads each setting that a pod needs, saves its original, writes it and reads it back; at an
   admission interrupts are not read back, the comparison that follows reads them.

A pass can be repeated after any failure, and after a death at any point
(`agent.isolation.originals` says why). What another program wrote since the agent did stays, unless
that uses exclusive CPUs: irqbalance and users may move an interrupt among all others.

The sets of the cgroups beside the pods' (`agent.isolation.slices`) and the exclusive CPUs of all
pods (`agent.isolation.partitions`) are saved here, but the enforcer writes them with the cgroups of
the pods, so that they shrink before a pod is given CPUs. The pass that follows gives them back.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from agent.config.isolation import IsolationConfig
from agent.isolation.interrupts import Interrupts
from agent.isolation.originals import Custody
from agent.isolation.partitions import PodPartitions
from agent.isolation.passes import Pass, SettingWriter
from agent.isolation.places import BANNED, PLACE_ERRORS, slices_of, why_not
from agent.isolation.report import NOT_APPLIED, IsolationReport
from agent.isolation.resctrl import ResctrlGroups
from agent.isolation.rows import IsolationItem, desired_settings, isolated_cpus
from agent.isolation.slices import BesidePods, HostSlices
from agent.managers.policy import IsolationMode
from agent.state.checkpoint import CheckpointIOError
from cgroupfs.tree import is_within
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from agent.isolation.originals import Originals
    from agent.isolation.places import HostPlaces
    from agent.isolation.rows import IsolatedCpus
    from agent.managers.allocation import PodAllocation
    from cgroupfs.plan import Setting

log = structlog.get_logger(__name__)

_IRQBALANCE: Final = (
    "irqbalance runs and has no socket over which to name exclusive CPUs, so it moves interrupts "
    "back; stop it, or set IRQBALANCE_BANNED_CPULIST"
)


class HostIsolation:
    """The host-wide settings; blocking, to be called from one thread.

    `pods` is the cgroup of all pods. `units`: systemd has the host's slices on record, so that
    their properties are saved, too.
    """

    def __init__(
        self,
        config: IsolationConfig,
        places: HostPlaces,
        originals: Originals,
        *,
        units: bool,
        pods: str = "",
    ) -> None:
        self._config = config
        #: Whether anything is configured. If not, comparisons alone make a pass, which gives back
        #: what an earlier configuration held.
        self.active = config != IsolationConfig()
        self._places = places
        self._custody = Custody(places, originals)
        self._writer = SettingWriter(places, self._custody)
        self._groups = ResctrlGroups(config.resctrl, places, self._custody)
        self._interrupts = Interrupts(places, self._custody)
        self.partitions = PodPartitions(config, places, self._custody, pods)
        beside = BesidePods(pods, config.host_except)
        self._slices = HostSlices(places, self._custody, beside, units=units)
        #: What the last pass was given, None before the first and after one that failed.
        self._last: tuple[IsolatedCpus, Mapping[str, str]] | None = None
        self.report = NOT_APPLIED

    def try_again(self) -> None:
        """Ask systemd again if it did not answer; call this before a comparison."""
        self._places.try_again()
        self._slices.compare_units()

    def slices(self, exclusive: Mask, online: Mask) -> Iterable[Setting]:
        """Return what the cgroups beside the pods' are to have: their CPUs without exclusive ones.

        See `HostSlices.narrowed`; nothing where this is not configured.
        """
        asked = self._config.host_slices and not self._custody.unusable
        whole = exclusive | online if asked else EMPTY
        return self._slices.narrowed(whole, whole - exclusive, self._config.host_cpus)

    def concerns(self, cgroups: Iterable[str]) -> bool:
        """Return whether one of these has to keep off exclusive CPUs: it stands beside the pods."""
        at_top = (name for name in cgroups if "/" not in name)
        return self._config.host_slices and bool(self._slices.beside.of(at_top))

    def apply(
        self,
        allocations: Collection[PodAllocation],
        bound: Collection[str],
        *,
        thorough: bool,
        started: Collection[str] = (),
        cgroups_of: Callable[[PodAllocation], Iterable[str]] = lambda _: (),
    ) -> None:
        """Make the host's settings as these pods have them; see `report`.

        `bound` are the cgroups that containers are bound to, which may be among the host's.
        Without `thorough`, and if pods ask for the same as at the last pass, no setting is read:
        only the threads of the pods that `started` (uids) are looked for. `cgroups_of` returns the
        cgroups of a pod.
        """
        last, self._last = self._last, None  # until the pass has ended
        try:
            unpartitioned = self.partitions.unmet(allocations)
            asked = isolated_cpus(
                self._config, allocations, self._places.online(), self.partitions.words
            )
            state = asked, unpartitioned
            changed = thorough or state != last
            if changed:
                conditions = {**asked.unmet, **unpartitioned, **self._slices.unsaved}
                if thorough:
                    self._places.refresh()
                    conditions |= self._own_sets(asked, bound)
                    conditions |= self.partitions.invalid_of_others()
                self.report = self._pass(asked, conditions, thorough=thorough)
            uids = {uid for pods in asked.resctrl.values() for uid in pods}
            if not changed:
                uids &= set(started)
            if uids:
                self._fill_groups(asked, uids, allocations, cgroups_of, thorough=thorough)
            self._last = state
        except (CheckpointIOError, *PLACE_ERRORS) as error:
            stays = {"isolation": f"settings of the host stay as they are: {why_not(error)}"}
            self.report = IsolationReport(stays)

    def restore(self) -> tuple[Mapping[str, str], int]:
        """Restore all originals; return what could not be, by place, and how many were."""
        before = len(self._custody.originals)
        failed, _ = self._custody.give_back(self._custody.originals)
        return failed, before - len(self._custody.originals)

    def _pass(
        self, asked: IsolatedCpus, conditions: dict[str, str], *, thorough: bool
    ) -> IsolationReport:
        if self._custody.unusable:
            return IsolationReport({**conditions, "isolation": self._custody.unusable})
        pass_ = Pass(conditions, thorough)
        if self._config.interrupts is not IsolationMode.NEVER:
            self._interrupts.take_in()
        desired = dict(desired_settings(asked, self._places))
        of_groups = self._groups.places_of(asked.resctrl)
        # 1. Give back what no pod needs.
        held = {*desired, *of_groups, *self._slices.held, self.partitions.place}
        pass_.failed, pass_.written = self._custody.give_back(self._custody.originals.keys() - held)
        # 2. Write what pods need.
        try:
            self._writer.hold(pass_, desired)
        finally:
            self._places.close_kept()
        pass_.conditions.update(self._groups.make(asked.resctrl))
        # 3. See what no write can settle.
        if thorough:
            avoided = asked.avoided.get(IsolationItem.INTERRUPTS, EMPTY)
            pass_.late = self._interrupts.still_coming(avoided)
            if avoided and not self._places.find(BANNED) and self._places.irqbalance_runs():
                pass_.conditions["isolation irqbalance"] = _IRQBALANCE
            pass_.conditions.update(self.partitions.lost())
        # 4. Count what differs.
        originals = self._custody.originals
        if pass_.written:
            log.info("host settings written", settings=pass_.written, changed=len(originals))
        changed = Counter(str(desired[name].row.item) for name in originals if name in desired)
        changed[str(IsolationItem.HOST_SLICES)] = len(slices_of(originals))
        changed[str(IsolationItem.PARTITIONS)] = len(self.partitions.words)
        changed[str(IsolationItem.RESCTRL)] = len(originals.keys() & of_groups)
        return IsolationReport(
            pass_.lines(), MappingProxyType(+changed), pass_.written, late=tuple(pass_.late)
        )

    def _fill_groups(
        self,
        asked: IsolatedCpus,
        uids: Collection[str],
        allocations: Iterable[PodAllocation],
        cgroups_of: Callable[[PodAllocation], Iterable[str]],
        *,
        thorough: bool,
    ) -> None:
        """Put the threads of these pods into the control groups of their classes."""
        by_uid = {pod.uid: pod for pod in allocations}

        def threads_of(uid: str) -> Callable[[], frozenset[int]]:
            return lambda: frozenset(
                thread
                for cgroup in cgroups_of(by_uid[uid])
                for thread in self._places.threads_in(cgroup)
            )

        used = {
            name: {uid: threads_of(uid) for uid in pods if uid in uids}
            for name, pods in asked.resctrl.items()
        }
        left = dict(self._groups.fill(used, thorough=thorough))
        conditions = MappingProxyType({**self.report.conditions, **left})
        self.report = replace(self.report, conditions=conditions, counts=self._groups.counts)

    def _own_sets(self, asked: IsolatedCpus, bound: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the cgroups below narrowed slices that have own CPUs which are exclusive now."""
        avoided = asked.avoided.get(IsolationItem.HOST_SLICES, EMPTY)
        for name in sorted(slices_of(self._custody.originals).values()) if avoided else ():
            for cgroup, cpus in self._places.own_sets(name):
                if cpus & avoided and not is_within(cgroup, bound):
                    message = (
                        f"/{cgroup} has CPUs of its own, {cpus}, of which {cpus & avoided} are "
                        "exclusive to a pod: it does without them"
                    )
                    yield f"isolation /{cgroup}", message
