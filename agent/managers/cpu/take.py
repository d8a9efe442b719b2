"""Which CPUs serve a request: the choice of the static policy.

In go the host's topology, the free CPUs, the number of CPUs asked for, and the policy options. Out
comes a set of that many free CPUs. The same input always gives the same set.

The rules are those of the kubelet v1.36 (`staticPolicy.takeByTopology` and `cpu_assignment.go`).
Where the kubelet differs from its documents, the documents win. The steps are:

1. **Distribute** under `distribute-cpus-across-numa`: equal shares from the fewest NUMA nodes that
   can give them (`distribute`).
2. **Pack** where CPUs are not distributed: whole NUMA nodes and sockets, then whole caches, then
   whole cores, then single CPUs (`accumulator`).
3. **Compare** on hosts whose cores, sockets or caches differ in size: what step 2 packs there can
   be on more nodes or cores than necessary, so other choices are tried (`uneven_hosts`).
4. **Keep to few sockets** under `align-by-socket`: choose again on the fewest sockets that have
   room (`sockets`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.amounts import cpus_text
from agent.managers.cpu.accumulator import pack
from agent.managers.cpu.distribute import equal_shares
from agent.managers.cpu.sockets import on_fewer_sockets
from agent.managers.cpu.strategy import Strategy
from agent.managers.cpu.uneven_hosts import narrowest, tears_cores, torn_cpus
from agent.managers.errors import ManagerError
from agent.managers.versions import NEWEST, KubernetesVersion
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology
    from agent.managers.policy import CpuPolicyOptions
    from agent.managers.topology.hint import SearchBudget


class NotEnoughCpusError(ManagerError):
    """A request for more CPUs than are free."""

    def __init__(self, asked: int, available: int) -> None:
        self.asked = asked
        self.available = available
        super().__init__(
            f"{cpus_text(asked)} asked, {available} available",
            "ask for fewer CPUs, or wait until another pod ends",
        )


def take_by_topology(
    topology: CpuTopology,
    options: CpuPolicyOptions,
    available: Mask,
    count: int,
    work: SearchBudget | None = None,
    version: KubernetesVersion = NEWEST,
    node_count: int = 0,
) -> Mask:
    """Choose `count` of the `available` CPUs by the policy options.

    CPUs that the topology does not know are not available. With a `node_count` above 1 CPUs are
    distributed over that many nodes, if these can give equal shares; step 4 is then left out.
    `work` says afterwards whether a better choice may have been missed. Raises
    `NotEnoughCpusError`.
    """
    strategy = Strategy.of(topology, options, version)
    if node_count > 1:
        strategy = replace(strategy, node_count=node_count)
    cpus = take(topology, strategy, available, count, work)
    if not options.align_by_socket or strategy.node_count:
        return cpus
    # 4. Keep to few sockets (KEP-3327). The kubelet takes any set of as many NUMA nodes as are
    #    needed: it may split CPUs over two sockets although one socket has room for all.
    inside = on_fewer_sockets(topology, available, cpus, whole_cores=strategy.whole_cores)
    return cpus if inside is None else take(topology, strategy, inside, count, work)


def take(
    topology: CpuTopology,
    strategy: Strategy,
    available: Mask,
    count: int,
    work: SearchBudget | None = None,
) -> Mask:
    """Choose `count` of the `available` CPUs: steps 1 to 3. Raises `NotEnoughCpusError`."""
    free = available.bits & topology.all.bits
    if count > free.bit_count():
        raise NotEnoughCpusError(count, free.bit_count())
    if count <= 0:
        return EMPTY
    # 1. Distribute.
    cpus = None
    if strategy.group_size is not None and count % strategy.group_size == 0:
        cpus = _distributed(topology, strategy, strategy.group_size, free, count, work)
    # 2. and 3. Pack, and compare.
    if cpus is None:
        return Mask(_packed(topology, strategy, free, count))
    if tears_cores(topology, strategy, cpus):  # whole cores matter more than equal shares
        packed = _packed(topology, strategy, free, count)
        cpus = min(cpus, packed, key=partial(torn_cpus, topology))
    return Mask(cpus)


def _packed(topology: CpuTopology, strategy: Strategy, free: int, count: int) -> int:
    caches_alike = topology.uncores_alike or not strategy.by_cache
    if topology.cores_alike and topology.sockets_alike and caches_alike:
        return pack(topology, strategy, free, count)
    return narrowest(topology, strategy, free, count)


def _distributed(
    topology: CpuTopology,
    strategy: Strategy,
    group_size: int,
    free: int,
    count: int,
    work: SearchBudget | None,
) -> int | None:
    """Return CPUs (bits) in equal shares, None when no nodes can give these.

    Follows the kubelet's `takeByTopologyNUMADistributed`.
    """
    shares = equal_shares(topology, free, count, group_size, work, strategy.node_count)
    if shares is None:
        return None
    cpus = 0
    for share in shares:
        # The kubelet packs each extra group by itself. Where cores differ in size, a node packs
        # its whole share at once: parts could break cores that the share fills.
        parts = (share.base, *(group_size,) * share.extra_groups)
        for part in parts if topology.cores_alike else (sum(parts),):
            cpus |= _packed(topology, strategy, share.free & ~cpus, part)
    return cpus
