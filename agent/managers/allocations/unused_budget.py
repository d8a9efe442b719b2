"""Budget that no container of its pod can use: allocated to the pod, but always idle.

KEP-5526 admits a pod whose exclusive containers request less than its budget even if no other
container could share the rest. That is valid, but reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.sharing import is_specified
from agent.pods.model import CPU, ContainerKind
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation


class UnusedBudget(Struct, frozen=True):
    """How much of a pod's budget of one resource no long-running container can use.

    `unused` and `budget` are CPUs, or bytes of a memory type; `cpus` says which CPUs.
    """

    resource: str
    unused: int
    budget: int
    cpus: Mask = EMPTY


def unused_budget(allocation: PodAllocation) -> tuple[UnusedBudget, ...]:
    """Return the part of a pod's budget that no sidecar and no app can use, by resource.

    Standard init containers end, so a part that only they use counts as unused. Empty for a pod
    without a specification, since its containers are unknown.
    """
    if not is_specified(allocation):
        return ()
    lasting = [c for c in allocation.containers if c.kind is not ContainerKind.INIT]
    return (*_unused_cpus(allocation, lasting), *_unused_memory(allocation, lasting))


def _unused_cpus(
    allocation: PodAllocation, lasting: Sequence[ContainerAllocation]
) -> Iterator[UnusedBudget]:
    if allocation.cpus is None:
        return
    left = allocation.cpus.bits
    for container in lasting:
        if container.cpus is not None:
            left &= ~container.cpus.bits
    if left:
        yield UnusedBudget(CPU, left.bit_count(), len(allocation.cpus), Mask(left))


def _unused_memory(
    allocation: PodAllocation, lasting: Sequence[ContainerAllocation]
) -> Iterator[UnusedBudget]:
    """Yield the memory types of which the containers have less than the budget.

    Every sharing container has all memory that the exclusive containers leave, so with a sharing
    container the sum is at least the budget.
    """
    used: dict[str, int] = {}
    for container in lasting:
        for block in container.memory:
            used[block.type] = used.get(block.type, 0) + block.size
    budgets: dict[str, int] = {}
    for block in allocation.memory:
        budgets[block.type] = budgets.get(block.type, 0) + block.size
    for resource, budget in sorted(budgets.items()):
        unused = budget - used.get(resource, 0)
        if unused > 0:
            yield UnusedBudget(resource, unused, budget)
