"""The agent's own cgroups above the pods, which must not restrict the pods' cpusets.

The cgroup of all pods and those of the QoS classes have no cpuset of their own. A set that another
process wrote there confines every pod inside. While processes live below, the kernel does not clear
a set (ENOSPC, `validate_change` in kernel/cgroup/cpuset.c), so the full set is written.
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
    """The CPUs and memory nodes that the cgroup above all pods has; empty when not shown."""

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
    """Return what is desired, preceded by the agent's own cgroups above the pods (`paths`).

    These should have at least `all_of`, or no set of their own. The desired sets of pods are always
    included, since a CPU of a pod may be offline.
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
