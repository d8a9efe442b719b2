"""Cpuset partitions: which cgroups are some, and the CPUs that these have to themselves.

The CPUs of a partition are in the effective set of no cgroup outside of it, whatever that lists
(cgroup-v2.rst, "cpuset.cpus.partition").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgroupfs.settings import (
    CPUS,
    EXCLUSIVE,
    EXCLUSIVE_EFFECTIVE,
    MEMBER,
    PARTITION,
    partition_fault,
)
from cgroupfs.state import GONE
from cgroupfs.tree import descendants
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cgroupfs.tree import CgroupTree


def is_partition(word: str | None) -> bool:
    """Return whether a text of `cpuset.cpus.partition` is that of a valid partition."""
    shown = (word or MEMBER).strip()
    return shown != MEMBER and partition_fault(shown) is None


def partitions(tree: CgroupTree, cgroup: str = "") -> Iterator[tuple[str, Mask]]:
    """Yield the outermost partitions below a cgroup, with the CPUs that each has or names.

    Invalid ones are among them: the kernel may leave them CPUs. There is none that has CPUs below
    a cgroup that is neither one nor has exclusive CPUs (cgroup-v2.rst, "cpuset.cpus.exclusive").
    What is removed meanwhile is left out; raises `OSError` for anything else.
    """
    #: Neither partitions nor without exclusive CPUs: partitions may lie below them.
    open_ones = {cgroup}
    for path in descendants(tree, cgroup, open_ones.__contains__):
        try:
            files = (PARTITION, EXCLUSIVE, EXCLUSIVE_EFFECTIVE, CPUS)
            word, exclusive, *sets = tree.read_many(path, files)
        except OSError as error:
            if error.errno not in GONE:
                raise
            continue
        if word is None:
            continue
        if word.strip() != MEMBER:
            yield path, Mask.union(Mask.parse(text or "") for text in (exclusive, *sets))
        elif (exclusive or "").strip():
            open_ones.add(path)
