"""Control groups of the kernel's resctrl filesystem, one for each class that a pod is in.

In go the classes that have pods (`make`) and the threads of these (`fill`); out comes what is not
as asked, by subject, and what the kernel counts. A class without pods has no group: its tasks are
then, as after a removal, in the root group, where the kernel puts those of a removed one. Only
tasks of the root group are taken, so that what another program has grouped stays. The groups, and
the schemata of the root group that exclusive classes narrow, are places with originals as every
other setting (`agent.isolation.originals`), so that release and restoring are the same for them.

Source: Documentation/filesystems/resctrl.rst of Linux 6.12; for counter assignment of 6.18.
"""

from __future__ import annotations

import errno
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.isolation.places import (
    PLACE_ERRORS,
    RESCTRL_GROUP,
    RESCTRL_ROOT,
    ROOT_SCHEMATA,
    why_not,
)
from agent.isolation.shares import (
    BANDWIDTH,
    CACHES,
    BandwidthControl,
    CacheControl,
    Resctrl,
    beside,
    has_lines,
    parse_schemata,
    schemata_text,
    shares,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from agent.config.isolation import ResctrlConfig
    from agent.isolation.originals import Custody
    from agent.isolation.places import HostPlaces
    from agent.isolation.shares import Schemata

#: What the names of the agent's groups begin with.
PREFIX: Final = "numawarden-"
_INFO: Final = f"{RESCTRL_ROOT}info/"
#: The values of Intel's MB line.
_WHOLE: Final = 100
_EXCLUSIVE: Final = "exclusive"
_SHAREABLE: Final = "shareable"
#: A thread that is being moved may start another in the group that it leaves.
_ROUNDS: Final = 3
#: So many mistakes, or tasks of other programs' groups, are named in a condition.
_NAMED: Final = 3
OCCUPANCY: Final = "llc_occupancy"
_COUNTED: Final = (OCCUPANCY, "mbm_total_bytes", "mbm_local_bytes")


class CacheCount(Struct, frozen=True):
    """What the kernel counts of an L3 cache for a class, or for one pod of a class."""

    name: str
    #: The pod's uid, "" for all pods of the class.
    uid: str
    cache: int
    #: `llc_occupancy` (bytes in the cache), `mbm_total_bytes` or `mbm_local_bytes` (bytes moved
    #: since the group was made).
    event: str
    #: None where the kernel does not count.
    value: int | None
    #: Why not: `unassigned` (the processor has no counter for the group), `unavailable` (not now),
    #: `error`.
    reason: str = ""


def read_resctrl(places: HostPlaces) -> Resctrl:
    """Return what the host divides; raises `PLACE_ERRORS`, with what to do where it has none."""
    if not places.find(RESCTRL_ROOT.rstrip("/")):
        why = "the kernel or the processor has no resctrl (Intel RDT, AMD QoS)"
        raise OSError(errno.ENODEV, why)
    if not places.look_for(ROOT_SCHEMATA):
        why = "resctrl is not mounted: mount -t resctrl resctrl /sys/fs/resctrl"
        raise OSError(errno.ENODEV, why)
    schemata = parse_schemata(places.read(ROOT_SCHEMATA))

    def number(line: str, file: str, base: int = 10) -> int:
        return int(places.read(f"{_INFO}{line}/{file}"), base)

    divided = [line for line in (*CACHES, BANDWIDTH) if line in schemata]
    caches: dict[str, CacheControl] = {
        line: CacheControl(
            number(line, "cbm_mask", 16),
            number(line, "min_cbm_bits"),
            number(line, "shareable_bits", 16),
            # Of Linux 6.7; before, no processor was known to take them.
            bool(places.look_for(f"{_INFO}{line}/sparse_masks"))
            and bool(number(line, "sparse_masks")),
        )
        for line in divided
        if line != BANDWIDTH
    }
    bandwidth = None
    if BANDWIDTH in schemata:
        linear = number(BANDWIDTH, "delay_linear")
        percent = bool(linear) and max(schemata[BANDWIDTH].values(), default=0) <= _WHOLE
        least, step = number(BANDWIDTH, "min_bandwidth"), number(BANDWIDTH, "bandwidth_gran")
        bandwidth = BandwidthControl(least, max(1, step), percent)
    groups = min((number(line, "num_closids") for line in divided), default=1)
    ids = {line: tuple(by_id) for line, by_id in schemata.items()}
    return Resctrl(groups, MappingProxyType(caches), bandwidth, MappingProxyType(ids))


class ResctrlGroups:
    """The agent's control groups of one host; `custody` has what was there before."""

    def __init__(self, config: ResctrlConfig, places: HostPlaces, custody: Custody) -> None:
        self._config = config
        self._places = places
        self._custody = custody
        #: The classes whose groups have what they are to have.
        self._ready: frozenset[str] = frozenset()
        #: What the kernel counted at the last comparison.
        self.counts: tuple[CacheCount, ...] = ()

    def places_of(self, used: Mapping[str, object]) -> frozenset[str]:
        """Return the places that differ from their originals while these classes have pods."""
        groups = {f"{RESCTRL_GROUP}{PREFIX}{name}" for name in used}
        root = {ROOT_SCHEMATA} if any(map(self._exclusive, used)) else set()
        return frozenset(groups | root)

    def make(self, used: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """Make the groups of the classes that have pods; yield what is not as asked, by subject."""
        self._ready = frozenset()
        if not used:
            self.counts = ()
            return
        failed: dict[str, str] = {}
        try:
            host = read_resctrl(self._places)
            decided = shares(self._config, host)
            if decided.mistakes:
                named = "; ".join(map(str, decided.mistakes[:_NAMED]))
                yield "isolation resctrl", f"no class is used: {named}"
                return
            made = self._made(used, failed)
            # As long as one of these is exclusive, the kernel gives its former ways to no group.
            changed = {name for name in made if not self._has(name, decided.schemata[name])}
            for name in changed:
                self._write(f"{_directory(name)}/mode", _SHAREABLE)
            exclusive = [decided.schemata[name] for name in used if self._exclusive(name)]
            if exclusive:
                self._narrow(host, exclusive)
        except PLACE_ERRORS as error:
            yield "isolation resctrl", f"classes are not as asked: {why_not(error)}"
            return
        self._give({name: decided.schemata[name] for name in changed}, made, failed)
        for name, why in failed.items():
            yield f"isolation resctrl {name}", f"class {name} is not as asked: {why}"
        self._ready = frozenset(made - failed.keys())

    def _made(self, used: Mapping[str, object], failed: dict[str, str]) -> set[str]:
        """Make the groups that are missing; return the classes whose groups are the agent's."""
        groups = {name: f"{RESCTRL_GROUP}{PREFIX}{name}" for name in sorted(used)}
        there = {name for name in groups if self._places.look_for(_directory(name))}
        made = {name for name in there if groups[name] in self._custody.originals}
        for name in there - made:
            failed[name] = f"/{_directory(name)} is not the agent's; remove it with rmdir"
        self._custody.take({groups[name]: "" for name in groups.keys() - there})
        for name in groups.keys() - there:
            try:
                self._write(groups[name], "made")
            except OSError as error:
                failed[name] = why_not(error)
            else:
                made.add(name)
        return made

    def _exclusive(self, name: str) -> bool:
        return self._config.classes[name].exclusive

    def _has(self, name: str, lines: Schemata) -> bool:
        return has_lines(parse_schemata(self._places.read(f"{_directory(name)}/schemata")), lines)

    def _narrow(self, host: Resctrl, exclusive: Sequence[Schemata]) -> None:
        """Keep the root group off exclusive ways; what another program wrote beside them stays."""
        text = self._places.read(ROOT_SCHEMATA)
        shown, original = parse_schemata(text), self._custody.original(ROOT_SCHEMATA, text)
        before = shown if original is None else parse_schemata(original)
        lines = beside(before, host, exclusive)
        if has_lines(shown, lines):
            if original is None:
                self._custody.forget({ROOT_SCHEMATA})
            return
        if original is None:
            caches: Schemata = {line: shown[line] for line in CACHES if line in shown}
            self._custody.take({ROOT_SCHEMATA: schemata_text(caches)})
        self._custody.will_write(ROOT_SCHEMATA, schemata_text(lines))
        self._write(ROOT_SCHEMATA, schemata_text(lines))
        if not has_lines(parse_schemata(self._places.read(ROOT_SCHEMATA)), lines):
            raise OSError(errno.EIO, f"/{ROOT_SCHEMATA} does not show what was written")

    def _give(
        self, changed: Mapping[str, Schemata], made: set[str], failed: dict[str, str]
    ) -> None:
        """Give the groups their schemata where they `changed`, then all of them their modes.

        The kernel makes no group exclusive as long as another has ways of it, as where two exchange
        theirs.
        """
        for name in sorted(changed):
            try:
                self._divide(name, changed[name])
            except PLACE_ERRORS as error:
                failed[name] = why_not(error)
        for name in sorted(made - failed.keys()):
            try:
                self._set_mode(name)
            except PLACE_ERRORS as error:
                failed[name] = why_not(error)

    def _divide(self, name: str, lines: Schemata) -> None:
        """Give a group its schemata, and read them back."""
        self._write(f"{_directory(name)}/schemata", schemata_text(lines))
        if not self._has(name, lines):
            place = f"/{_directory(name)}/schemata"
            raise OSError(errno.EIO, f"{place} does not show what was written")

    def _set_mode(self, name: str) -> None:
        directory = _directory(name)
        mode = _EXCLUSIVE if self._exclusive(name) else _SHAREABLE
        if self._places.read(f"{directory}/mode").strip() != mode:
            self._write(f"{directory}/mode", mode)
            if self._places.read(f"{directory}/mode").strip() != mode:
                raise OSError(errno.EIO, f"/{directory}/mode does not show {mode}")

    def _write(self, place: str, text: str) -> None:
        """Write a text; an error has what the kernel says of it (`info/last_cmd_status`)."""
        try:
            self._places.write(place, text)
        except OSError as error:
            try:
                said = self._places.read(f"{_INFO}last_cmd_status").strip()
            except PLACE_ERRORS:
                said = ""
            path = f"{RESCTRL_ROOT}{place.removeprefix(RESCTRL_GROUP).removeprefix(RESCTRL_ROOT)}"
            why = error.strerror or str(error)
            kernel = f", the kernel says: {said}" if said and said != "ok" else ""
            raise OSError(error.errno, f"/{path}: {why}{kernel}") from error

    def fill(
        self,
        used: Mapping[str, Mapping[str, Callable[[], frozenset[int]]]],
        *,
        thorough: bool,
    ) -> Iterator[tuple[str, str]]:
        """Put the threads of pods into the groups of their classes; yield what stays elsewhere.

        `used` has by class and uid what returns the threads of a pod. `thorough`: give back what is
        in a group and of no such pod, too, and read what the kernel counts.
        """
        try:
            others = self._others()
        except PLACE_ERRORS as error:
            yield "isolation resctrl", f"no threads are moved: {why_not(error)}"
            return
        for name in sorted(used.keys() & self._ready):
            directory = _directory(name)
            try:
                # Before those of the pods: what starts meanwhile is then known.
                inside = self._tasks(directory)
                of_pods: set[int] = set()
                for uid, threads in used[name].items():
                    group = yield from self._group_of(directory, uid)
                    moved, elsewhere = self._move((directory, group), threads, others)
                    of_pods |= moved
                    if elsewhere:
                        yield (
                            f"isolation resctrl {name} {uid}",
                            f"threads of pod {uid} stay in control groups of another program: "
                            + ", ".join(
                                f"{task} in {elsewhere[task]}"
                                for task in sorted(elsewhere)[:_NAMED]
                            ),
                        )
                if thorough:
                    for task in inside - of_pods:
                        self._put(RESCTRL_ROOT.rstrip("/"), task)
                    self._drop_ended(directory, used[name])
            except PLACE_ERRORS as error:
                yield (
                    f"isolation resctrl {name}",
                    f"not all threads are in the class: {why_not(error)}",
                )
        if thorough:
            self.counts = tuple(
                count for name in sorted(self._ready) for count in self._count(name)
            )

    def _move(
        self,
        groups: tuple[str, str],
        threads: Callable[[], frozenset[int]],
        others: Mapping[int, str],
    ) -> tuple[frozenset[int], dict[int, str]]:
        """Put threads into a control group and its monitoring group, which may be the same.

        Return the threads of the pod, and those of them that are in groups of other programs.
        """
        of_pod = threads()
        for _ in range(_ROUNDS):
            missing = of_pod - self._tasks(groups[-1]) - others.keys()
            if not missing:
                break
            for task in missing:
                for group in dict.fromkeys(groups):
                    self._put(group, task)
            of_pod = threads()
        return of_pod, {task: others[task] for task in of_pod & others.keys()}

    def _put(self, group: str, task: int) -> None:
        try:
            self._write(f"{group}/tasks", str(task))
        except OSError as error:
            if error.errno != errno.ESRCH:  # the thread has ended
                raise

    def _tasks(self, directory: str) -> set[int]:
        return set(map(int, self._places.read(f"{directory}/tasks").split()))

    def _others(self) -> Mapping[int, str]:
        """Return the threads in control groups of other programs, by thread."""
        others = {}
        for place in self._places.look_for(f"{RESCTRL_ROOT}*/tasks"):
            directory = os.path.dirname(place)  # noqa: PTH120  # a place, not a path
            name = directory.removeprefix(RESCTRL_ROOT)
            if name.startswith(PREFIX):
                continue
            try:
                others.update(dict.fromkeys(self._tasks(directory), name))
            except OSError as error:
                # Their program has removed the group; its threads are in the root group.
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
        return others

    def _group_of(self, directory: str, uid: str) -> Generator[tuple[str, str], None, str]:
        """Return the group of a pod's threads, a monitoring group where pods are counted."""
        group = f"{directory}/mon_groups/{PREFIX}{uid}"
        if not (self._config.monitor_pods and self._places.look_for(f"{directory}/mon_groups")):
            return directory
        if not self._places.look_for(group):
            try:
                self._write(group.replace(RESCTRL_ROOT, RESCTRL_GROUP), "made")
            except OSError as error:
                why = f"pod {uid} is not counted by itself: {why_not(error)}"
                yield f"isolation resctrl counts {uid}", why
                return directory
        return group

    def _drop_ended(self, directory: str, pods: Mapping[str, object]) -> None:
        """Remove the monitoring groups of pods that ended."""
        for place in self._places.look_for(f"{directory}/mon_groups/{PREFIX}*"):
            if place.removeprefix(f"{directory}/mon_groups/{PREFIX}") not in pods:
                self._places.write(place.replace(RESCTRL_ROOT, RESCTRL_GROUP), "")

    def _count(self, name: str) -> Iterator[CacheCount]:
        directory = _directory(name)
        groups = {"": directory}
        for place in self._places.look_for(f"{directory}/mon_groups/{PREFIX}*"):
            groups[place.removeprefix(f"{directory}/mon_groups/{PREFIX}")] = place
        unassigned = {uid: self._unassigned(group) for uid, group in groups.items()}
        # The kernel adds the pods' counts to those of the class, and passes over uncounted ones.
        unassigned[""] = set().union(*unassigned.values())
        for uid, group in groups.items():
            for cache in self._places.look_for(f"{group}/mon_data/mon_L3_*"):
                number = int(cache.rpartition("_")[2])
                for event in _COUNTED:
                    try:
                        text = self._places.read(f"{cache}/{event}").strip()
                    except FileNotFoundError:
                        continue
                    except PLACE_ERRORS:
                        text = "error"
                    if (event, number) in unassigned[uid]:
                        text = "unassigned"
                    counted = text.isdecimal()
                    value, reason = (int(text), "") if counted else (None, text.lower())
                    yield CacheCount(name, uid, number, event, value, reason)

    def _unassigned(self, group: str) -> set[tuple[str, int]]:
        """Return the events that the hardware does not count for a group, by cache.

        In the mode mbm_event (AMD's ABMC, Linux 6.18) there are fewer counters than groups, and
        what is read without one is of no use: `mbm_total_bytes:0=e;1=_`, `_` for none.
        """
        try:
            if "[mbm_event]" not in self._places.read(f"{_INFO}L3_MON/mbm_assign_mode"):
                return set()
            text = self._places.read(f"{group}/mbm_L3_assignments")
            return {
                (event, int(cache))
                for event, _, by_id in (row.partition(":") for row in text.split())
                for cache, _, state in (part.partition("=") for part in by_id.split(";"))
                if state == "_"
            }
        except PLACE_ERRORS:
            return set()


def _directory(name: str) -> str:
    return f"{RESCTRL_ROOT}{PREFIX}{name}"
