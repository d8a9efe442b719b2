"""The order in which the sets of a tree of cgroups change, so that none is ever wrong between.

Two rules hold after every single step, when they held before the first:

- a cgroup with a set of its own stays inside its parent's, so the kernel never falls back;
- nobody gains a CPU that another cgroup still uses and is about to lose.

One case has no such order: sets that change places in a circle, each disjoint from its former
self, overlap for one write, because the kernel has neither transactions nor an empty set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Stage(IntEnum):
    """The part of a plan that a write belongs to; see `cgroupfs.plan`."""

    SHRINK = 1
    CONFINE = 2
    GIVE = 3
    SETTLE = 4


@dataclass(slots=True, eq=False)
class Node:
    """One cgroup's set on its way.

    `old` is in effect now, `written` is what its file says (empty: unset), `new` is wanted.
    `late` nodes are narrowed after the others. `above` is the nearest planned ancestor.
    """

    path: str
    old: Mask
    written: Mask
    new: Mask
    late: bool = False
    above: Node | None = None
    #: What it still holds after everyone was narrowed, and the widest it has to be meanwhile.
    keep: Mask = field(default=EMPTY, init=False)
    wide: Mask = field(default=EMPTY, init=False)

    @property
    def follows(self) -> bool:
        """Whether it uses whatever its parent has: unset, or set to nothing the parent has."""
        return self.written.isdisjoint(self.old)

    @property
    def uses(self) -> Mask:
        """What it uses at this point of the order."""
        if self.above is None:
            return self.old
        around = self.above.uses
        return (self.written & around) or around

    @property
    def holds(self) -> Mask:
        """What it uses now, or would use at once if the CPU came online or the parent grew."""
        return self.old if self.follows else self.old | self.written


#: One step: the stage, the cgroup's path, the set to write.
Step = tuple[Stage, str, Mask]


def order(nodes: Sequence[Node]) -> Iterator[Step]:
    """Yield the steps that bring every node from `old` to `new`.

    `nodes` stand parents before children, each `new` is inside that of `above`. The nodes are
    used up.
    """
    _decide_keeps(nodes)
    for stage, late in ((Stage.SHRINK, False), (Stage.CONFINE, True)):
        for node in reversed(nodes):
            if node.late is late and _narrows(node):
                yield _step(stage, node, node.keep)
    _decide_widths(nodes)
    for node in _giving_order(nodes):
        yield _step(Stage.GIVE, node, node.wide)
    for node in reversed(nodes):
        if node.written != node.new:
            yield _step(Stage.SETTLE, node, node.new)


def _step(stage: Stage, node: Node, mask: Mask) -> Step:
    node.written = mask
    node.old = mask
    return stage, node.path, mask


def _decide_keeps(nodes: Sequence[Node]) -> None:
    """Set `keep`: what a node has of its new set, and what its children keep of theirs.

    A node whose new set is disjoint from the old one keeps the old until it can jump.
    """
    below: dict[str, Mask] = {}
    for node in reversed(nodes):
        needed = below.get(node.path, EMPTY)
        stays = node.new if not node.old.isdisjoint(node.new) else EMPTY
        node.keep = ((stays | needed) & node.holds) or node.old
        if node.above is not None and (not node.follows or _narrows(node)):
            below[node.above.path] = below.get(node.above.path, EMPTY) | node.keep


def _narrows(node: Node) -> bool:
    return node.keep != node.holds


def _decide_widths(nodes: Sequence[Node]) -> None:
    """Set `wide`: the new set, and what children hold until they have moved."""
    for node in nodes:
        node.wide = node.new
    for node in reversed(nodes):
        if node.above is not None and not node.follows:
            node.above.wide |= node.keep


def _giving_order(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield who must be written: parents first, and losers before those who gain from them."""
    followers = _followers(nodes)
    waiting = {node.path: node for node in nodes if node.written != node.wide}
    while waiting:
        losing = Mask(0)
        for node in waiting.values():
            losing |= node.uses - node.wide
        before = len(waiting)
        for node in list(waiting.values()):
            if _above_waits(node, waiting) or not losing.isdisjoint(node.wide - node.uses):
                continue
            yield waiting.pop(node.path)
            # Who follows this node has just been widened with it, and gives that up when written.
            for follower in followers.get(node.path, ()):
                if follower.path in waiting:
                    losing |= follower.uses - follower.wide
        if len(waiting) == before:
            circle = next(n for n in waiting.values() if not _above_waits(n, waiting))
            yield waiting.pop(circle.path)


def _followers(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in nodes:
        if node.above is not None and node.follows:
            found.setdefault(node.above.path, []).append(node)
    return found


def _above_waits(node: Node, waiting: Mapping[str, Node]) -> bool:
    above = node.above
    while above is not None:
        if above.path in waiting:
            return True
        above = above.above
    return False
