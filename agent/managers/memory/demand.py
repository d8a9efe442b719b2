"""What the memory manager is asked for, and has in the draft of an admission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import field

from agent.managers.allocations.allocation import PodPart
from agent.managers.allocations.demand import NOT_GUARANTEED, ResourceDemand
from agent.managers.policy import MemoryManagerPolicy
from agent.pods.model import MEMORY
from agent.pods.quantity import MAX_INT64
from agent.pods.requests import memory_requests, pod_memory_requests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.managers.allocations.demand import PodRequest
    from agent.managers.allocations.ledger import NodeMemory
    from agent.managers.effective_policy import Draft


class MemoryDraft(PodPart):
    """The charge of memory with what the pod under admission has so far.

    `containers` are blocks by name, `pod` the blocks of the budget. `reusable` are bytes by nodes
    (bits) and memory type of standard init containers of this pod, which a later container of the
    pod may get.
    """

    charge: Mapping[int, NodeMemory] = field(default_factory=dict)
    reusable: dict[tuple[int, str], int] = field(default_factory=dict)


def memory_of(draft: Draft) -> MemoryDraft:
    """Return the memory manager's part of a draft."""
    part: MemoryDraft = draft.parts[MEMORY]
    return part


def memory_demand(request: PodRequest) -> ResourceDemand:
    """Return the bytes by memory type that a pod and its containers request.

    A budget of zero bytes counts as absent, a request does not. In pod scope, the containers of a
    pod-level budget without memory get no memory of their own (KEP-5526).
    """
    managed = request.policy.pod_level_managers
    amounts = tuple(
        [
            memory_requests(request.pod, each, pod_level_managers=managed)
            for each in request.containers
        ]
    )
    of_pod = {
        name: min(size, MAX_INT64)
        for name, size in pod_memory_requests(request.pod, pod_level_managers=managed).items()
        if size > 0 or not request.pod_level
    }
    none = _why_none(request)
    undivided = request.from_budget and not of_pod
    return ResourceDemand(
        of_pod,
        amounts,
        active=none is None,
        exclusive=tuple([none is None and not undivided and bool(each) for each in amounts]),
        why=tuple(
            [
                none or _why(request, each, guaranteed=guaranteed, undivided=undivided)
                for each, guaranteed in zip(amounts, request.guaranteed, strict=True)
            ]
        ),
    )


def _why_none(request: PodRequest) -> str | None:
    """Return why no container of the pod may have pinned memory, None when some may."""
    kind = request.policy.memory.policy
    if kind is not MemoryManagerPolicy.STATIC:
        return f"memoryManagerPolicy is {kind}; pinned memory needs Static"
    return request.why_none()


def _why(
    request: PodRequest, amounts: Mapping[str, int], *, guaranteed: bool, undivided: bool
) -> str:
    if request.pod_level and not guaranteed:
        return NOT_GUARANTEED
    if undivided:
        return "the pod's budget has no memory; pod scope divides no other"
    if amounts:
        return f"Guaranteed with {', '.join(sorted(amounts))}"
    return "it requests no memory"
