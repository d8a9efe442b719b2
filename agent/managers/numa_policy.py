"""The NUMA policy that the processes of a pod start with.

A cgroup says which nodes a process may use (`cpuset.mems`). From which of these the kernel takes a
page is said by the process itself (set_mempolicy(2)); what it starts inherits that, also over
execve(2). No other process can set it, so it is set at the start: by `numawarden run`, and by
runtimes that know the memory policy of NRI. In go the host's policy and an allocation, out comes a
`NumaPolicy`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.policy import PoolMemory
from agent.managers.pools import memory_nodes, pool_of
from agent.pods.model import NUMA_POLICY
from sysfs.mask import Mask

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation
    from agent.managers.host import HostPolicy


class NumaMode(StrEnum):
    """How a process takes memory from the nodes that it may use."""

    #: Page by page from each node in turn, huge pages too (MPOL_INTERLEAVE).
    INTERLEAVE = "interleave"
    #: From the given nodes while they have free memory, else from others (MPOL_PREFERRED_MANY).
    PREFERRED = "preferred"


class NumaPolicy(Struct, frozen=True):
    """What a process is started with."""

    mode: NumaMode
    #: `PREFERRED`: ids of nodes (MPOL_F_STATIC_NODES). `INTERLEAVE`: 0 to n - 1 on a host of n
    #: nodes. The kernel maps these numbers onto the nodes that the process may use, so that all of
    #: them count, also after they change (MPOL_F_RELATIVE_NODES).
    nodes: Mask


def numa_policy(rules: HostPolicy, pod: PodAllocation) -> NumaPolicy | None:
    """Return the NUMA policy of a pod's processes, None for the kernel's own.

    1. What the pod's annotation asks for, which has one value.
    2. That of its pool, if the pool has nodes with memory. Pinned memory stays where it is pinned:
       the kernel rejects a preference for nodes that the process may not use.
    """
    if NUMA_POLICY in pod.annotations:
        relative = range(len(rules.machine.node_mask))
        return NumaPolicy(NumaMode.INTERLEAVE, Mask.from_ids(relative))
    pool = pool_of(rules.policy, pod)
    pinned = any(container.memory for container in pod.containers)
    if pool is None or pool.memory is not PoolMemory.PREFERRED or pinned:
        return None
    nearest = memory_nodes(rules, pool)
    return NumaPolicy(NumaMode.PREFERRED, nearest) if nearest else None
