"""Completing a grant that was imported from the kubelet by the pod's specification.

The kubelet's state files know a pod's uid, its containers' names, CPUs and memory. Such a grant has
an empty `spec_digest`: it is a fact, but nobody has said yet what was asked for. The first
specification of that uid that asks for just what is held confirms it. Nothing is decided anew:
names, kinds, isolation levels and limits are filled in, CPUs and memory stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.managers.demand import demand_of
from agent.managers.grants import Held, make_grant
from agent.managers.policy import (
    CpuManagerPolicy,
    MemoryManagerPolicy,
    TopologyManagerPolicy,
    TopologyManagerScope,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.ledger import MemoryBlock, PodGrant
    from agent.managers.demand import ContainerDemand, PodDemand
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
