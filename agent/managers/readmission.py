"""Allocations whose specification is not known: restored, and matched with the one that fits.

The kubelet's state files know a pod's uid, its containers' names, CPUs and memory. An allocation
imported from them has an empty `spec_digest`. The first specification of that uid that asks for
exactly what is allocated matches: names, kinds, isolation levels and limits are filled in, CPUs and
memory stay, and nothing is decided again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.allocations.allocation import Held, make_grant
from agent.managers.allocations.demand import demand_of
from agent.managers.memory.state import charge_grant
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.managers.allocations.demand import ContainerDemand, PodDemand
    from agent.managers.allocations.ledger import Ledger, MemoryBlock, NodeMemory, PodGrant
    from agent.managers.effective_policy import Rules
    from agent.managers.policy import Policy
    from agent.pods.model import Pod


class NotConfirmedError(Exception):
    """A pod asks for something else than what is held in its name; `differences` say what."""

    def __init__(self, differences: tuple[str, ...]) -> None:
        super().__init__("; ".join(differences))
        self.differences = differences


def confirm(policy: Policy, held: PodGrant, pod: Pod) -> PodGrant:
    """Return an imported grant completed by a specification that asks for what it holds.

    Raises `NotConfirmedError` when the specification asks for anything else.
    """
    demand = demand_of(policy, pod)
    differences = tuple(_differences(policy, held, demand))
    if differences:
        raise NotConfirmedError(differences)
    return make_grant(policy, demand, _held(held))


def _held(grant: PodGrant) -> Held:
    return Held(
        cpus={c.name: c.cpus for c in grant.containers if c.cpus is not None},
        memory={c.name: c.memory for c in grant.containers},
        devices={c.name: c.devices for c in grant.containers},
        hints={c.name: c.hint for c in grant.containers},
        pod_cpus=grant.cpus,
        pod_memory=grant.memory,
    )


def _differences(policy: Policy, held: PodGrant, demand: PodDemand) -> Iterator[str]:
    names = {container.name for container in demand.containers}
    for grant in held.containers:
        if grant.name not in names:
            yield f"it has no container {grant.name}, which holds resources"
    if policy.cpu.policy is CpuManagerPolicy.STATIC:
        yield from _cpu_differences(policy, held, demand)
    if policy.memory.policy is MemoryManagerPolicy.STATIC:
        yield from _memory_differences(held, demand)


def _cpu_differences(policy: Policy, held: PodGrant, demand: PodDemand) -> Iterator[str]:
    if held.cpus is not None:
        asked = demand.cpus if demand.pod_level else 0
        if len(held.cpus) != asked:
            yield f"it has a pod-level budget of {asked} exclusive CPUs, it holds {held.cpus}"
    for container in demand.containers:
        grant = held.container(container.name)
        if held.cpus is not None and not container.cpus:
            continue  # it shares the pod's CPUs, as many as are left
        asked = container.cpus if gets_cpus(policy, demand) else 0
        cpus = grant.cpus if grant is not None else None
        if (0 if cpus is None else len(cpus)) != asked:
            found = "none" if cpus is None else cpus
            yield f"container {container.name} asks for {asked} exclusive CPUs, it holds {found}"


def gets_cpus(policy: Policy, demand: PodDemand) -> bool:
    """Tell whether exclusive CPUs are given to this pod's containers at all."""
    if demand.unmanaged or not demand.guaranteed:
        return False
    of_pod = (
        demand.pod_level
        and policy.topology.scope is TopologyManagerScope.POD
        and policy.topology.policy is not TopologyManagerPolicy.NONE
    )
    return demand.cpus > 0 or not of_pod


def _memory_differences(held: PodGrant, demand: PodDemand) -> Iterator[str]:
    if held.memory:
        asked = demand.memory if demand.pod_level else {}
        if _sizes(held.memory) != _positive(asked):
            yield f"it has a pod-level budget of {_shown(asked)}, it holds {_blocks(held.memory)}"
    for container in demand.containers:
        grant = held.container(container.name)
        blocks = grant.memory if grant is not None else ()
        if held.memory and not container.memory:
            continue  # it shares the pod's memory, as much as is left
        asked = container.memory if demand.guaranteed and not demand.unmanaged else {}
        if not _is_asked(container, blocks, asked):
            yield (
                f"container {container.name} asks for {_shown(asked)} to be pinned,"
                f" it holds {_blocks(blocks)}"
            )


def _is_asked(
    container: ContainerDemand, blocks: Iterable[MemoryBlock], asked: Mapping[str, int]
) -> bool:
    """Compare sizes; later containers may have taken over what a standard init container had."""
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


def restored(rules: Rules, ledger: Ledger) -> Ledger:
    """Return a saved ledger as the rules in force see it; every grant is kept as it is.

    The charge by node is kept where it is of the same nodes and memory types, for its division
    over groups of nodes is history. Otherwise (another memory policy, another machine) it is made
    anew from the grants: in full, also where a node has less than is held there, so that nobody
    is given memory of another's. Nodes that the machine no longer has are left out.
    """
    fresh = rules.empty_ledger().memory
    if _same_shape(fresh, ledger.memory):
        return ledger
    charged: Mapping[int, NodeMemory] = fresh
    for grant in ledger.grants.values():
        charged = charge_grant(rules.memory, charged, grant) if fresh else charged
    return ledger if charged == ledger.memory else replace(ledger, memory=charged)


def _same_shape(fresh: Mapping[int, NodeMemory], saved: Mapping[int, NodeMemory]) -> bool:
    return fresh.keys() == saved.keys() and all(
        saved[node].reserved.keys() <= fresh[node].reserved.keys() for node in fresh
    )
