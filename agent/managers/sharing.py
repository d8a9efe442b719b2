"""Which containers share the CPUs of a container, and what of a budget no container can use.

The isolation level (`Isolation`, KEP-5526, ResourceIsolationLevel) names the pool that a
container's CPUs come from, not whether other containers run on them. A standard init container with
exclusive CPUs takes them from the budget less the exclusive sidecars so far, and a sidecar without
exclusive CPUs runs in the final pod shared pool from its start (KEP-5526, in contradiction to its
glossary, by which an exclusive slice isolates). So these two may run on the same CPUs.

KEP-5526 admits a pod whose exclusive containers request less than its budget even if no other
container could share the rest. The rest is allocated to the pod but always idle, which is valid,
but reported (`unused_budget`).
"""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from agent.managers.allocation import Isolation, Origin
from agent.pods.model import CPU, ContainerKind
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.managers.allocation import ContainerAllocation, PodAllocation


#: The most containers with the same CPUs that are named.
NAMED: Final = 8


class Sharing(StrEnum):
    """Which containers share the CPUs on which a container may run.

    `NODE`: the node's shared pool. `POD`: the pod's shared pool. `BUDGET`: a standard init
    container on the pod's budget less its exclusive sidecars so far. `OWN`: no other container of
    the pod may use any of the CPUs while this container runs. `OVERLAPPING`: allocated exclusively,
    but other containers may use some of the CPUs at the same time. `UNKNOWN`: the allocation has no
    specification yet.
    """

    NODE = "node"
    POD = "pod"
    BUDGET = "budget"
    OWN = "own"
    OVERLAPPING = "overlapping"
    UNKNOWN = "unknown"


class Share(Struct, frozen=True):
    """How one container shares its CPUs.

    `cpus` are the CPUs that other containers may use at the same time, `others` the first `NAMED`
    of these containers; both are empty unless `sharing` is `OVERLAPPING`.
    """

    sharing: Sharing
    cpus: Mask = EMPTY
    others: tuple[str, ...] = ()


def is_specified(allocation: PodAllocation) -> bool:
    """Return whether the kinds of the containers are known from a specification.

    An imported or recovered pod has no specification until it is admitted; a pod imported together
    with its manifest has reasons (`why`).
    """
    return allocation.origin is Origin.DECIDED or any(
        container.why for container in allocation.containers
    )


def shares(allocation: PodAllocation) -> tuple[Share, ...]:
    """Return how each container of a pod shares its CPUs, in the order of the containers.

    The containers of a specified pod are in the order in which they start.
    """
    judge = _specified if is_specified(allocation) else _unspecified
    return tuple(judge(allocation))


def run_together(containers: Sequence[ContainerAllocation], one: int, other: int) -> bool:
    """Return whether two containers, by their positions in the order of start, may run together.

    A standard init container ends before the next container starts; all others run on.
    """
    return one != other and containers[min(one, other)].kind is not ContainerKind.INIT


def _specified(allocation: PodAllocation) -> Iterator[Share]:
    for place, met in enumerate(_met(allocation.containers)):
        container = allocation.containers[place]
        if container.isolation is Isolation.CONTAINER and met:
            others = tuple(islice(_others(allocation.containers, place), NAMED))
            yield Share(Sharing.OVERLAPPING, Mask(met), others)
        else:
            yield Share(_pool(container) or Sharing.OWN)


def _unspecified(allocation: PodAllocation) -> Iterator[Share]:
    """Yield what is certain about containers whose kind and order are unknown.

    Without a budget, a container that has no CPUs runs in the node's shared pool, so CPUs that only
    one container has are its own.
    """
    twice = _twice(allocation.containers)
    for container in allocation.containers:
        alone = allocation.cpus is None and not _bits(container) & twice
        own = Sharing.OWN if alone else Sharing.UNKNOWN
        yield Share(_pool(container) or own)


def _pool(container: ContainerAllocation) -> Sharing | None:
    """Return the pool that a container shares, None when its CPUs are exclusive."""
    if container.cpus is None:
        return Sharing.NODE
    if container.isolation is Isolation.CONTAINER:
        return None
    return Sharing.BUDGET if container.kind is ContainerKind.INIT else Sharing.POD


def _met(containers: Sequence[ContainerAllocation]) -> list[int]:
    """Return, by container, the CPUs that another container may use at the same time, as bits."""
    twice = _twice(c for c in containers if c.kind is not ContainerKind.INIT)
    met: list[int] = []
    sidecars = 0
    for container in containers:
        cpus = _bits(container)
        met.append(cpus & (sidecars if container.kind is ContainerKind.INIT else twice))
        if container.kind is ContainerKind.SIDECAR:
            sidecars |= cpus
    to_come = 0
    for place in reversed(range(len(containers))):
        cpus = _bits(containers[place])
        if containers[place].kind is ContainerKind.INIT:
            to_come |= cpus
        elif containers[place].kind is ContainerKind.SIDECAR:
            met[place] |= cpus & to_come
    return met


def _others(containers: Sequence[ContainerAllocation], place: int) -> Iterator[str]:
    cpus = _bits(containers[place])
    for other, container in enumerate(containers):
        if cpus & _bits(container) and run_together(containers, place, other):
            yield container.name


def _twice(containers: Iterable[ContainerAllocation]) -> int:
    """Return the CPUs that at least two of the containers may use, as bits."""
    used = twice = 0
    for container in containers:
        twice |= used & _bits(container)
        used |= _bits(container)
    return twice


def _bits(container: ContainerAllocation) -> int:
    return 0 if container.cpus is None else container.cpus.bits


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
