"""Imported allocations: restored, and matched with the specification that fits.

The kubelet's state files know a pod's uid, its containers' names, CPUs and memory. An allocation
imported from them has an empty `spec_digest`. The first specification of that uid that requests
exactly the allocated CPUs and memory matches: names, kinds, isolation levels and limits are filled
in, CPUs and memory stay, and nothing is decided again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.allocations.allocation import PodResources, make_allocation
from agent.managers.allocations.demand import demand_of
from agent.managers.memory.state import charge_allocation
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.allocations.demand import ContainerDemand, PodDemand
    from agent.managers.allocations.ledger import Ledger, MemoryBlock, NodeMemory, PodAllocation
    from agent.managers.effective_policy import EffectivePolicy
    from agent.managers.policy import Policy
    from agent.pods.model import Pod


class NotMatchedError(Exception):
    """A specification does not fit the allocation of its uid; `differences` say where."""

    def __init__(self, differences: tuple[str, ...]) -> None:
        super().__init__("; ".join(differences))
        self.differences = differences


def match_imported(policy: Policy, imported: PodAllocation, pod: Pod) -> PodAllocation:
    """Return an imported allocation completed by a specification that requests the same.

    Raises `NotMatchedError` when the specification requests anything else.
    """
    demand = demand_of(policy, pod)
    differences = tuple(_differences(policy, imported, demand))
    if differences:
        raise NotMatchedError(differences)
    return make_allocation(policy, demand, _resources(imported))


def _resources(allocation: PodAllocation) -> PodResources:
    return PodResources(
        cpus={c.name: c.cpus for c in allocation.containers if c.cpus is not None},
        memory={c.name: c.memory for c in allocation.containers},
        devices={c.name: c.devices for c in allocation.containers},
        hints={c.name: c.hint for c in allocation.containers},
        pod_cpus=allocation.cpus,
        pod_memory=allocation.memory,
    )


def _differences(policy: Policy, imported: PodAllocation, demand: PodDemand) -> Iterator[str]:
    names = {container.name for container in demand.containers}
    for allocation in imported.containers:
        if allocation.name not in names:
            yield f"it has no container {allocation.name}, which has an allocation"
    if policy.cpu.policy is CpuManagerPolicy.STATIC:
        yield from _cpu_differences(policy, imported, demand)
    if policy.memory.policy is MemoryManagerPolicy.STATIC:
        yield from _memory_differences(imported, demand)


def _cpu_differences(policy: Policy, imported: PodAllocation, demand: PodDemand) -> Iterator[str]:
    if imported.cpus is not None:
        asked = demand.cpus if demand.pod_level else 0
        if len(imported.cpus) != asked:
            yield (
                f"it has a pod-level budget of {asked} exclusive CPUs,"
                f" allocated are {imported.cpus}"
            )
    for container in demand.containers:
        allocation = imported.container(container.name)
        if imported.cpus is not None and not container.cpus:
            continue  # the container runs in the pod shared pool
        asked = container.cpus if gets_cpus(policy, demand) else 0
        cpus = allocation.cpus if allocation is not None else None
        if (0 if cpus is None else len(cpus)) != asked:
            found = "none" if cpus is None else cpus
            yield (
                f"container {container.name} asks for {asked} exclusive CPUs, allocated are {found}"
            )


def gets_cpus(policy: Policy, demand: PodDemand) -> bool:
    """Return whether containers of this pod may get exclusive CPUs."""
    if demand.unmanaged or not demand.guaranteed:
        return False
    of_pod = (
        demand.pod_level
        and policy.topology.scope is TopologyManagerScope.POD
        and policy.topology.policy is not TopologyManagerPolicy.NONE
    )
    return demand.cpus > 0 or not of_pod


def _memory_differences(imported: PodAllocation, demand: PodDemand) -> Iterator[str]:
    if imported.memory:
        asked = demand.memory if demand.pod_level else {}
        if _sizes(imported.memory) != _positive(asked):
            yield (
                f"it has a pod-level budget of {_shown(asked)},"
                f" allocated is {_blocks(imported.memory)}"
            )
    for container in demand.containers:
        allocation = imported.container(container.name)
        blocks = allocation.memory if allocation is not None else ()
        if imported.memory and not container.memory:
            continue  # the container shares the pod's memory
        asked = container.memory if demand.guaranteed and not demand.unmanaged else {}
        if not _is_asked(container, blocks, asked):
            yield (
                f"container {container.name} asks for {_shown(asked)} to be pinned,"
                f" allocated is {_blocks(blocks)}"
            )


def _is_asked(
    container: ContainerDemand, blocks: Iterable[MemoryBlock], asked: Mapping[str, int]
) -> bool:
    """Compare sizes; later containers may have reused memory of a standard init container."""
    sizes = _sizes(blocks)
    if container.is_standard_init:
        return all(size <= asked.get(name, 0) for name, size in sizes.items())
    return sizes == _positive(asked)


def _sizes(blocks: Iterable[MemoryBlock]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for block in blocks:
        sizes[block.type] = sizes.get(block.type, 0) + block.size
    return _positive(sizes)


def _positive(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size}


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{size} bytes of {name}" for name, size in sizes.items()) or "nothing"


def _blocks(blocks: Iterable[MemoryBlock]) -> str:
    return _shown(_sizes(blocks))


def restored(rules: EffectivePolicy, ledger: Ledger) -> Ledger:
    """Return a saved ledger under the current policy; every allocation is kept as it is.

    The memory charge by node is kept if nodes and memory types are the same, since its division
    over NUMA groups depends on the order of earlier releases. Otherwise (another memory policy,
    another machine) the charge is computed again from the allocations: in full, even where a node
    has less than is allocated, so that no memory is allocated twice. Nodes that the machine no
    longer has are left out.
    """
    fresh = rules.empty_ledger().memory
    if _same_shape(fresh, ledger.memory):
        return ledger
    charged: Mapping[int, NodeMemory] = fresh
    for allocation in ledger.allocations.values():
        charged = charge_allocation(rules.memory, charged, allocation) if fresh else charged
    return ledger if charged == ledger.memory else replace(ledger, memory=charged)


def _same_shape(fresh: Mapping[int, NodeMemory], saved: Mapping[int, NodeMemory]) -> bool:
    return fresh.keys() == saved.keys() and all(
        saved[node].reserved.keys() <= fresh[node].reserved.keys() for node in fresh
    )
