"""The one writer of host-wide settings: observe, compare, save, write, read back, restore.

A pass can be repeated after any failure, and after a death at any point:

1. what a place shows is saved, durable, before the place is first written;
2. a place that has to change is written, and read back (at an admission interrupts are not: the
   comparison that follows reads them);
3. a place that is no longer to differ gets its original back, byte for byte;
4. only then is its original forgotten.

So a start finds either an original for each place that may have been written, and completes or
undoes the write, or a place that was never touched. What another program wrote since the agent did
stays, unless it uses CPUs that it has to keep off: irqbalance and users may move an interrupt among
the others.
"""

from __future__ import annotations

import errno
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from agent.config.isolation import IsolationConfig, PartitionMode
from agent.isolation.places import (
    BANNED,
    CGROUP,
    PLACE_ERRORS,
    RESCTRL_GROUP,
    TASKS,
    UNIT,
    Form,
    cpus_of,
    same,
    why_not,
)
from agent.isolation.resctrl import ROOT_SCHEMATA, ResctrlGroups
from agent.isolation.rows import (
    DEFAULT_IRQ,
    IRQ,
    IsolationItem,
    desired_settings,
    has_to_change,
    isolated_cpus,
    partition_words,
    text_instead,
)
from agent.managers.policy import IsolationMode
from agent.state.checkpoint import CheckpointError, CheckpointIOError
from cgroupfs.plan import Setting
from cgroupfs.settings import CPUS, EXCLUSIVE
from cgroupfs.tree import is_within, parent
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from agent.isolation.places import HostPlaces, Originals
    from agent.isolation.resctrl import CacheCount
    from agent.isolation.rows import DesiredSetting, IsolatedCpus
    from agent.managers.allocation import Binding, PodAllocation

log = structlog.get_logger(__name__)

#: The cgroups of the host's own services, sessions and virtual machines, and of PID 1.
HOST_SLICES: Final = ("system.slice", "user.slice", "machine.slice", "init.scope")
_PROPERTY: Final = "AllowedCPUs"
_IRQS: Final = f"{IRQ}*/smp_affinity_list"
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

    `units`: systemd has the host's slices on record, so that their properties are saved, too.
    """

    def __init__(
        self, config: IsolationConfig, places: HostPlaces, originals: Originals, *, units: bool
    ) -> None:
        self._config = config
        #: Whether anything is configured: else only a comparison looks for what is left to restore.
        self.active = config != IsolationConfig()
        self._places = places
        self._groups = ResctrlGroups(config.resctrl, places)
        self._store = originals
        self._units = units
        self._originals: dict[str, str] = {}
        #: What was last written, by place; another text is another writer's.
        self._written: dict[str, str] = {}
        #: What the kernel would not have written: the text that was there then.
        self._immovable: dict[str, str] = {}
        #: How often interrupts had come to CPUs that they avoid, by place.
        self._came: dict[str, tuple[Mask, int]] = {}
        #: The interrupts of the last pass, None before the first.
        self._seen: set[str] | None = None
        #: What the last pass was given, None before the first and after one that failed.
        self._last: tuple[IsolatedCpus, Mapping[str, str]] | None = None
        #: The slices that could not be saved, so that they are not narrowed.
        self._unsaved: dict[str, str] = {}
        #: The kind of partition by pod (uid), and by subject why a pod that asks is none.
        self._partitions: Mapping[str, str] = {}
        self._unpartitioned: Mapping[str, str] = {}
        #: What the kernel shows instead of a valid partition, by pod (uid) and cgroup.
        self._invalid: Mapping[tuple[str, str], str] = {}
        #: The CPUs that were in no cgroup at the last comparison.
        self._lost = EMPTY
        self._unusable = ""
        self.report = NOT_APPLIED
        try:
            self._originals = originals.load()
        except CheckpointError as error:
            # What was there before is not known: writing would make that worse.
            self._unusable = f"nothing host-wide is written: {error}"
            log.error("originals of host settings unreadable", why=str(error))  # noqa: TRY400  # not a defect of the agent

    def try_again(self) -> None:
        """Ask a systemd that did not answer again; call this before a comparison."""
        self._places.try_again()

    # --- host slices ----------------------------------------------------------------------------

    def slices(self, exclusive: Mask, online: Mask) -> Iterator[Setting]:
        """Yield what the host's slices are to have: what is not exclusive, of their own set.

        What a slice has is saved before it is narrowed for the first time; one of which that fails
        stays as it is.
        """
        whole = exclusive | online
        usable = whole - exclusive
        own = whole & (self._config.host_cpus or whole)
        if not (self._config.host_slices and usable):
            return
        if (own & usable or usable) != whole:
            self._save_slices()
        for name in HOST_SLICES:
            original = self._originals.get(f"{CGROUP}{name}/{CPUS}")
            if original is None:
                continue
            cpus = (Mask.parse(original) & whole or own) & usable or usable
            if cpus == whole:
                yield Setting(name, whole_cpus=whole)
            else:
                yield Setting(name, cpus=cpus)

    def _save_slices(self) -> None:
        """Save what the host's slices have, those that are there and were not saved."""
        new: dict[str, str] = {}
        self._unsaved = {}
        for name in HOST_SLICES:
            place, unit = f"{CGROUP}{name}/{CPUS}", f"{UNIT}{name}/{_PROPERTY}"
            if self._unusable or place in self._originals:
                continue
            try:
                shown = self._places.read(place)
                new |= {unit: self._places.read(unit)} if self._units else {}
                new[place] = shown
            except FileNotFoundError:
                continue
            except PLACE_ERRORS as error:
                self._unsaved[f"isolation {name}"] = f"{name} uses exclusive CPUs: {why_not(error)}"
        try:
            self._save(self._originals | new)
        except CheckpointIOError as error:
            self._unsaved["isolation hostSlices"] = f"the host's slices use all CPUs: {error}"

    def _forget_slices(self) -> None:
        """Forget what slices had that are gone; a new one starts without a set."""
        gone = set()
        for place in self._originals:
            kind, _, name = place.partition("/")
            if f"{kind}/" in (CGROUP, UNIT):
                name = name.partition("/")[0]
                if not self._places.has_cgroup(name):
                    gone.add(place)
        if gone:
            self._save({key: text for key, text in self._originals.items() if key not in gone})

    # --- partitions -----------------------------------------------------------------------------

    def partitions(
        self, allocations: Mapping[str, PodAllocation], bindings: Iterable[Binding], all_pods: str
    ) -> Mapping[str, str] | None:
        """Return the pods (uids) that are to be partitions, each with its kind.

        None: there are none, and never were. What the cgroup of all pods (`all_pods`) has is saved
        before the first of them; with that forgotten all partitions below are ended.
        """
        place = f"{CGROUP}{all_pods}/{EXCLUSIVE}"
        if self._config.partitions is PartitionMode.NEVER:
            return {} if place in self._originals else None
        elsewhere = {one.pod_uid for one in bindings if not is_within(one.cgroup, (all_pods,))}
        self._partitions, unmet = partition_words(self._config, allocations.values(), elsewhere)
        why = ""
        if self._partitions and place not in self._originals:
            why = self._save_exclusive(all_pods, place)
            if why:
                self._partitions = {}
        self._unpartitioned = (
            {**unmet, _PARTITIONS: f"no pod is a partition: {why}"} if why else unmet
        )
        return self._partitions if place in self._originals else None

    def _save_exclusive(self, all_pods: str, place: str) -> str:
        """Save what the cgroup of all pods has; return why that is not possible, "" if it is."""
        if self._unusable or parent(all_pods):
            return self._unusable or f"cgroupRoot is /{parent(all_pods)}, which is not the agent's"
        if not self._places.has_file(place):
            return "the kernel has no remote partitions (Linux 6.7 and later have)"
        try:
            new = {place: self._places.read(place)}
            # The kernel overwrites these when a partition changes (up to Linux 6.19).
            new |= {thread: self._places.read(thread) for thread in self._places.node_threads()}
            self._save_more(new)
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

    # --- passes ---------------------------------------------------------------------------------

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
        try:
            if self._config.partitions is PartitionMode.NEVER:
                self._unpartitioned = partition_words(self._config, allocations, ())[1]
            asked = isolated_cpus(
                self._config, allocations, self._places.online(), self._partitions
            )
            invalid = {f"partition /{at}": text for (_, at), text in self._invalid.items()}
            unpartitioned = {**self._unpartitioned, **invalid}
            state = asked, unpartitioned
            changed = thorough or state != self._last
            if changed:
                self._last = None  # until the pass has ended
                conditions = {**asked.unmet, **unpartitioned, **self._unsaved}
                if thorough:
                    self._places.refresh()
                    conditions |= self._own_sets(asked, bound)
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
        found = dict(self._groups.fill(used, thorough=thorough))
        conditions = MappingProxyType({**self.report.conditions, **found})
        self.report = replace(self.report, conditions=conditions, counts=self._groups.counts)

    def _own_sets(self, asked: IsolatedCpus, bound: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the units of the host whose own CPUs became exclusive; the kernel takes them."""
        avoided = asked.avoided.get(IsolationItem.HOST_SLICES, EMPTY)
        for name in HOST_SLICES if avoided else ():
            if not self._places.has_cgroup(name):
                continue
            for cgroup, cpus in self._places.own_sets(name):
                if cpus & avoided and not is_within(cgroup, bound):
                    message = (
                        f"/{cgroup} has CPUs of its own, {cpus}, of which {cpus & avoided} are "
                        "exclusive to a pod: it does without them"
                    )
                    yield f"isolation /{cgroup}", message

    def _applied(
        self, asked: IsolatedCpus, conditions: dict[str, str], *, thorough: bool
    ) -> IsolationReport:
        if self._unusable:
            return IsolationReport({**conditions, "isolation": self._unusable})
        if thorough:
            self._forget_slices()
        pass_ = _Pass(conditions, thorough)
        self._take_in_appeared()
        desired = dict(desired_settings(asked, self._places))
        self._release(pass_, desired.keys() | self._groups.places_of(asked.resctrl))
        try:
            self._hold(pass_, desired)
        finally:
            self._places.close_kept()
        made = self._groups.make(asked.resctrl, self._originals, self._written, self._save_more)
        pass_.conditions.update(made)
        if thorough:
            self._look_at_effects(pass_, asked)
            self._take_back(pass_)
        if pass_.written:
            log.info("host settings written", settings=pass_.written, changed=len(self._originals))
        return IsolationReport(pass_.lines(), self._changed(desired), pass_.written)

    def restore(self) -> tuple[Mapping[str, str], int]:
        """Restore all originals; return what could not be, by place, and how many were."""
        pass_ = _Pass({}, thorough=True)
        self._forget_slices()
        before = len(self._originals)
        self._release(pass_, (), everything=True)
        return pass_.failed, before - len(self._originals)

    def _save(self, originals: dict[str, str]) -> None:
        if originals != self._originals:
            self._store.save(originals)
            self._originals = originals

    def _save_more(self, new: Mapping[str, str]) -> None:
        self._save({**new, **self._originals})

    def _take_in_appeared(self) -> None:
        """Give interrupts that came with the narrowed default the original of the default."""
        if self._config.interrupts is IsolationMode.NEVER:
            return
        places = set(self._places.find(_IRQS))
        default, narrowed = self._originals.get(DEFAULT_IRQ), self._written.get(DEFAULT_IRQ)
        if None not in (default, narrowed, self._seen):
            new = places - (self._seen or set()) - self._originals.keys()
            wide = str(cpus_of(Form.MASK, default or ""))
            taken = {place: wide for place in new if self._shows(place, narrowed or "")}
            self._save(self._originals | taken)
        self._seen = places

    def _shows(self, place: str, default: str) -> bool:
        try:
            return Mask.parse(self._places.read(place)) == cpus_of(Form.MASK, default)
        except PLACE_ERRORS:
            return False

    def _hold(self, pass_: _Pass, desired: Mapping[str, DesiredSetting]) -> None:
        """Save the originals of what has to change, then write that and read it back."""
        waiting: list[tuple[str, Form, str, str]] = []
        new: dict[str, str] = {}
        for key, each in desired.items():
            if key.startswith(IRQ) and not pass_.thorough:
                self._places.keep_open(key)  # there are hundreds, and most are written
            try:
                shown = self._places.read(key)
                text = self._to_write(key, each, shown, new)
            except FileNotFoundError:
                if each.row.missing:
                    pass_.missing.add((each.row.item, each.row.missing))
            except PLACE_ERRORS as error:
                pass_.failed[key] = why_not(error)
            else:
                if text is not None:
                    waiting.append((key, each.row.form, shown, text))
        self._save(self._originals | new)
        # What depends on another setting, as the lowest frequency on the highest, is tried twice.
        again = [one for one in waiting if not self._write(pass_, *one, last=False)]
        for one in again:
            self._write(pass_, *one, last=True)
        untouched = new.keys() - self._written.keys()
        self._save({key: text for key, text in self._originals.items() if key not in untouched})

    def _to_write(
        self, key: str, each: DesiredSetting, shown: str, new: dict[str, str]
    ) -> str | None:
        """Return what has to be written, None for nothing; an original goes to `new`."""
        form = each.row.form
        unused = each.row.where_set and not cpus_of(form, shown)
        if unused or self._immovable.get(key) == shown:
            return None
        changes, original = has_to_change(each, shown), self._originals.get(key)
        if original is None:
            if not changes:
                return None
            original = new[key] = shown
        text = text_instead(each, original)
        if changes:
            return text
        if same(form, shown, text):
            self._written.setdefault(key, text)
            return None
        return text if self._is_ours(key, form, shown) else None

    def _is_ours(self, key: str, form: Form, shown: str) -> bool:
        """Return whether the agent wrote what is shown; after a start that is assumed."""
        return key not in self._written or same(form, shown, self._written[key])

    def _write(
        self, pass_: _Pass, key: str, form: Form, before: str, text: str, *, last: bool
    ) -> bool:
        """Write a setting and read it back; return False where that is to be tried again."""
        # irqbalance shows what it was sent only after its next round.
        late = form is Form.AVOIDED and self._written.get(key) != text
        try:
            if not self._took(key, text):
                self._immovable[key] = before
                return True
            self._written[key] = text
            pass_.written += 1
            # The answer to the write says that the interrupt is set (write_irq_affinity in
            # kernel/irq/proc.c), and the next comparison reads all of them.
            if key.startswith(IRQ) and not pass_.thorough:
                return True
            shown = self._places.read(key)
            if not (late or same(form, shown, text)):
                raise OSError(errno.EIO, f"it shows {shown.strip()} instead of {text}")
        except FileNotFoundError:
            return True
        except PLACE_ERRORS as error:
            if last:
                pass_.failed[key] = why_not(error)
            return False
        return True

    def _took(self, key: str, text: str) -> bool:
        """Write a text; return False for an interrupt or a thread that no process may move.

        The interrupt is managed by its driver, per CPU, or its controller cannot move it: EIO, and
        EPERM in newer kernels, 6.12 among them (write_irq_affinity in kernel/irq/proc.c).
        """
        try:
            self._places.write(key, text)
        except OSError as error:
            never = ((IRQ, errno.EIO), (IRQ, errno.EPERM), (TASKS, errno.EINVAL))
            if any(key.startswith(kind) and error.errno == number for kind, number in never):
                return False
            raise
        return True

    def _release(self, pass_: _Pass, desired: Collection[str], *, everything: bool = False) -> None:
        """Give what is no longer to differ its original back, then forget that."""
        left = dict(self._originals)
        # Units before their cgroups: systemd writes a cgroup when a property is set. Partitions
        # before threads: the kernel moves some when a partition ends.
        places = sorted((key for key in left if key not in desired), reverse=True)
        places.sort(key=lambda key: not key.endswith(EXCLUSIVE))
        # Twice, since one may depend on another, as the lowest frequency on the highest.
        for key in (*places, *places):
            of_slices = self._config.host_slices and key.startswith((CGROUP, UNIT))
            partitioned = key.endswith(EXCLUSIVE)
            kept = bool(self._partitions) if partitioned else of_slices
            if key not in left or (kept and not everything):
                continue
            form = _form_of(key)
            try:
                shown, original = self._places.read(key), left[key]
                moved = key.startswith(TASKS) and self._places.node_of(key) is not None
                if everything or moved or self._is_ours(key, form, shown):
                    if shown != original or partitioned:
                        self._places.write(key, original)
                        pass_.written += 1
                        shown = self._places.read(key)
                    if original.strip() and key != BANNED and not same(form, shown, original):
                        raise OSError(errno.EIO, f"it shows {shown.strip()}")
            except FileNotFoundError:
                pass  # the device is gone, or the thread has ended
            except PLACE_ERRORS as error:
                pass_.failed[key] = why_not(error)
                continue
            del left[key]
            self._written.pop(key, None)
            pass_.failed.pop(key, None)
        self._save(left)

    def _look_at_effects(self, pass_: _Pass, asked: IsolatedCpus) -> None:
        """Note interrupts that still come to CPUs that they avoid, and an irqbalance that fights.

        Many are moved only by the kernel when they come next (IRQ_MOVE_PCNTXT): one more that comes
        there is none too many.
        """
        avoided = asked.avoided.get(IsolationItem.INTERRUPTS)
        if not avoided:
            return
        for key in self._originals:
            if not key.startswith(IRQ) or key == DEFAULT_IRQ:
                continue
            irq = key.split("/")[2]
            try:
                effective = Mask.parse(self._places.read(f"{IRQ}{irq}/effective_affinity_list"))
                cpus = effective & avoided - Mask.parse(self._written.get(key, ""))
                if not cpus:
                    continue
                counts = self._places.read(f"sys/kernel/irq/{irq}/per_cpu_count").split(",")
                came = sum(int(counts[cpu]) for cpu in cpus)
            except (IndexError, *PLACE_ERRORS):
                continue
            before = self._came.get(key)
            self._came[key] = (cpus, came)
            if before is not None and before[0] == cpus and came > before[1] + 1:
                pass_.late.append(f"{irq} ({self._places.described(key)}) to {cpus}")
        if not self._places.find(BANNED) and self._places.irqbalance_runs():
            pass_.conditions["isolation irqbalance"] = (
                "irqbalance runs and has no socket over which to name exclusive CPUs, so it moves "
                "interrupts back; stop it, or set IRQBALANCE_BANNED_CPULIST"
            )

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

    def _changed(self, desired: Mapping[str, DesiredSetting]) -> Mapping[str, int]:
        changed = Counter(str(desired[key].row.item) for key in self._originals if key in desired)
        slices = sum(key.startswith(CGROUP) and key.endswith(CPUS) for key in self._originals)
        groups = sum(key.startswith((RESCTRL_GROUP, ROOT_SCHEMATA)) for key in self._originals)
        changed |= Counter(
            {
                str(IsolationItem.HOST_SLICES): slices,
                str(IsolationItem.PARTITIONS): len(self._partitions),
                str(IsolationItem.RESCTRL): groups,
            }
        )
        return MappingProxyType(dict(changed))


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
        found = dict(self.conditions)
        for item in sorted({item for item, _ in self.missing}):
            why = "; ".join(sorted(why for of, why in self.missing if of == item))
            found[f"isolation {item}"] = f"{item} changes less than asked: {why}"
        reasons = Counter(self.failed.values())
        for why, times in sorted(reasons.items()):
            places = [place for place, each in self.failed.items() if each == why]
            named = ", ".join(f"/{place}" for place in places[:_NAMED])
            more = f" and {times - _NAMED} more" if times > _NAMED else ""
            found[f"isolation /{places[0]}"] = f"not as desired: {named}{more}: {why}"
        if self.late:
            named = ", ".join(sorted(self.late)[:_NAMED])
            more = f" and {len(self.late) - _NAMED} more" if len(self.late) > _NAMED else ""
            found["isolation interrupts"] = f"still delivered to exclusive CPUs: {named}{more}"
        return MappingProxyType(found)


def _form_of(key: str) -> Form:
    """Return how the text of a place is compared when its original is given back."""
    if key == ROOT_SCHEMATA:
        return Form.SCHEMATA
    if key.startswith((TASKS, CGROUP, UNIT, BANNED)) or key.endswith(
        ("affinity_list", "watchdog_cpumask")
    ):
        return Form.LIST
    if key.endswith(("cpumask", "_cpus", "smp_affinity")):
        return Form.MASK
    return Form.WORD
