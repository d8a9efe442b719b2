"""The memory of a pod with pod-level resources: exclusive slices and the shared rest (KEP-5526).

The budget is one set of blocks on one set of nodes; its parts are quantities, not pages. Standard
init containers may use what apps get later, sidecars keep what they got.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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


class EmptyMemoryPool(NamedTuple):
    """The memory type of which some container would have none, and why."""

    resource: str
    message: str


def empty_memory_pool(demand: PodDemand) -> EmptyMemoryPool | None:
    """Find the memory type of which some container would have none.

    KEP-5526, "Rejected Configurations": the exclusive requests of containers that run as long as
    the pod use up the budget while another container has to share it, or sidecars leave too
    little to a standard init container. `memory` is checked before huge pages.
    """
    budget, left = demand.memory, _by_type(demand.memory)
    shares = False
    for container in demand.containers:
        if not container.is_standard_init:
            left = _less(left, container.memory)
            shares |= not container.memory
            continue
        for resource, size in left.items():
            asked = container.memory.get(resource, 0)
            if asked > size:
                return EmptyMemoryPool(
                    resource,
                    f"init container {container.name} asks for {asked} bytes of {resource},"
                    f" the pod's budget of {budget[resource]} leaves {size} beside its sidecars",
                )
            if not container.memory and size <= 0:
                return EmptyMemoryPool(
                    resource,
                    f"sidecars take all {budget[resource]} bytes of {resource} of the pod's budget,"
                    f" none is left for the shared init container {container.name}",
                )
    for resource, size in left.items():
        if shares and size <= 0:
            return EmptyMemoryPool(
                resource,
                f"exclusive containers take all {budget[resource]} bytes of {resource} of the pod's"
                " budget, none is left for its shared containers",
            )
    return None


def divide_memory(nodes: Mask, demand: PodDemand) -> dict[str, MemoryPart]:
    """Divide a pod's memory, all of it on `nodes`, between its containers.

    By name in the order of admission. The demand must have passed `empty_memory_pool`; requests
    beyond the budget leave a shared part of nothing.
    """
    parts: dict[str, MemoryPart] = {}
    left = _by_type(demand.memory)
    # a. Init containers run one after the other, so each may have all that the sidecars before it
    #    have not; a sidecar keeps its memory as long as the pod runs.
    for container in demand.init_containers:
        if container.memory:
            parts[container.name] = MemoryPart(_blocks(nodes, container.memory), exclusive=True)
            if container.kind is ContainerKind.SIDECAR:
                left = _less(left, container.memory)
        elif container.is_standard_init:
            parts[container.name] = MemoryPart(_blocks(nodes, left), exclusive=False)
    # b. Apps run at the same time, each with memory of its own.
    for container in demand.apps:
        if container.memory:
            parts[container.name] = MemoryPart(_blocks(nodes, container.memory), exclusive=True)
            left = _less(left, container.memory)
    # c. What is left is of all other apps and sidecars.
    shared = MemoryPart(_blocks(nodes, left), exclusive=False)
    return {container.name: parts.get(container.name, shared) for container in demand.containers}


def _by_type(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return the amounts with `memory` first: it sorts behind its huge pages."""
    return dict(sorted(amounts.items(), reverse=True))


def _less(left: Mapping[str, int], taken: Mapping[str, int]) -> dict[str, int]:
    return {name: size - taken.get(name, 0) for name, size in left.items()}


def _blocks(nodes: Mask, amounts: Mapping[str, int]) -> tuple[MemoryBlock, ...]:
    return tuple(
        MemoryBlock(name, size, nodes) for name, size in sorted(amounts.items()) if size > 0
    )
