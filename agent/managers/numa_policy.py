"""The NUMA policy that the processes of a pod start with.

A cgroup says which nodes a process may use (`cpuset.mems`). From which of these the kernel takes a
page is the process' own policy (set_mempolicy(2)), which whatever it starts or becomes inherits. No
other process can set it, so it is set where a process starts: by `numawarden run`, and by runtimes
that know the memory policy of NRI. In go an allocation and the policy, out comes a `NumaPolicy`.
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
    """Which of the nodes that a process may use it takes memory from."""

    #: One page from each after the other, huge pages too.
    INTERLEAVE = "interleave"
    #: Some, while they have free memory.
    PREFERRED = "preferred"


class NumaPolicy(Struct, frozen=True):
    """What set_mempolicy(2) is called with."""

    mode: NumaMode
    #: `PREFERRED`: the nodes of the host. `INTERLEAVE`: numbers from 0 in what the process may use
    #: (MPOL_F_RELATIVE_NODES), as many as the host has nodes: all of it, also after a change.
    nodes: Mask


def numa_policy(rules: HostPolicy, pod: PodAllocation) -> NumaPolicy | None:
    """Return the NUMA policy of a pod's processes, None for the kernel's own.

    1. What the pod's annotation asks for.
    2. That of its pool. A container that may not use the nodes of the pool has the kernel's own.
    """
    if NUMA_POLICY in pod.annotations:
        nodes = range(len(rules.machine.node_mask))
        return NumaPolicy(NumaMode.INTERLEAVE, Mask.from_ids(nodes))
    pool = pool_of(rules.policy, pod)
    if pool is None or pool.memory is not PoolMemory.PREFERRED:
        return None
    nearest = memory_nodes(rules, pool)
    return NumaPolicy(NumaMode.PREFERRED, nearest) if nearest else None
