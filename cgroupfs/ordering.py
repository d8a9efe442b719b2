"""The order in which the sets of a tree of cgroups change, so that none is ever wrong between.

Two rules hold after every single step, when they held before the first:

- a cgroup with a set of its own stays inside its parent's, so the kernel never falls back;
- nobody gains a CPU that another cgroup still uses and is about to lose.

One case has no such order: sets that change places in a circle, each disjoint from its former
self, overlap for one write, because the kernel has neither transactions nor an empty set.
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
    """One cgroup's set on its way.

    `old` is in effect now, `written` is what its file says (empty: unset), `new` is desired.
    `late` nodes are narrowed after the others. `above` is the nearest planned ancestor.
    """

    path: str
    old: Mask
    written: Mask
    new: Mask
    late: bool = False
    above: OrderedCgroup | None = None
    #: Must be given a set of its own before its parent gains, or it would gain as much.
    pinned: bool = False
    #: What it still holds after everyone was narrowed, and the widest it has to be meanwhile.
    keep: Mask = EMPTY
    wide: Mask = EMPTY
    #: Whether a planned cgroup stands below.
    inner: bool = False

    @property
    def follows(self) -> bool:
        """Whether it uses whatever its parent has: unset, or set to nothing the parent has."""
        return self.written.isdisjoint(self.old)

    @property
    def holds(self) -> Mask:
        """What it uses now, or would use at once if the CPU came online or the parent grew."""
        return self.old if self.follows else self.old | self.written

    @property
    def narrows(self) -> bool:
        """Whether it is written before anyone gains."""
        return self.pinned or self.keep != self.holds


#: One step: the stage, the cgroup's path, the set to write.
Step = tuple[WriteStage, str, Mask]


def order(nodes: Sequence[OrderedCgroup]) -> Iterator[Step]:
    """Yield the steps that bring every node from `old` to `new`.

    `nodes` stand parents before children, each `new` is inside that of `above`. The nodes are
    used up.
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

    A node whose new set is disjoint from the old one keeps the old until it can jump.
    """
    needed: dict[str, Mask] = {}
    for node in reversed(nodes):
        stays = EMPTY if node.old.isdisjoint(node.new) else node.new
        node.keep = ((stays | needed.get(node.path, EMPTY)) & node.holds) or node.old
        if node.above is not None and (node.narrows or not node.follows):
            needed[node.above.path] = needed.get(node.above.path, EMPTY) | node.keep


def _decide_widths(nodes: Sequence[OrderedCgroup]) -> None:
    """Set `wide`: the new set, and what children hold until they have moved."""
    for node in nodes:
        node.wide = node.new
    for node in reversed(nodes):
        if node.above is not None and not node.follows:
            node.above.wide |= node.keep


def _giving_order(nodes: Sequence[OrderedCgroup]) -> Iterator[OrderedCgroup]:
    """Yield who must be written: parents first, and losers before those who gain from them."""
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
    """Choose who goes first where everyone waits for another.

    Widening an inner cgroup gives nobody below a CPU: they have sets of their own by now.
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
