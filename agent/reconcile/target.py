"""What the kernel should enforce: a ledger, as far as the host has what it allocates.

In go a ledger and the host. `usable` returns the ledger as the host can enforce it, `lacking` says
which pods lack what they were allocated; both are in what the enforcer is given (`Desired`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocation import Isolation
from agent.managers.bindings import NO_BINDINGS
from agent.managers.ledger import Taken, differences
from agent.managers.violations import ADMIT_AGAIN
from agent.pods.model import CPU
from sysfs.host import union_of
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.managers.allocation import ContainerAllocation, MemoryBlock, PodAllocation
    from agent.managers.bindings import Bindings
    from agent.managers.ledger import Ledger
    from agent.managers.pools import PodPool
    from sysfs.host import Host, WithheldCpus
    from sysfs.mask import Mask


class Desired(Struct, frozen=True):
    """What the kernel should enforce."""

    #: The allocations, as far as the host can enforce them (`usable`).
    ledger: Ledger
    #: The CPUs of the node's shared pool.
    shared_pool: Mask
    #: Which cgroups were bound to containers.
    bindings: Bindings = NO_BINDINGS
    #: What the node has (`agent.managers.host.machine_capacity`), by which the cgroup of all pods
    #: is limited; empty: it is not limited.
    capacity: Mapping[str, int] = MappingProxyType({})
    #: What pods lack of their allocations since it is withheld, a sentence by uid.
    lacking: Mapping[str, str] = MappingProxyType({})
    #: What pods in a pool may use of the node's shared pool, by uid.
    pools: Mapping[str, PodPool] = MappingProxyType({})


def usable(ledger: Ledger, host: Host, known: Ledger | None = None) -> Ledger:
    """Return a ledger as the host can enforce it; the same object when nothing is missing.

    `known` is a ledger that this host can enforce in full: its allocations are not checked again.

    The kernel runs a cgroup none of whose CPUs it may use on its parent's CPUs, which other pods
    use too. So a container that lost all of its CPUs, offline or withheld, runs on what is left of
    its pod's budget, or in the node's shared pool, until the CPUs are back. The allocations
    themselves do not change. Offline CPUs stay in a set that has others, so that they come back by
    themselves; withheld ones do not: another cgroup's partition is made only of CPUs that no set
    beside it lists.
    """
    # The kernel rejects a cpuset.mems that names a node without memory.
    nodes = host.nodes_with_memory
    allocations = ledger.allocations
    unchecked = allocations if known is None else differences(known.allocations, allocations)
    fitting = {uid: _pod(allocations[uid], host, nodes) for uid in unchecked if uid in allocations}
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


def lacking(ledger: Ledger, withheld: Iterable[WithheldCpus]) -> Mapping[str, str]:
    """Return a sentence with its remedy, by uid, for each pod that has withheld CPUs."""
    sentences: dict[str, str] = {}
    causes = tuple(withheld)
    for uid, allocation in ledger.allocations.items() if causes else ():
        cpus = allocation.exclusive_cpus
        lost = [replace(cause, cpus=cause.cpus & cpus) for cause in causes if cause.cpus & cpus]
        if lost:
            left = cpus - union_of(lost)
            rest = f"has only {left} of its {cpus}" if left else "runs in the node's shared pool"
            sentences[uid] = (
                f"{' and '.join(map(str, lost))}, so the pod {rest}; "
                f"{', '.join(cause.remedy for cause in lost)}, or {ADMIT_AGAIN}"
            )
    return MappingProxyType(sentences)


def _pod(allocation: PodAllocation, host: Host, nodes: Mask) -> PodAllocation:
    if allocation.exclusive_cpus <= host.usable and _all_there(allocation, nodes):
        return allocation
    budget = allocation.cpus if allocation.cpus is None else _running(allocation.cpus, host)
    containers = tuple(_container(one, budget, host, nodes) for one in allocation.containers)
    return replace(
        allocation,
        cpus=budget,
        memory=_present(allocation.memory, nodes),
        containers=containers,
        idle=allocation.idle - host.withheld_cpus,
    )


def _container(
    allocation: ContainerAllocation, budget: Mask | None, host: Host, nodes: Mask
) -> ContainerAllocation:
    memory = _present(allocation.memory, nodes)
    allocation = replace(allocation, memory_nodes=allocation.memory_nodes & nodes)
    if allocation.cpus is None:
        return replace(allocation, memory=memory)
    cpus = _running(allocation.cpus, host)
    if cpus is not None:
        return replace(allocation, memory=memory, cpus=cpus)
    isolation = Isolation.HOST if budget is None else Isolation.POD
    return replace(
        allocation, memory=memory, cpus=budget, isolation=isolation, quota_disabled=False
    )


def _running(cpus: Mask, host: Host) -> Mask | None:
    """Return the CPUs that pods can have, offline ones included; None when none of them runs."""
    return cpus & (host.usable | host.offline) if cpus & host.usable else None


def _all_there(allocation: PodAllocation, nodes: Mask) -> bool:
    blocks = (*allocation.memory, *(block for one in allocation.containers for block in one.memory))
    allowed = (one.memory_nodes for one in allocation.containers)
    return all(each <= nodes for each in (*allowed, *(block.nodes for block in blocks)))


def _present(blocks: Iterable[MemoryBlock], nodes: Mask) -> tuple[MemoryBlock, ...]:
    left = (replace(block, nodes=block.nodes & nodes) for block in blocks)
    return tuple(block for block in left if block.nodes)
