"""The writes that turn what the kernel shows into what is desired, in a safe order.

In go the state of cgroups and a `Setting` for each; out comes a `Plan`. The kernel has no
transactions, and it accepts a CPU list outside the parent's, then uses the parent's silently. So
the order keeps every intermediate state correct. A plan has four stages:

1. shrink: cgroups that lose CPUs or memory nodes to others are narrowed, children before parents;
2. confine: cgroups with exclusive CPUs are narrowed to their own set, children before parents;
3. give: cgroups that gain are widened, parents before children; other values are written, higher
   quotas among them;
4. settle: parents that had to be wider meanwhile are narrowed and lower quotas are written,
   children before parents; cgroups that inherit lose sets of their own, in any order: until then
   they have some of their parent's CPUs, and never others.

Partitions are around this. No other cgroup can use a partition's CPUs, even if its set names them.
So a partition whose CPUs change ends, and loses them, before any set is written; cgroups become
partitions last of all, when no sibling has their CPUs: up to Linux 6.19 a sibling that lists them
makes a partition invalid.

A limit below the current use is withheld, since the kernel would kill processes for it.

For `cpuset.cpus`, and by itself for `cpuset.mems`, two rules hold after every single write, if
they held before the first, among the cgroups whose sets fit:

- a cgroup with a set of its own stays inside its parent's, so the kernel never falls back;
- no cgroup gains a CPU that another cgroup still uses and is about to lose.

One case has no such order: cgroups that exchange their sets in a circle, each new set disjoint from
the former one. Two of them overlap until the next write or two, since a set cannot be empty.
"""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cgroupfs.settings import (
    CPUS,
    EXCLUSIVE,
    MEMBER,
    MEMS,
    NO_LIMIT,
    PARTITION,
    PARTITION_FILES,
    partition_fault,
    row_of,
)
from cgroupfs.tree import parent
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cgroupfs.state import CgroupState


class WriteStage(IntEnum):
    """The part of a plan that a write belongs to; see `cgroupfs.plan`."""

    SHRINK = 1
    CONFINE = 2
    GIVE = 3
    SETTLE = 4


class OrderedCgroup(Struct, eq=False):
    """The set of one cgroup while it changes."""

    path: str
    #: What is effective now.
    effective: Mask
    #: What its file shows (empty: unset).
    written: Mask
    #: What is desired.
    new: Mask
    #: Whether it is narrowed in the second stage, not in the first.
    late: bool = False
    #: The nearest planned ancestor.
    above: OrderedCgroup | None = None
    #: Whether a planned cgroup lies below.
    is_inner: bool = False
    #: Whether it uses its parent's set now: it is written before the parent gains, so that it does
    #: not gain with it.
    is_pinned: bool = False
    #: Its set once all cgroups were narrowed.
    narrowest: Mask = EMPTY
    #: Its set while cgroups below still have parts of their former sets.
    widest: Mask = EMPTY

    @property
    def uses_parents(self) -> bool:
        """Whether it uses its parent's set: unset, or disjoint from what the parent has."""
        return self.written.isdisjoint(self.effective)

    @property
    def claimed(self) -> Mask:
        """What it uses now, or would use at once if the CPU came online or the parent grew."""
        return self.effective if self.uses_parents else self.effective | self.written

    @property
    def narrows(self) -> bool:
        """Whether it is written before any cgroup gains."""
        return self.is_pinned or self.narrowest != self.claimed


#: One step: the stage, the cgroup's path, the set to write.
Step = tuple[WriteStage, str, Mask]


def order(nodes: Sequence[OrderedCgroup]) -> Iterator[Step]:
    """Yield the steps that bring every node to its `new` set.

    `nodes` are sorted parents before children, and each `new` set is inside that of `above`. The
    nodes are modified.
    """
    _find_pinned(nodes)
    _find_narrowest(nodes)
    for stage, late in ((WriteStage.SHRINK, False), (WriteStage.CONFINE, True)):
        for node in reversed(nodes):
            if node.late is late and node.narrows:
                yield _step(stage, node, node.narrowest)
    _find_widest(nodes)
    for node in _giving_order(nodes):
        yield _step(WriteStage.GIVE, node, node.widest)
    for node in reversed(nodes):
        if node.written != node.new:
            yield _step(WriteStage.SETTLE, node, node.new)


def _step(stage: WriteStage, node: OrderedCgroup, mask: Mask) -> Step:
    node.written = mask
    node.effective = mask
    return stage, node.path, mask


def _find_pinned(nodes: Sequence[OrderedCgroup]) -> None:
    for node in nodes:
        if node.above is not None:
            node.above.is_inner = True
            gains_with_parent = node.uses_parents and not node.above.new <= node.above.effective
            node.is_pinned = gains_with_parent and node.written != node.new


def _find_narrowest(nodes: Sequence[OrderedCgroup]) -> None:
    """Set `narrowest`: what a node has of its new set, and what its children keep of theirs.

    A node whose new set is disjoint from the old one keeps the old set until the new one is free.
    """
    needed: dict[str, Mask] = {}
    for node in reversed(nodes):
        stays = EMPTY if node.effective.isdisjoint(node.new) else node.new
        # A set cannot be empty: one that would be stays.
        node.narrowest = ((stays | needed.get(node.path, EMPTY)) & node.claimed) or node.effective
        if node.above is not None and (node.narrows or not node.uses_parents):
            needed[node.above.path] = needed.get(node.above.path, EMPTY) | node.narrowest


def _find_widest(nodes: Sequence[OrderedCgroup]) -> None:
    """Set `widest`: the new set, and what the children use until they have their new sets."""
    for node in nodes:
        node.widest = node.new
    for node in reversed(nodes):
        if node.above is not None and not node.uses_parents:
            node.above.widest |= node.narrowest


def _giving_order(nodes: Sequence[OrderedCgroup]) -> Iterator[OrderedCgroup]:
    """Yield the nodes to write: parents first, nodes that lose before nodes that gain."""
    waiting = {node.path: node for node in nodes if node.written != node.widest}
    while waiting:
        losing = Mask(0)
        for node in waiting.values():
            losing |= node.effective - node.widest
        ready = [
            node
            for node in waiting.values()
            if not _above_waits(node, waiting) and losing.isdisjoint(node.widest - node.effective)
        ]
        for node in ready or [_least_harm(waiting)]:
            yield waiting.pop(node.path)


def _least_harm(waiting: Mapping[str, OrderedCgroup]) -> OrderedCgroup:
    """Return the node to write first where each waits for another: a circle.

    Widening an inner cgroup gives no CPU to the cgroups below, which have sets of their own by now.
    """
    free = [node for node in waiting.values() if not _above_waits(node, waiting)]
    return next((node for node in free if node.is_inner), free[0])


def _above_waits(node: OrderedCgroup, waiting: Mapping[str, OrderedCgroup]) -> bool:
    above = node.above
    while above is not None:
        if above.path in waiting:
            return True
        above = above.above
    return False


_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_EMPTY_SET: Final = "{} of {} must not be empty: the kernel would use the parent's"


class Setting(Struct, frozen=True):
    """What one cgroup should have.

    A cgroup either has a set of its own or inherits its parent's. The file of one that inherits is
    unset or has all CPUs of the host: a set that another process wrote is replaced by these, since
    before Linux 7.0 the kernel clears no set while processes live in the cgroup (ENOSPC,
    `validate_change` in kernel/cgroup/cpuset.c).

    Raises `ValueError` for an empty set, which the kernel treats as "same as the parent".
    """

    cgroup: str
    #: The set of its own, or what the parent gives to one that inherits; None leaves the file as it
    #: is, or says that the parent may give anything.
    cpus: Mask | None = None
    mems: Mask | None = None
    #: Whether no other cgroup should use its CPUs: it is confined after all others have shrunk.
    exclusive: bool = False
    #: Whether `cpuset.mems` may be rewritten although processes live in the cgroup: the kernel then
    #: migrates their pages before the write returns.
    move_memory: bool = False
    #: The texts of files of one value.
    values: Mapping[str, str] = _NOTHING
    #: The texts of limits that are written only where the file shows no limit.
    defaults: Mapping[str, str] = _NOTHING
    #: All CPUs of the host where the cgroup inherits, else empty.
    whole_cpus: Mask = EMPTY
    whole_mems: Mask = EMPTY
    #: The CPUs that partitions inside may have taken: they need not be in effect here (`diff`).
    given: Mask = EMPTY

    def __post_init__(self) -> None:
        # A pass makes thousands of settings: the masks' numbers are looked at directly.
        if self.cpus is not None and not self.cpus.bits:
            raise ValueError(_EMPTY_SET.format(CPUS, self.cgroup))
        if self.mems is not None and not self.mems.bits:
            raise ValueError(_EMPTY_SET.format(MEMS, self.cgroup))

    @property
    def inherits(self) -> bool:
        """Whether both sets are the parent's: then the cpuset controller need not be enabled."""
        return self.mems is None and self.whole_cpus.bits != 0

    def sets_beside(self, cpus: Mask | None, mems: Mask | None) -> tuple[Mask | None, Mask | None]:
        """Return the sets that the cgroup's files should have, given those that they show."""
        return (
            _set_beside(self.cpus, self.whole_cpus, cpus),
            _set_beside(self.mems, self.whole_mems, mems),
        )

    def values_beside(self, shown: Mapping[str, str]) -> Mapping[str, str]:
        """Return the values that the cgroup should have, given those that it shows."""
        if not self.defaults:
            return self.values
        unset = {f: text for f, text in self.defaults.items() if shown.get(f) == NO_LIMIT}
        return {**self.values, **unset}

    def differing(self, shown: Mapping[str, str]) -> Mapping[str, str]:
        """Return the values that the cgroup should have and does not show."""
        if not self.defaults and self.values.items() <= shown.items():
            return _NOTHING  # nearly always, of thousands of cgroups
        desired = self.values_beside(shown)
        return {file: text for file, text in desired.items() if shown.get(file) != text}


def sets_of(
    setting: Setting, state: CgroupState, file: str
) -> tuple[Mask | None, Mask, Mask | None, Mask | None]:
    """Return what is desired of `cpuset.cpus` or `cpuset.mems`, and what the cgroup shows.

    Four sets: the desired one, all of the host's where the cgroup inherits (else empty), that of
    the file, and the effective one.
    """
    if file == CPUS:
        return setting.cpus, setting.whole_cpus, state.cpus, state.cpus_effective
    return setting.mems, setting.whole_mems, state.mems, state.mems_effective


def _set_beside(desired: Mask | None, whole: Mask, shown: Mask | None) -> Mask | None:
    if not whole:
        return desired
    if not shown:
        return None
    return shown if whole <= shown else whole  # noqa: FURB136  # of sets, not of numbers


class Write(Struct, frozen=True):
    """One write; `value` has the form in which the kernel shows it."""

    stage: WriteStage
    cgroup: str
    file: str
    value: str


class Unfit(Struct, frozen=True):
    """A set that a cgroup cannot have, because `above`, an ancestor, is to have only `given`."""

    cgroup: str
    file: str
    desired: Mask
    above: str
    given: Mask


class Plan(Struct, frozen=True):
    """Writes in their order, and what is not written as desired."""

    writes: tuple[Write, ...] = ()
    #: Memory migrations that were not asked for, and limits below the current use: not written.
    withheld: tuple[Write, ...] = ()
    #: Of these sets only the part that the ancestor has is written.
    unfit: tuple[Unfit, ...] = ()


def make_plan(current: Mapping[str, CgroupState], desired: Iterable[Setting]) -> Plan:
    """Order the writes that turn `current` into `desired`; only what differs is written.

    `current` maps cgroup paths to what was read; a desired cgroup that is not in it (gone) or
    lacks the controller's file gets no write. Every input has a plan: of two settings of a cgroup
    the first counts, and a set outside of an ancestor's is unfit.
    """
    settings = _by_path(desired)
    unfit: list[Unfit] = []
    withheld = list(_withheld(current, settings))
    fixed = {write.cgroup for write in withheld}
    movable = {path: setting for path, setting in settings.items() if path not in fixed}
    taken, given = _partition_writes(current, settings)
    writes = [
        *taken,
        *_ordered(MEMS, _nodes(current, movable, MEMS, frozenset(), unfit)),
        *_ordered(CPUS, _nodes(current, settings, CPUS, _late(settings), unfit)),
        *_neutralized(current, settings),
        *_value_writes(current, settings, withheld),
        *given,
    ]
    # A stable sort: partitions end before all else of the first stage, and are made after all else
    # of the last; in between, memory nodes come before CPUs, and these before values.
    ordered = tuple(sorted(writes, key=lambda write: write.stage))
    return Plan(ordered, tuple(withheld), tuple(unfit))


def _by_path(desired: Iterable[Setting]) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for setting in desired:
        settings.setdefault(setting.cgroup, setting)
    return dict(sorted(settings.items(), key=lambda item: _depth(item[0])))


def _depth(path: str) -> tuple[int, str]:
    return path.count("/") + bool(path), path


def _withheld(
    current: Mapping[str, CgroupState], settings: Mapping[str, Setting]
) -> Iterator[Write]:
    for path, setting in settings.items():
        state = current.get(path)
        if state is None or setting.move_memory or not state.populated or state.mems is None:
            continue
        nodes = _set_beside(setting.mems, setting.whole_mems, state.mems)
        # The kernel migrates the pages of the nodes that are taken away, others stay
        # (do_migrate_pages in mm/migrate.c).
        now = state.mems if setting.whole_mems else state.mems_effective
        if nodes is not None and (now is None or not now <= nodes):
            yield Write(WriteStage.GIVE, path, MEMS, str(nodes))


def _late(settings: Mapping[str, Setting]) -> frozenset[str]:
    late: set[str] = set()
    for path, setting in settings.items():
        if setting.exclusive:
            late.add(path)
            # A parent must not be narrowed before its child, so it is as late as the child.
            late.update(_planned_above(path, settings))
    return frozenset(late)


def _planned_above(path: str, settings: Mapping[str, object]) -> Iterator[str]:
    while path:
        path = parent(path)
        if path in settings:
            yield path


def _nodes(
    current: Mapping[str, CgroupState],
    settings: Mapping[str, Setting],
    file: str,
    late: frozenset[str],
    unfit: list[Unfit],
) -> list[OrderedCgroup]:
    """Return what is to be ordered; sets that do not fit are cut, and added to `unfit`."""
    nodes: dict[str, OrderedCgroup] = {}
    for path, setting in settings.items():
        node = _node(setting, current.get(path), file, late=path in late)
        if node is None:
            continue
        node.above = next((nodes[a] for a in _planned_above(path, settings) if a in nodes), None)
        above = node.above
        if above is not None and not node.new <= above.new:
            unfit.append(Unfit(path, file, node.new, above.path, above.new))
            node.new &= above.new
        if node.new:
            nodes[path] = node
    return list(nodes.values())


def _node(
    setting: Setting, state: CgroupState | None, file: str, *, late: bool
) -> OrderedCgroup | None:
    if state is None:
        return None
    new, whole, written, effective = sets_of(setting, state, file)
    if whole:
        # Below a cgroup with a set of its own the order does not matter (`_neutralized`). One above
        # all of these gets the wide set before those below it get theirs.
        if new is not None or not written or whole <= written:
            return None
        new = whole
    if new is None or written is None or effective is None:
        return None
    return OrderedCgroup(setting.cgroup, effective, written, new, late)


def _neutralized(
    current: Mapping[str, CgroupState], settings: Mapping[str, Setting]
) -> Iterator[Write]:
    """Yield the writes that take a set of its own from a cgroup that inherits."""
    for path, setting in settings.items():
        state = current.get(path)
        if state is None:
            continue
        for file in (CPUS, MEMS):
            desired, whole, written, _ = sets_of(setting, state, file)
            if desired is not None and whole and written and not whole <= written:
                yield Write(WriteStage.SETTLE, path, file, str(whole))


def _ordered(file: str, nodes: list[OrderedCgroup]) -> Iterator[Write]:
    for stage, path, mask in order(nodes):
        yield Write(stage, path, file, str(mask))


def _value_writes(
    current: Mapping[str, CgroupState], settings: Mapping[str, Setting], withheld: list[Write]
) -> Iterator[Write]:
    """Yield the writes of files of one value; a limit below the current use is `withheld`."""
    lower: list[Write] = []
    for path, setting in settings.items():
        state = current.get(path)
        if state is None:
            continue
        for file, text in setting.differing(state.values).items():
            if file not in state.values or file in PARTITION_FILES:
                continue
            allows = row_of(file).allows
            if is_below_use(text, state.in_use, file):
                withheld.append(Write(WriteStage.GIVE, path, file, text))
            elif allows is not None and not allows(text, state.values[file]):
                lower.append(Write(WriteStage.SETTLE, path, file, text))
            else:
                yield Write(WriteStage.GIVE, path, file, text)
    yield from reversed(lower)


def _partition_writes(
    current: Mapping[str, CgroupState], settings: Mapping[str, Setting]
) -> tuple[list[Write], list[Write]]:
    """Return what takes exclusive CPUs from cgroups, and what makes partitions of them.

    An ancestor has the exclusive CPUs of all partitions below, so it loses them after these and
    gains them before. A partition inside one that ends depends on it, and is made again as well.
    """
    shrink: list[Write] = []
    give: list[Write] = []
    words: list[Write] = []
    ended: set[str] = set()
    for path, setting in settings.items():
        state, desired = current.get(path), setting.values.get(EXCLUSIVE)
        if state is None or desired is None or EXCLUSIVE not in state.values:
            continue
        shown = state.values.get(PARTITION, MEMBER)
        word = setting.values.get(PARTITION, shown)
        old, new = Mask.parse(state.values[EXCLUSIVE]), Mask.parse(desired)
        # What made it invalid took the CPUs: Linux 6.12 finds them again where they are written.
        # One inside a partition that was made again is called valid, and has its parent's CPUs.
        astray = shown != MEMBER and not (state.cpus_effective or EMPTY) <= old
        broken = PARTITION in setting.values and (partition_fault(shown) is not None or astray)
        kept = EMPTY if broken else old & new
        narrows = [] if kept == old else [Write(WriteStage.SHRINK, path, EXCLUSIVE, str(kept))]
        if (
            PARTITION in setting.values
            and shown != MEMBER
            and (word == MEMBER or not old == kept == new or parent(path) in ended)
        ):
            narrows.insert(0, Write(WriteStage.SHRINK, path, PARTITION, MEMBER))
            shown = MEMBER
            ended.add(path)
        shrink[:0] = narrows
        if kept != new:
            give.append(Write(WriteStage.SETTLE, path, EXCLUSIVE, str(new)))
        if word != shown:
            words.append(Write(WriteStage.SETTLE, path, PARTITION, word))
    return shrink, [*give, *words]


def is_below_use(text: str, in_use: Mapping[str, int], file: str) -> bool:
    """Return whether a limit is below the current use."""
    return file in in_use and text != NO_LIMIT and in_use[file] > int(text)
