"""The memory manager's static policy: pinned memory for containers and pods.

Sources: KEP-1769, KEP-5526 ("Memory Manager").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from agent.managers.decision import (
    ALLOCATION_ERRORS,
    ALLOCATIONS,
    CONTAINER_ASSIGNMENTS,
    MEMORY_PINNING_ERRORS,
    MEMORY_PINNING_REQUESTS,
    Reason,
    Rejection,
)
from agent.managers.errors import ManagerError, MemoryAssignmentError, UnknownMemoryTypeError
from agent.managers.manager import Rejected
from agent.managers.memory.assignment import assign, reusable_after, shrink_reused
from agent.managers.memory.hints import memory_hints
from agent.managers.memory.pod_level import divide_memory, empty_memory_pool
from agent.managers.memory.state import release
from agent.managers.rejection import FreeRoom, empty_memory_pool_rejection
from agent.pods.model import MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocations.demand import ContainerDemand
    from agent.managers.allocations.draft import Draft
    from agent.managers.allocations.ledger import MemoryBlock, NodeMemory, PodAllocation
    from agent.managers.effective_policy import EffectivePolicy
    from agent.managers.topology.hints import Hint
    from agent.managers.topology.implicit_hints import ProviderHints

_NODE: Final = "node"
_POD: Final = "pod"


@final
class MemoryManager:
    """Hint provider for `memory` and `hugepages-*`; policy `None` allocates no memory."""

    name = MEMORY

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        """Return the sets of nodes on which the container's memory is free."""
        if not _gives_memory(draft):
            return {}
        return _hints(draft, container.memory, container.name)

    def pod_hints(self, draft: Draft) -> ProviderHints:
        """Return the sets of nodes on which the pod's memory is free; none if a pool is empty."""
        if not _gives_memory(draft):
            return {}
        if draft.demand.pod_level and empty_memory_pool(draft.demand) is not None:
            return dict.fromkeys(draft.demand.memory, ())
        return _hints(draft, draft.demand.memory, None)

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        """Pin the container's memory to the hint's nodes, or to those that memory allows."""
        if not _gives_memory(draft):
            return
        draft.count(MEMORY_PINNING_REQUESTS.name)
        try:
            blocks = _assign(draft, container.memory, hint, container.name)
        except Rejected:
            _count_error(draft, _NODE)
            raise
        _reuse_init_memory(draft, container, blocks)
        if blocks:
            draft.memory[container.name] = blocks
            draft.count(ALLOCATIONS.name, MEMORY, _NODE, by=len(blocks))
            draft.count(CONTAINER_ASSIGNMENTS.name, MEMORY, "node_exclusive")

    def allocate_pod(self, draft: Draft, hint: Hint) -> None:
        """Charge the pod's budget and divide it (KEP-5526, partitioning algorithm)."""
        if not _gives_memory(draft):
            return
        draft.count(MEMORY_PINNING_REQUESTS.name)
        try:
            _require_shared_pool(draft)
            draft.pod_memory = _assign(draft, draft.demand.memory, hint, None)
        except Rejected:
            _count_error(draft, _POD)
            raise
        if draft.pod_memory:
            _divide(draft)


def release_memory(
    rules: EffectivePolicy, charged: Mapping[int, NodeMemory], allocation: PodAllocation
) -> Mapping[int, NodeMemory]:
    """Return the charge by node without the memory of a pod."""
    if allocation.memory:
        return release(rules.memory, charged, allocation.memory)
    for container in allocation.containers:
        if container.memory:
            charged = release(rules.memory, charged, container.memory)
    return charged


def _gives_memory(draft: Draft) -> bool:
    demand = draft.demand
    return draft.rules.static_memory and demand.guaranteed and not demand.unmanaged


def _hints(draft: Draft, requests: Mapping[str, int], container: str | None) -> ProviderHints:
    """Return hints; a container without exclusive memory has no preference.

    The kubelet rejects such a container of a pod with pod-level resources, against KEP-5526 and
    its own documentation: there it runs in the node's shared pool.
    """
    facts = draft.rules.memory
    try:
        return memory_hints(facts, draft.node_memory, requests, draft.reusable_memory, draft.work())
    except ManagerError as error:
        raise Rejected(_rejection(draft, error, requests, container)) from error


def _assign(
    draft: Draft, requests: Mapping[str, int], hint: Hint, container: str | None
) -> tuple[MemoryBlock, ...]:
    facts, reusable = draft.rules.memory, draft.reusable_memory
    try:
        blocks, draft.node_memory = assign(
            facts, draft.node_memory, requests, hint, reusable, draft.work()
        )
    except ManagerError as error:
        raise Rejected(_rejection(draft, error, requests, container)) from error
    return blocks


def _reuse_init_memory(
    draft: Draft, container: ContainerDemand, blocks: tuple[MemoryBlock, ...]
) -> None:
    """Record the memory of ended init containers that the container reuses."""
    if not (draft.reusable_memory or container.is_standard_init):
        return
    earlier: dict[str, tuple[MemoryBlock, ...]] = {}
    for init in draft.demand.init_containers():
        if init.name == container.name:
            break
        if init.is_standard_init and init.name in draft.memory:
            earlier[init.name] = draft.memory[init.name]
    draft.memory.update(shrink_reused(earlier, blocks))
    draft.reusable_memory = reusable_after(
        draft.reusable_memory, blocks, standard_init=container.is_standard_init
    )


def _require_shared_pool(draft: Draft) -> None:
    """Reject a pod whose exclusive containers leave no memory to its shared ones (KEP-5526)."""
    rejection = empty_memory_pool_rejection(draft, Reason.EMPTY_POD_SHARED_POOL)
    if rejection is not None:
        raise Rejected(rejection)


def _divide(draft: Draft) -> None:
    nodes = draft.pod_memory[0].nodes
    for name, part in divide_memory(nodes, draft.demand).items():
        draft.memory[name] = part.blocks
        if part.exclusive:
            draft.count(ALLOCATIONS.name, MEMORY, _POD)
            draft.count(CONTAINER_ASSIGNMENTS.name, MEMORY, "pod_exclusive")
        else:
            draft.count(CONTAINER_ASSIGNMENTS.name, MEMORY, "pod_shared")
    draft.count(MEMORY_PINNING_REQUESTS.name, by=_partition_requests(draft))


def _partition_requests(draft: Draft) -> int:
    """Count what the kubelet counts as requests: every init container, and exclusive apps."""
    inits = sum(1 for _ in draft.demand.init_containers())
    return inits + sum(1 for app in draft.demand.apps() if app.memory)


def _rejection(
    draft: Draft, error: ManagerError, requests: Mapping[str, int], container: str | None
) -> Rejection:
    resource = _lacking(error)
    return Rejection(
        Reason.UNEXPECTED,
        error.message,
        remedy=error.remedy,
        resource=resource,
        container=container,
        asked=requests.get(resource),
        free=FreeRoom.of(draft).by_node(resource),
    )


def _lacking(error: ManagerError) -> str:
    """Return the memory type of a rejection, the scarcest if there are several."""
    match error:
        case UnknownMemoryTypeError():
            return error.memory_type
        case MemoryAssignmentError():
            return error.demand.scarcest
    return MEMORY


def _count_error(draft: Draft, source: str) -> None:
    draft.count(MEMORY_PINNING_ERRORS.name)
    draft.count(ALLOCATION_ERRORS.name, MEMORY, source)
