"""Host-wide settings of isolation: observe, compare, save, write, read back, give back.

In go the pods with what they ask for, out comes what is not as asked (`IsolationReport`). A pass
(`apply`) reads each place that is to differ, saves what it had, writes it and reads it back (at an
admission interrupts are not: the comparison that follows reads them), and gives back what is no
longer to differ. It can be repeated after any failure, and after a death at any point:
`agent.isolation.originals` says why. What another program wrote since the agent did stays, unless
it uses CPUs that it has to keep off: irqbalance and users may move an interrupt among the others.

The sets of the cgroups beside the pods', and the exclusive CPUs of all pods, are written by the
enforcer with the cgroups of the pods (`slices`, `partitions`), so that they shrink before a pod is
given CPUs. They are saved here before, and given back by the pass that follows.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.config.isolation import IsolationConfig, PartitionMode
from agent.isolation.originals import Custody, ImmovableError, State
from agent.isolation.places import (
    AFFINITY,
    BANNED,
    DEFAULT_IRQ,
    IRQ,
    PLACE_ERRORS,
    Form,
    cpus_of,
    exclusive_of,
    set_of_slice,
    set_of_unit,
    slices_of,
    why_not,
)
from agent.isolation.resctrl import ResctrlGroups
from agent.isolation.rows import (
    IsolationItem,
    desired_settings,
    isolated_cpus,
    partition_words,
    text_to_write,
)
from agent.managers.policy import IsolationMode
from agent.state.checkpoint import CheckpointIOError
from cgroupfs.plan import Setting
from cgroupfs.settings import PARTITION, partition_fault
from cgroupfs.tree import is_within, parent
from sysfs.mask import EMPTY, Mask
from systemd.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from agent.isolation.originals import Originals
    from agent.isolation.places import HostPlaces
    from agent.isolation.resctrl import CacheCount
    from agent.isolation.rows import DesiredSetting, IsolatedCpus
    from agent.managers.allocation import Binding, PodAllocation

log = structlog.get_logger(__name__)

_IRQS: Final = f"{IRQ}*{AFFINITY}"
#: So many places are named in a condition.
_NAMED: Final = 3
_PARTITIONS: Final = "isolation partitions"


class IsolationReport(Struct, frozen=True):
    """What is not isolated as asked, by subject, and how many settings are changed.

    `changed` counts, by item, the settings that differ from their originals for a pod. `counts` is
    what the kernel counts of caches.
    """

    conditions: Mapping[str, str] = MappingProxyType({})
    changed: Mapping[str, int] = MappingProxyType({})
    written: int = 0
    counts: tuple[CacheCount, ...] = ()


NOT_APPLIED: Final = IsolationReport()


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
        #: Whether anything is configured: else only a comparison looks for what is left to restore.
        self.active = config != IsolationConfig()
        self._places = places
        self._pods = pods
        self._custody = Custody(places, originals)
        self._groups = ResctrlGroups(config.resctrl, places, self._custody)
        self._interrupts = _Interrupts(places, self._custody)
        self._slices = _Slices(
            places, self._custody, _Beside(pods, config.host_except), units=units
        )
        #: What the kernel would not have written, by place: the text that was there then.
        self._immovable: dict[str, str] = {}
        #: What the last pass was given, None before the first and after one that failed.
        self._last: tuple[IsolatedCpus, Mapping[str, str]] | None = None
        #: The kind of partition by pod (uid), and by subject why a pod that asks is none.
        self._partitions: Mapping[str, str] = {}
        self._unpartitioned: Mapping[str, str] = {}
        #: Where the exclusive CPUs of all pods are, "" without a partition.
        self._all_pods = ""
        #: What the kernel shows instead of a valid partition, by pod (uid) and cgroup.
        self._invalid: Mapping[tuple[str, str], str] = {}
        #: The CPUs that were in no cgroup at the last comparison.
        self._lost = EMPTY
        self.report = NOT_APPLIED

    def try_again(self) -> None:
        """Ask a systemd that did not answer again; call this before a comparison."""
        self._places.try_again()
        self._slices.compare_units()

    def slices(self, exclusive: Mask, online: Mask) -> Iterable[Setting]:
        """Return what the cgroups beside the pods' are to have: what is not exclusive of theirs.

        What one has is saved before it is narrowed for the first time; one of which that fails
        stays as it is. One that uses no exclusive CPU is not the agent's.
        """
        asked = self._config.host_slices and not self._custody.unusable
        whole = exclusive | online if asked else EMPTY
        return self._slices.narrowed(whole, whole - exclusive, self._config.host_cpus)

    def concerns(self, cgroups: Iterable[str]) -> bool:
        """Return whether one of these has to keep off exclusive CPUs: it stands beside the pods."""
        at_top = (name for name in cgroups if "/" not in name)
        return self._config.host_slices and bool(self._slices.beside(at_top))

    def partitions(
        self, allocations: Mapping[str, PodAllocation], bindings: Iterable[Binding], all_pods: str
    ) -> Mapping[str, str] | None:
        """Return the pods (uids) that are to be partitions, each with its kind.

        None: there are none, and never were. What the cgroup of all pods (`all_pods`) has is saved
        before the first of them; with that forgotten all partitions below are ended.
        """
        originals = self._custody.originals
        if self._config.partitions is PartitionMode.NEVER and not originals:
            return None
        place = exclusive_of(all_pods)
        if self._config.partitions is PartitionMode.NEVER:
            return {} if place in originals else None
        elsewhere = {one.pod_uid for one in bindings if not is_within(one.cgroup, (all_pods,))}
        self._partitions, unmet = partition_words(self._config, allocations.values(), elsewhere)
        why = ""
        if self._partitions and place not in self._custody.originals:
            why = self._save_exclusive(all_pods, place)
            if why:
                self._partitions = {}
        self._unpartitioned = (
            {**unmet, _PARTITIONS: f"no pod is a partition: {why}"} if why else unmet
        )
        self._all_pods = place if self._partitions else ""
        return self._partitions if place in self._custody.originals else None

    def _save_exclusive(self, all_pods: str, place: str) -> str:
        """Save what the cgroup of all pods has; return why that is not possible, "" if it is."""
        if self._custody.unusable or parent(all_pods):
            return (
                self._custody.unusable
                or f"cgroupRoot is /{parent(all_pods)}, which is not the agent's"
            )
        try:
            shown = self._places.read(place)
        except FileNotFoundError:
            return "the kernel has no remote partitions (Linux 6.7 and later have)"
        except PLACE_ERRORS as error:
            return why_not(error)
        try:
            # The kernel overwrites these when a partition changes (up to Linux 6.19).
            threads = {name: self._places.read(name) for name in self._places.node_threads()}
            self._custody.take({place: shown, **threads, **self._custody.originals})
        except (CheckpointIOError, *PLACE_ERRORS) as error:
            return why_not(error)
        return ""

    def note_invalid(
        self, pods: Collection[str] | None, invalid: Mapping[tuple[str, str], str]
    ) -> None:
        """Note the cgroups of these pods (uids; None: all) that are no valid partitions.

        `invalid` has, by pod and cgroup, what the kernel shows. It is a condition of the next pass.
        """
        others = {} if pods is None else self._invalid
        kept = {key: text for key, text in others.items() if key[0] not in (pods or ())}
        self._invalid = {**kept, **invalid}

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
        Without `thorough` nothing is read where nothing that is asked changed, but the threads of
        the pods that `started`, by uid. `cgroups_of` returns the cgroups of a pod.
        """
        last, self._last = self._last, None  # until the pass has ended
        try:
            if self._config.partitions is PartitionMode.NEVER:
                self._unpartitioned = partition_words(self._config, allocations, ())[1]
            asked = isolated_cpus(
                self._config, allocations, self._places.online(), self._partitions
            )
            invalid = {f"partition /{at}": text for (_, at), text in self._invalid.items()}
            unpartitioned = {**self._unpartitioned, **invalid}
            state = asked, unpartitioned
            changed = thorough or state != last
            if changed:
                conditions = {**asked.unmet, **unpartitioned, **self._slices.unsaved}
                if thorough:
                    self._places.refresh()
                    conditions |= self._own_sets(asked, bound)
                    conditions |= self._invalid_of_others()
                self.report = self._applied(asked, conditions, thorough=thorough)
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

    def _applied(
        self, asked: IsolatedCpus, conditions: dict[str, str], *, thorough: bool
    ) -> IsolationReport:
        if self._custody.unusable:
            return IsolationReport({**conditions, "isolation": self._custody.unusable})
        pass_ = _Pass(conditions, thorough)
        if self._config.interrupts is not IsolationMode.NEVER:
            self._interrupts.take_in()
        desired = dict(desired_settings(asked, self._places))
        of_groups = self._groups.places_of(asked.resctrl)
        held = {*desired, *of_groups, *self._slices.held, self._all_pods}
        pass_.failed, pass_.written = self._custody.give_back(self._custody.originals.keys() - held)
        try:
            self._hold(pass_, desired)
        finally:
            self._places.close_kept()
        pass_.conditions.update(self._groups.make(asked.resctrl))
        if thorough:
            avoided = asked.avoided.get(IsolationItem.INTERRUPTS, EMPTY)
            pass_.late = self._interrupts.still_coming(avoided)
            if avoided and not self._places.find(BANNED) and self._places.irqbalance_runs():
                pass_.conditions["isolation irqbalance"] = (
                    "irqbalance runs and has no socket over which to name exclusive CPUs, so it "
                    "moves interrupts back; stop it, or set IRQBALANCE_BANNED_CPULIST"
                )
            self._take_back(pass_)
        originals = self._custody.originals
        if pass_.written:
            log.info("host settings written", settings=pass_.written, changed=len(originals))
        changed = Counter(str(desired[name].row.item) for name in originals if name in desired)
        changed[str(IsolationItem.HOST_SLICES)] = len(slices_of(originals))
        changed[str(IsolationItem.PARTITIONS)] = len(self._partitions)
        changed[str(IsolationItem.RESCTRL)] = len(originals.keys() & of_groups)
        return IsolationReport(pass_.lines(), MappingProxyType(+changed), pass_.written)

    def _hold(self, pass_: _Pass, desired: Mapping[str, DesiredSetting]) -> None:
        """Save the originals of what has to change, then write that and read it back."""
        waiting: list[tuple[str, str, str]] = []
        new: dict[str, str] = {}
        others: set[str] = set()
        for name, setting in desired.items():
            if self._places.at(name).many and not pass_.thorough:
                self._places.keep_open(name)  # most are written
            try:
                shown = self._places.read(name)
                original = self._custody.original(name, shown)
                text = text_to_write(setting, shown, original)
            except FileNotFoundError:
                if setting.row.missing:
                    pass_.missing.add((setting.row.item, setting.row.missing))
            except PLACE_ERRORS as error:
                pass_.failed[name] = why_not(error)
            else:
                if text is not None and self._immovable.get(name) != shown:
                    waiting.append((name, shown, text))
                    new |= {name: shown} if original is None else {}
                elif original is None:
                    others.add(name)
        self._custody.take(new)
        self._custody.forget(others)
        # What depends on another setting, as the lowest frequency on the highest, is tried twice.
        again = [one for one in waiting if not self._write(pass_, *one, last=False)]
        for one in again:
            self._write(pass_, *one, last=True)
        self._custody.forget({name for name in new if not self._custody.wrote(name)})

    def _write(self, pass_: _Pass, name: str, before: str, text: str, *, last: bool) -> bool:
        """Write a setting; return False where that is to be tried again."""
        try:
            self._custody.write(name, text, many=not pass_.thorough)
        except ImmovableError:
            self._immovable[name] = before
        except FileNotFoundError:
            pass  # it has ended
        except PLACE_ERRORS as error:
            if last:
                pass_.failed[name] = why_not(error)
            return False
        else:
            pass_.written += 1
        return True

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
        """Yield the cgroups, in those that are narrowed, whose own CPUs became exclusive."""
        avoided = asked.avoided.get(IsolationItem.HOST_SLICES, EMPTY)
        for name in sorted(slices_of(self._custody.originals).values()) if avoided else ():
            for cgroup, cpus in self._places.own_sets(name):
                if cpus & avoided and not is_within(cgroup, bound):
                    message = (
                        f"/{cgroup} has CPUs of its own, {cpus}, of which {cpus & avoided} are "
                        "exclusive to a pod: it does without them"
                    )
                    yield f"isolation /{cgroup}", message

    def _invalid_of_others(self) -> Iterator[tuple[str, str]]:
        """Yield invalid partitions that other programs asked for.

        Looked at are the cgroup of all pods, and beside host slices those at the top: of two that
        list a CPU neither is a partition (up to Linux 6.19).
        """
        at_top = self._places.at_top() if self._config.host_slices else frozenset[str]()
        found = self._places.partitions(at_top | {self._pods})
        for at, (word, cpus) in sorted(found.items()):
            if partition_fault(word) is None:
                continue
            does = ""
            if at == self._pods:
                does = (
                    "should the kernel make it valid later, pods have only its CPUs: write member "
                    f"into {PARTITION} of /{at}"
                )
            elif listing := [f"/{each}" for each in found if each != at and cpus & found[each][1]]:
                more = f" and {len(listing) - _NAMED} more" if len(listing) > _NAMED else ""
                does = (
                    f"its CPUs {cpus} are listed by {', '.join(sorted(listing)[:_NAMED])}{more} "
                    "too: set agent.isolation.hostCPUs without them, then write the partition again"
                )
            if does:
                yield f"partition /{at}", f"another program's partition /{at} is {word!r}; {does}"

    def _take_back(self, pass_: _Pass) -> None:
        """Have the kernel give back CPUs that no cgroup has, for the second time in a row.

        What changes between two reads looks the same, once.
        """
        if self._config.partitions is PartitionMode.NEVER:
            return
        before, self._lost = self._lost, self._places.lost()
        again = before & self._lost
        if not again:
            return
        why = "a cgroup at the top lists one of them (docs/isolation.md)"
        try:
            self._places.take_back(again)
        except PLACE_ERRORS as error:
            why = why_not(error)
        self._lost = self._places.lost()
        if left := again & self._lost:
            pass_.conditions["isolation lost CPUs"] = (
                f"CPUs {left} are in no cgroup, since a partition was removed while invalid, and "
                f"the kernel does not give them back: {why}"
            )
        else:
            log.warning("lost CPUs taken back", cpus=str(again))


class _Beside(Struct, frozen=True):
    """Which cgroups at the top of the tree follow what is not exclusive: all that are not named.

    `pods` is the cgroup of all pods, `excepted` are names, of which `*` at the end is any.
    """

    pods: str
    excepted: tuple[str, ...]

    def __call__(self, at_top: Iterable[str]) -> list[str]:
        """Return those of the cgroups at the top, in their order."""
        of_pods = self.pods.partition("/")[0]
        return sorted(name for name in at_top if name != of_pods and not self._is_excepted(name))

    def _is_excepted(self, name: str) -> bool:
        return any(
            name.startswith(each[:-1]) if each.endswith("*") else name == each
            for each in self.excepted
        )


class _Slices:
    """The sets of the cgroups beside the pods': in the tree, and of units with systemd."""

    def __init__(
        self, places: HostPlaces, custody: Custody, beside: _Beside, *, units: bool
    ) -> None:
        self._places = places
        self._custody = custody
        self.beside = beside
        self._units = units
        #: Whether systemd is asked what it has on record of slices whose cgroups are as written.
        self._compares = False
        #: The places that are narrower than they would be.
        self.held: frozenset[str] = frozenset()
        #: The slices that could not be saved, so that they are not narrowed, by subject.
        self.unsaved: dict[str, str] = {}

    def compare_units(self) -> None:
        """Have the next call of `narrowed` ask systemd, too."""
        self._compares = self._units

    def narrowed(self, whole: Mask, usable: Mask, stay: Mask | None) -> Iterable[Setting]:
        """Save what slices have that are to be narrower; return what these are to have.

        `whole` are all CPUs, `usable` those that no pod has exclusively. Slices without a set are
        to `stay` on these.
        """
        if whole and not usable:
            return ()  # there is nowhere to go: they stay as they are
        home = (stay or whole) & usable or usable
        self.held, self.unsaved = frozenset(), {}
        if home == whole:
            return ()
        settings: dict[str, Setting] = {}
        new: dict[str, str] = {}
        for name in self._followers():
            place, unit = set_of_slice(name), set_of_unit(name)
            try:
                changed = self._not_ours(name)
            except FileNotFoundError:
                self.held |= {place, unit}  # systemd keeps a unit's property for the next
                continue
            except PLACE_ERRORS as error:
                self.held |= {place, unit}  # what is narrowed stays so
                self.unsaved[f"isolation {name}"] = f"{name} uses exclusive CPUs: {why_not(error)}"
                continue
            had = changed[place] if place in changed else self._custody.originals[place]
            original = Mask.parse(had) & whole
            cpus = original & usable or home
            if cpus != (original or whole):
                settings[place] = Setting(name, cpus=cpus)
                self.held |= {place, unit}
                new |= changed
        self._compares = False
        try:
            self._custody.take(new)
        except CheckpointIOError as error:
            self.unsaved["isolation hostSlices"] = f"the host's slices use all CPUs: {error}"
        saved = self._custody.originals
        for place in settings.keys() & saved:
            for name in {place, set_of_unit(settings[place].cgroup)} & saved.keys():
                self._custody.will_write(name, str(settings[place].cpus))
        return [setting for place, setting in settings.items() if place in saved]

    def _followers(self) -> Sequence[str]:
        """Return the cgroups that are there beside the pods', and units that were narrowed.

        Another program's partition is left alone. Where the tree cannot be listed there are none,
        and what is narrowed stays so.
        """
        narrowed = slices_of(self._custody.originals)
        known = frozenset(narrowed.values())
        try:
            there = self._places.at_top()
            apart = {name for name in there - known if self._places.is_apart(name)}
        except PLACE_ERRORS as error:
            self.held = frozenset(narrowed) | {set_of_unit(name) for name in known}
            self.unsaved["isolation hostSlices"] = (
                f"new cgroups at the top may use exclusive CPUs, they cannot be listed: "
                f"{why_not(error)}"
            )
            return ()
        return self.beside(there - apart | {name for name in known if unit_of(name)})

    def _not_ours(self, name: str) -> Mapping[str, str]:
        """Return what a slice and its unit had, as far as that is not what is saved."""
        place, unit = set_of_slice(name), set_of_unit(name)
        shown = self._places.read(place)
        whose = self._custody.state(place, shown)
        if whose is State.OURS and not self._compares:
            return {}
        changed = {} if whose is State.OURS else {place: shown}
        if not self._units or unit_of(name) is None:
            return changed
        try:
            recorded = self._places.read(unit)
        except FileNotFoundError:
            recorded = ""
        except PLACE_ERRORS:
            if whose is State.UNTOUCHED:
                raise
            return {}  # whose it is now says the next comparison
        if self._custody.state(unit, recorded) is not State.OURS:
            return {**changed, unit: recorded}
        if not self._places.at(place).same(shown, recorded):
            return changed
        # systemd may write what it had on record of the agent's before.
        originals = self._custody.originals
        return {place: originals.get(place, originals[unit])}


class _Interrupts:
    """Interrupts that come while the default is narrowed, and that still come where they may not.

    Those without IRQ_MOVE_PCNTXT are moved when they come next: one more that comes there is none
    too many.
    """

    def __init__(self, places: HostPlaces, custody: Custody) -> None:
        self._places = places
        self._custody = custody
        #: The interrupts of the last pass, none before the first.
        self._seen: set[str] = set()
        #: How often they had come to CPUs that they avoid, by place.
        self._came: dict[str, tuple[Mask, int]] = {}

    def take_in(self) -> None:
        """Give interrupts that came with the narrowed default the original of the default.

        Those that came while no agent ran, too.
        """
        there = set(self._places.find(_IRQS))
        originals = self._custody.originals
        if DEFAULT_IRQ in originals and (new := there - self._seen - originals.keys()):
            wide = str(cpus_of(Form.MASK, originals[DEFAULT_IRQ]))
            narrowed = cpus_of(Form.MASK, self._places.read(DEFAULT_IRQ))
            self._custody.take({name: wide for name in new if self._shows(name, narrowed)})
        self._seen = there

    def _shows(self, name: str, cpus: Mask) -> bool:
        try:
            return Mask.parse(self._places.read(name)) == cpus
        except FileNotFoundError:  # it was freed
            return False

    def still_coming(self, avoided: Mask) -> list[str]:
        """Return the interrupts that came to CPUs that they avoid since the last call."""
        late = []
        for name in self._places.find(_IRQS) if avoided else ():
            if name not in self._custody.originals:
                continue
            irq = name.split("/")[2]
            try:
                effective = Mask.parse(self._places.read(f"{IRQ}{irq}/effective_affinity_list"))
                cpus = effective & avoided - Mask.parse(self._custody.last(name))
                if not cpus:
                    continue
                counts = self._places.read(f"sys/kernel/irq/{irq}/per_cpu_count").split(",")
                came = sum(int(counts[cpu]) for cpu in cpus)
            except (IndexError, *PLACE_ERRORS):  # the kernel shows nothing of it
                continue
            before = self._came.get(name)
            self._came[name] = (cpus, came)
            if before is not None and before[0] == cpus and came > before[1] + 1:
                late.append(f"{irq} ({self._places.described(name)}) to {cpus}")
        return late


class _Pass(Struct):
    """What came of one pass; `thorough` where that compares all settings."""

    conditions: dict[str, str]
    thorough: bool
    failed: dict[str, str] = {}
    missing: set[tuple[str, str]] = set()
    late: list[str] = []
    written: int = 0

    def lines(self) -> Mapping[str, str]:
        """Return what is not as asked, by subject."""
        lines = dict(self.conditions)
        for item in sorted({item for item, _ in self.missing}):
            why = "; ".join(sorted(why for of, why in self.missing if of == item))
            lines[f"isolation {item}"] = f"{item} changes less than asked: {why}"
        reasons = Counter(self.failed.values())
        for why, times in sorted(reasons.items()):
            places = [place for place, reason in self.failed.items() if reason == why]
            named = ", ".join(f"/{place}" for place in places[:_NAMED])
            more = f" and {times - _NAMED} more" if times > _NAMED else ""
            lines[f"isolation /{places[0]}"] = f"not as desired: {named}{more}: {why}"
        if self.late:
            named = ", ".join(sorted(self.late)[:_NAMED])
            more = f" and {len(self.late) - _NAMED} more" if len(self.late) > _NAMED else ""
            lines["isolation interrupts"] = f"still delivered to exclusive CPUs: {named}{more}"
        return MappingProxyType(lines)
