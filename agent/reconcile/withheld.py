"""Which online CPUs the cgroup of all pods cannot have, and which cgroup withholds them.

The kernel lets a cgroup have what the cgroups above it have, less the CPUs of cpuset partitions
elsewhere. It reads a set of which nothing is left as that of the parent, so pods that are given
such CPUs run on the CPUs of other pods. So these CPUs are as offline ones: part of what is read of
the host (`sysfs.host.Host.withheld`), and in no decision.

What the agent itself does withholds nothing: CPUs of partitions inside the cgroup of all pods are
pods', and its own set there is the whole of the cgroup above, unless a kubelet makes that cgroup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cgroupfs.partitions import is_partition, partitions
from cgroupfs.settings import PARTITION
from cgroupfs.state import CPUS_EFFECTIVE
from cgroupfs.tree import ancestors, is_within
from sysfs.host import WithheldCpus, union_of
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cgroupfs.tree import CgroupTree


def read_withheld(
    tree: CgroupTree, all_pods: str, online: Mask, *, beside_kubelet: bool = False
) -> tuple[WithheldCpus, ...]:
    """Return what the cgroup of all pods (`all_pods`) cannot have of the `online` CPUs.

    Where a cgroup does not exist (yet) or has no cpuset controller, those above it count. Nothing
    is withheld where the tree shows no set at all, or none of these CPUs: it is not this host's.
    With `beside_kubelet` the set of `all_pods` counts, which is then not the agent's. Raises
    `OSError` where the tree cannot be read, not for a cgroup that is removed meanwhile.
    """
    found: tuple[WithheldCpus, ...] = ()
    chain = (*ancestors(all_pods), all_pods)
    for path in chain:
        has, apart = _shown(tree, path)
        if has is None or (path == all_pods and not (apart or beside_kubelet)):
            continue
        known = () if apart else found
        lacking, others = online - has - union_of(known), {}
        if lacking:
            # Partitions first: what one gives back meanwhile is then in the set that is read again.
            others = dict(partitions(tree, path))
            inside = Mask.union(
                others.pop(at) for at in tuple(others) if is_within(at, (all_pods,))
            )
            has = (_shown(tree, path)[0] or has) | inside
            lacking -= has
        elsewhere = ((at, cpus) for at, cpus in others.items() if at not in chain)
        found = (*known, *_withholding(path, has & online, lacking, elsewhere))
    return found if online - union_of(found) else ()


def owners_of(tree: CgroupTree, cpus: Mask, cgroup: str) -> tuple[WithheldCpus, ...]:
    """Return which partitions have some of these CPUs, those around and in a cgroup left out."""
    around = (*ancestors(cgroup)[1:], cgroup)
    return tuple(
        WithheldCpus(theirs & cpus, f"/{at}")
        for at, theirs in partitions(tree)
        if theirs & cpus and not (at in around or is_within(at, (cgroup,)))
    )


def _shown(tree: CgroupTree, path: str) -> tuple[Mask | None, bool]:
    """Return the CPUs that a cgroup has, None without a set, and whether it is a partition."""
    try:
        text, word = tree.read_many(path, (CPUS_EFFECTIVE, PARTITION))
    except FileNotFoundError:
        return None, False
    return None if text is None else Mask.parse(text), bool(path) and is_partition(word)


def _withholding(
    path: str, has: Mask, lacking: Mask, others: Iterable[tuple[str, Mask]]
) -> Iterator[WithheldCpus]:
    """Yield what has the CPUs that a cgroup lacks: partitions below it, else its own set."""
    for at, theirs in others:
        if taken := theirs & lacking:
            yield WithheldCpus(taken, f"/{at}")
            lacking -= taken
    if lacking:
        yield WithheldCpus(lacking, f"/{path}", has)
