"""The memory of a pod with pod-level resources: exclusive slices and the shared rest (KEP-5526).

The budget is one set of blocks on one set of nodes; its parts are quantities, not pages. Standard
init containers may use what apps get later, sidecars keep what they got.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocation import MemoryBlock
from agent.pods.model import ContainerKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.demand import PodDemand
    from sysfs.mask import Mask


class MemoryPart(Struct, frozen=True):
    """The part of the budget for one container; `exclusive` if no other container shares it.

    The blocks of every sharing container have the size of all shared memory.
    """

    blocks: tuple[MemoryBlock, ...]
    exclusive: bool


class EmptyMemoryPool(Struct, frozen=True):
    """Some container would have no memory; sizes are in bytes."""

    resource: str
    budget: int
    left: int
    container: str | None
    message: str


def empty_memory_pool(demand: PodDemand) -> EmptyMemoryPool | None:
    """Find the memory type of which some container would have none.

    KEP-5526, "Rejected Configurations": the exclusive requests of containers that run as long as
    the pod use up the budget while another container has to share it, or sidecars leave too
    little to a standard init container. `memory` is checked before huge pages.
    """
    left = _by_type(demand.memory)
    shares = False
    for container in demand.containers:
        if container.kind is ContainerKind.INIT:
            problem = _init_problem(demand.memory, left, container.name, container.memory)
            if problem is not None:
                return problem
        elif container.memory:
            left = _less(left, container.memory)
        else:
            shares = True
    if not shares:
        return None
    return next(
        (_nothing_shared(name, demand.memory[name]) for name, size in left.items() if size <= 0),
        None,
    )


def divide_memory(nodes: Mask, demand: PodDemand) -> dict[str, MemoryPart]:
    """Divide a pod's memory, all of it on `nodes`, between its containers.

    By name in the order of admission. The demand must have passed `empty_memory_pool`; requests
    beyond the budget leave a shared part of nothing.
    """
    parts: dict[str, MemoryPart] = {}
    left = _by_type(demand.memory)
    for container in demand.init_containers():
        if container.memory:
            parts[container.name] = MemoryPart(_blocks(nodes, container.memory), exclusive=True)
            if container.kind is ContainerKind.SIDECAR:
                left = _less(left, container.memory)
        elif container.is_standard_init:
            parts[container.name] = MemoryPart(_blocks(nodes, left), exclusive=False)
    for container in demand.apps():
        if container.memory:
            parts[container.name] = MemoryPart(_blocks(nodes, container.memory), exclusive=True)
            left = _less(left, container.memory)
    shared = MemoryPart(_blocks(nodes, left), exclusive=False)
    return {container.name: parts.get(container.name, shared) for container in demand.containers}


def _init_problem(
    budget: Mapping[str, int], left: Mapping[str, int], name: str, asked: Mapping[str, int]
) -> EmptyMemoryPool | None:
    for resource, size in left.items():
        if asked and asked.get(resource, 0) > size:
            message = (
                f"init container {name} asks for {asked[resource]} bytes of {resource},"
                f" the pod's budget of {budget[resource]} leaves {size} beside its sidecars"
            )
            return EmptyMemoryPool(resource, budget[resource], size, name, message)
        if not asked and size <= 0:
            message = (
                f"sidecars take all {budget[resource]} bytes of {resource} of the pod's budget,"
                f" none is left for the shared init container {name}"
            )
            return EmptyMemoryPool(resource, budget[resource], size, name, message)
    return None


def _nothing_shared(resource: str, budget: int) -> EmptyMemoryPool:
    message = (
        f"exclusive containers take all {budget} bytes of {resource} of the pod's budget,"
        " none is left for its shared containers"
    )
    return EmptyMemoryPool(resource, budget, 0, None, message)


def _by_type(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return the amounts with `memory` first: it sorts behind its huge pages."""
    return dict(sorted(amounts.items(), reverse=True))


def _less(left: Mapping[str, int], taken: Mapping[str, int]) -> dict[str, int]:
    return {name: size - taken.get(name, 0) for name, size in left.items()}


def _blocks(nodes: Mask, amounts: Mapping[str, int]) -> tuple[MemoryBlock, ...]:
    return tuple(
        MemoryBlock(name, size, nodes) for name, size in sorted(amounts.items()) if size > 0
    )
