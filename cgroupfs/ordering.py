"""The order in which the sets of a tree of cgroups are written, safe after every write.

Two rules are true after every single step if they were true before the first:

- a cgroup with a set of its own stays inside its parent's, so the kernel never falls back;
- no cgroup gains a CPU that another cgroup still uses and is about to lose.

One case has no such order: sets that are exchanged in a circle, each disjoint from its former
set, overlap for one write, because the kernel has neither transactions nor an empty set.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class WriteStage(IntEnum):
    """The part of a plan that a write belongs to; see `cgroupfs.plan`."""

    SHRINK = 1
    CONFINE = 2
    GIVE = 3
    SETTLE = 4


class OrderedCgroup(Struct, eq=False):
    """The set of one cgroup while it changes.

    `old` is effective now, `written` is what its file shows (empty: unset), `new` is desired.
    `late` nodes are narrowed after the others. `above` is the nearest planned ancestor.
    """

    path: str
    old: Mask
    written: Mask
    new: Mask
    late: bool = False
    above: OrderedCgroup | None = None
    #: Needs a set of its own before its parent gains, or it would gain the same CPUs.
    pinned: bool = False
    #: The set after all cgroups were narrowed, and the widest set that it needs meanwhile.
    keep: Mask = EMPTY
    wide: Mask = EMPTY
    #: Whether a planned cgroup lies below.
    inner: bool = False

    @property
    def follows(self) -> bool:
        """Whether it uses its parent's set: unset, or disjoint from what the parent has."""
        return self.written.isdisjoint(self.old)

    @property
    def holds(self) -> Mask:
        """What it uses now, or would use at once if the CPU came online or the parent grew."""
        return self.old if self.follows else self.old | self.written

    @property
    def narrows(self) -> bool:
        """Whether it is written before any cgroup gains."""
        return self.pinned or self.keep != self.holds


#: One step: the stage, the cgroup's path, the set to write.
Step = tuple[WriteStage, str, Mask]


def order(nodes: Sequence[OrderedCgroup]) -> Iterator[Step]:
    """Yield the steps that bring every node from `old` to `new`.

    `nodes` are sorted parents before children, each `new` is inside that of `above`. The nodes
    are modified.
    """
    _decide_pins(nodes)
    _decide_keeps(nodes)
    for stage, late in ((WriteStage.SHRINK, False), (WriteStage.CONFINE, True)):
        for node in reversed(nodes):
            if node.late is late and node.narrows:
                yield _step(stage, node, node.keep)
    _decide_widths(nodes)
    for node in _giving_order(nodes):
        yield _step(WriteStage.GIVE, node, node.wide)
    for node in reversed(nodes):
        if node.written != node.new:
            yield _step(WriteStage.SETTLE, node, node.new)


def _step(stage: WriteStage, node: OrderedCgroup, mask: Mask) -> Step:
    node.written = mask
    node.old = mask
    return stage, node.path, mask


def _decide_pins(nodes: Sequence[OrderedCgroup]) -> None:
    for node in nodes:
        if node.above is not None:
            node.above.inner = True
            gains_with_parent = node.follows and not node.above.new <= node.above.old
            node.pinned = gains_with_parent and node.written != node.new


def _decide_keeps(nodes: Sequence[OrderedCgroup]) -> None:
    """Set `keep`: what a node has of its new set, and what its children keep of theirs.

    A node whose new set is disjoint from the old one keeps the old set until the new one is free.
    """
    needed: dict[str, Mask] = {}
    for node in reversed(nodes):
        stays = EMPTY if node.old.isdisjoint(node.new) else node.new
        node.keep = ((stays | needed.get(node.path, EMPTY)) & node.holds) or node.old
        if node.above is not None and (node.narrows or not node.follows):
            needed[node.above.path] = needed.get(node.above.path, EMPTY) | node.keep


def _decide_widths(nodes: Sequence[OrderedCgroup]) -> None:
    """Set `wide`: the new set, and what the children use until they have their new sets."""
    for node in nodes:
        node.wide = node.new
    for node in reversed(nodes):
        if node.above is not None and not node.follows:
            node.above.wide |= node.keep


def _giving_order(nodes: Sequence[OrderedCgroup]) -> Iterator[OrderedCgroup]:
    """Yield the nodes to write: parents first, nodes that lose before nodes that gain."""
    waiting = {node.path: node for node in nodes if node.written != node.wide}
    while waiting:
        losing = Mask(0)
        for node in waiting.values():
            losing |= node.old - node.wide
        ready = [
            node
            for node in waiting.values()
            if not _above_waits(node, waiting) and losing.isdisjoint(node.wide - node.old)
        ]
        for node in ready or [_least_harm(waiting)]:
            yield waiting.pop(node.path)


def _least_harm(waiting: Mapping[str, OrderedCgroup]) -> OrderedCgroup:
    """Choose the first node where each waits for another.

    Widening an inner cgroup gives no CPU to the cgroups below, which have sets of their own by now.
    """
    free = [node for node in waiting.values() if not _above_waits(node, waiting)]
    return next((node for node in free if node.inner), free[0])


def _above_waits(node: OrderedCgroup, waiting: Mapping[str, OrderedCgroup]) -> bool:
    above = node.above
    while above is not None:
        if above.path in waiting:
            return True
        above = above.above
    return False
