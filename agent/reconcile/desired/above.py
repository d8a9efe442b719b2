"""The cgroups above the pods that are the agent's own: they pass on all that there is.

The cgroup of all pods and those of the QoS classes hold no set of their own. One that somebody
wrote there confines every pod inside, whatever these have. While processes live below, the kernel
lets nobody clear a set (ENOSPC, `validate_change` in kernel/cgroup/cpuset.c), so a full one is
written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.reconcile.desired.settings import DesiredCgroup, Role
from cgroupfs.plan import Setting
from cgroupfs.state import CPUS_EFFECTIVE, MEMS_EFFECTIVE
from cgroupfs.tree import parent
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cgroupfs.tree import CgroupTree


class HostSets(Struct, frozen=True):
    """The CPUs and memory nodes that the cgroup above all pods has; empty when it does not tell."""

    cpus: Mask = EMPTY
    mems: Mask = EMPTY


def whole(tree: CgroupTree, pods: str) -> HostSets:
    """Read what the cgroup above that of all pods has; raises `OSError` as the tree does."""
    try:
        texts = tree.read_many(parent(pods), (CPUS_EFFECTIVE, MEMS_EFFECTIVE))
    except FileNotFoundError:
        return HostSets()
    return HostSets(*(Mask.parse(text or "") for text in texts))


def with_ancestors(
    desired: Sequence[DesiredCgroup], paths: Iterable[str], all_of: HostSets
) -> tuple[DesiredCgroup, ...]:
    """Return what is desired with the agent's own cgroups above pods (`paths`), these first.

    They are to have `all_of` it at least, or no set of their own. What a pod is to have they have
    in any case: it may be offline.
    """
    cpus, mems = all_of.cpus, all_of.mems
    for item in desired:
        cpus |= item.setting.cpus or EMPTY
        mems |= item.setting.mems or EMPTY
    known = {item.setting.cgroup: item for item in desired}
    above: dict[str, DesiredCgroup] = {}
    for path in paths:
        item = known.get(path) or DesiredCgroup(Setting(path), Role.ALL_PODS, "")
        sets = replace(item.setting, cpus=cpus or None, mems=mems or None, or_unset=True)
        above[path] = replace(item, setting=sets)
    return (*above.values(), *(item for item in desired if item.setting.cgroup not in above))
