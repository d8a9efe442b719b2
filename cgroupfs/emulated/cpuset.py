"""The cpuset rules: effective sets and partitions (kernel/cgroup/cpuset.c).

The root group describes the host: `cpus` are the online CPUs, `exclusive` all possible ones, `mems`
the nodes with memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cgroupfs.emulated.group import MEMBER
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cgroupfs.emulated.group import Group
    from sysfs.mask import Mask

ISOLATED: Final = "isolated"
PARTITIONS: Final = (MEMBER, "root", ISOLATED)
_NOT_EXCLUSIVE: Final = "Cpu list in cpuset.cpus not exclusive"
_NOT_PARTITION: Final = "Parent is not a partition root"
_NO_CPUS: Final = "Parent unable to distribute cpu downstream"
_INVALID_LIST: Final = "Invalid cpu list in cpuset.cpus.exclusive"


def settle(root: Group) -> None:
    """Have what is in effect found again where it is read next, where there are no partitions.

    Not at once: one setting above thousands of cgroups changes what is in effect in all of them.
    """
    root.version += 1
    root.exclusive_then, root.cpus_then, root.mems_then = root.exclusive, root.cpus, root.mems


def settle_partitions(root: Group, partitions: Iterable[Group]) -> None:
    """Bring everything up to date where `partitions` (member groups left out) exist."""
    by_depth = sorted(partitions, key=lambda group: group.path.count("/"))
    settle(root)
    for group in root.walk():
        _ = group.exclusive_now  # before any of them changes, which does not concern those below
    for group in by_depth:
        group.invalid = ""
    for group in by_depth:
        group.exclusive_now = _own(group) & _above(group).exclusive_now
        group.invalid = _why_invalid(group, root)
        if group.invalid:
            group.exclusive_now = group.exclusive & _above(group).exclusive_now
    valid = [group for group in by_depth if group.is_partition]
    _share(root, root.cpus, frozenset(valid))


def overlaps_sibling(group: Group, exclusive: Mask) -> bool:
    """Return whether exclusive CPUs would collide with those of a sibling (EINVAL)."""
    return any(not exclusive.isdisjoint(sibling.exclusive) for sibling in _siblings(group))


def break_siblings(group: Group) -> None:
    """Invalidate the partitions beside `group` whose CPUs it now names in `cpuset.cpus`."""
    for sibling in _siblings(group):
        if sibling.is_partition and not sibling.exclusive_now.isdisjoint(group.cpus):
            sibling.broken = True


def _share(group: Group, cpus: Mask, valid: frozenset[Group]) -> None:
    given = EMPTY
    for below in _nearest(group, valid):
        _share(below, below.exclusive_now & cpus, valid)
        given |= below.exclusive_now
    group.cpus_now = cpus - given
    for child in group.children.values():
        _inherit(child, valid)


def _inherit(group: Group, valid: frozenset[Group]) -> None:
    if group in valid:
        return
    above = _above(group)
    group.cpus_now = (group.cpus & above.cpus_now) or above.cpus_now
    for child in group.children.values():
        _inherit(child, valid)


def _nearest(group: Group, valid: frozenset[Group]) -> list[Group]:
    found: list[Group] = []
    for child in group.children.values():
        found.extend([child] if child in valid else _nearest(child, valid))
    return found


def _own(group: Group) -> Mask:
    return group.exclusive or group.cpus


def _above(group: Group) -> Group:
    if group.parent is None:
        raise ValueError("the root has no parent")
    return group.parent


def _siblings(group: Group) -> list[Group]:
    return [other for other in _above(group).children.values() if other is not group]


def _why_invalid(group: Group, root: Group) -> str:
    above = _above(group)
    is_root = above.parent is None or above.is_partition
    if not group.exclusive and not is_root:
        return _NOT_PARTITION
    if not group.exclusive_now:
        return _INVALID_LIST
    if any(not _own(other).isdisjoint(group.exclusive_now) for other in _siblings(group)):
        return _NOT_EXCLUSIVE
    if root.cpus <= group.exclusive_now:
        return _NO_CPUS
    return ""
