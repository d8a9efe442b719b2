"""What of a ledger the host can honour now: CPUs that run, memory nodes that are there.

The kernel lets a cgroup whose CPUs are all offline run on its parent's, which are everybody's. So a
container that lost all of its CPUs runs on what is left of its pod's budget, or in the node's
shared pool, until they are back. The grants themselves stay as they are.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.allocations.ledger import Isolation
from agent.managers.allocations.shared_map import differences

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.managers.allocations.ledger import ContainerGrant, Ledger, MemoryBlock, PodGrant
    from sysfs.host import Host
    from sysfs.mask import Mask


def usable(ledger: Ledger, host: Host, known: Ledger | None = None) -> Ledger:
    """Return a ledger as the host can honour it; the same one when it can honour all of it.

    `known` is one that this host can honour in full: the same grants are not looked at again.
    """
    # The kernel refuses a cpuset.mems that names a node without memory.
    nodes = host.nodes_with_memory
    grants = ledger.grants
    new = grants if known is None else differences(known.grants, grants)
    fitting = {uid: _pod(grants[uid], host, nodes) for uid in new if uid in grants}
    reduced = {uid: grant for uid, grant in fitting.items() if grant is not grants[uid]}
    if not reduced:
        return ledger
    exclusive = ledger.exclusive_cpus & host.online
    return replace(ledger, grants=MappingProxyType({**grants, **reduced}), exclusive_cpus=exclusive)


def _pod(grant: PodGrant, host: Host, nodes: Mask) -> PodGrant:
    if grant.exclusive_cpus <= host.online and _all_there(grant, nodes):
        return grant
    budget = grant.cpus if grant.cpus is None else _running(grant.cpus, host)
    containers = tuple(_container(one, budget, host, nodes) for one in grant.containers)
    return replace(grant, cpus=budget, memory=_present(grant.memory, nodes), containers=containers)


def _container(
    grant: ContainerGrant, budget: Mask | None, host: Host, nodes: Mask
) -> ContainerGrant:
    memory = _present(grant.memory, nodes)
    if grant.cpus is None:
        return replace(grant, memory=memory)
    own = _running(grant.cpus, host)
    if own is not None:
        return replace(grant, memory=memory, cpus=own)
    isolation = Isolation.HOST if budget is None else Isolation.POD
    return replace(grant, memory=memory, cpus=budget, isolation=isolation, quota_disabled=False)


def _running(cpus: Mask, host: Host) -> Mask | None:
    """Return the CPUs that exist, None when none of them runs."""
    return cpus & (host.online | host.offline) if cpus & host.online else None


def _all_there(grant: PodGrant, nodes: Mask) -> bool:
    blocks = (*grant.memory, *(block for one in grant.containers for block in one.memory))
    return all(block.nodes <= nodes for block in blocks)


def _present(blocks: Iterable[MemoryBlock], nodes: Mask) -> tuple[MemoryBlock, ...]:
    left = (replace(block, nodes=block.nodes & nodes) for block in blocks)
    return tuple(block for block in left if block.nodes)
