"""What of a ledger the host can enforce now: CPUs that are online, memory nodes that exist.

The kernel runs a cgroup whose CPUs are all offline on its parent's CPUs, which other pods use too.
So a container that lost all of its CPUs runs on what is left of its pod's budget, or in the node's
shared pool, until the CPUs are online again. The allocations themselves do not change.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.allocations.allocation import Isolation
from agent.managers.allocations.ledger import Taken
from agent.managers.allocations.shared_map import differences
from agent.pods.model import CPU
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.managers.allocations.allocation import (
        ContainerAllocation,
        MemoryBlock,
        PodAllocation,
    )
    from agent.managers.allocations.ledger import Ledger
    from sysfs.host import Host
    from sysfs.mask import Mask


def usable(ledger: Ledger, host: Host, known: Ledger | None = None) -> Ledger:
    """Return a ledger as the host can enforce it; the same object when nothing is missing.

    `known` is a ledger that this host can enforce in full: its allocations are not checked again.
    """
    # The kernel rejects a cpuset.mems that names a node without memory.
    nodes = host.nodes_with_memory
    allocations = ledger.allocations
    new = allocations if known is None else differences(known.allocations, allocations)
    fitting = {uid: _pod(allocations[uid], host, nodes) for uid in new if uid in allocations}
    reduced = {
        uid: allocation for uid, allocation in fitting.items() if allocation is not allocations[uid]
    }
    if not reduced:
        return ledger
    left = MappingProxyType({**allocations, **reduced})
    exclusive = EMPTY
    for allocation in left.values():
        exclusive |= allocation.exclusive_cpus
    return replace(ledger, allocations=left).with_part(CPU, Taken(exclusive))


def _pod(allocation: PodAllocation, host: Host, nodes: Mask) -> PodAllocation:
    if allocation.exclusive_cpus <= host.online and _all_there(allocation, nodes):
        return allocation
    budget = allocation.cpus if allocation.cpus is None else _running(allocation.cpus, host)
    containers = tuple(_container(one, budget, host, nodes) for one in allocation.containers)
    return replace(
        allocation, cpus=budget, memory=_present(allocation.memory, nodes), containers=containers
    )


def _container(
    allocation: ContainerAllocation, budget: Mask | None, host: Host, nodes: Mask
) -> ContainerAllocation:
    memory = _present(allocation.memory, nodes)
    if allocation.cpus is None:
        return replace(allocation, memory=memory)
    own = _running(allocation.cpus, host)
    if own is not None:
        return replace(allocation, memory=memory, cpus=own)
    isolation = Isolation.HOST if budget is None else Isolation.POD
    return replace(
        allocation, memory=memory, cpus=budget, isolation=isolation, quota_disabled=False
    )


def _running(cpus: Mask, host: Host) -> Mask | None:
    """Return the CPUs that exist, None when none of them runs."""
    return cpus & (host.online | host.offline) if cpus & host.online else None


def _all_there(allocation: PodAllocation, nodes: Mask) -> bool:
    blocks = (*allocation.memory, *(block for one in allocation.containers for block in one.memory))
    return all(block.nodes <= nodes for block in blocks)


def _present(blocks: Iterable[MemoryBlock], nodes: Mask) -> tuple[MemoryBlock, ...]:
    left = (replace(block, nodes=block.nodes & nodes) for block in blocks)
    return tuple(block for block in left if block.nodes)
