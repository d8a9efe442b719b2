"""What must hold of every ledger, whatever was admitted."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from agent.ledger import Isolation
from agent.managers.rules import shared_cpus
from agent.pods.model import ContainerKind
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.ledger import Ledger, PodGrant
    from agent.managers.rules import Rules


def broken_invariants(
    rules: Rules, ledger: Ledger, *, reserved_may_have_moved: bool = False
) -> list[str]:
    """Return what does not hold; empty when all is well.

    `reserved_may_have_moved`: grants may predate the reservation in force (after a restart).
    """
    return [
        *_overlapping_pods(ledger),
        *_overlapping_containers(ledger),
        *_outside_the_machine(rules, ledger, reserved_may_have_moved=reserved_may_have_moved),
        *_unrunnable_containers(rules, ledger),
        *_overcharged_memory(rules, ledger),
        *_derived_values(ledger),
    ]


def _overlapping_pods(ledger: Ledger) -> Iterator[str]:
    seen = EMPTY
    for grant in ledger.grants.values():
        both = seen & grant.exclusive_cpus
        if both:
            yield f"CPUs {both} of pod {grant.uid} are held by another pod as well"
        seen |= grant.exclusive_cpus


def _overlapping_containers(ledger: Ledger) -> Iterator[str]:
    """Exclusive containers that run at the same time share no CPU with anybody of their pod."""
    for grant in ledger.grants.values():
        running = [c for c in grant.containers if c.kind is not ContainerKind.INIT]
        for one, other in combinations(running, 2):
            if one.cpus is None or other.cpus is None:
                continue
            exclusive = Isolation.CONTAINER in (one.isolation, other.isolation)
            if exclusive and one.cpus & other.cpus:
                yield f"containers {one.name} and {other.name} of {grant.uid} overlap"


def _outside_the_machine(
    rules: Rules, ledger: Ledger, *, reserved_may_have_moved: bool
) -> Iterator[str]:
    allowed = rules.machine.cpus.all if reserved_may_have_moved else rules.assignable_cpus
    for grant in ledger.grants.values():
        outside = grant.exclusive_cpus - allowed
        if outside:
            yield f"CPUs {outside} of pod {grant.uid} are reserved or not online"


def _unrunnable_containers(rules: Rules, ledger: Ledger) -> Iterator[str]:
    pool = shared_cpus(rules, ledger)
    for grant in ledger.grants.values():
        for container in grant.containers:
            cpus = pool if container.cpus is None else container.cpus
            if not cpus and rules.static_cpus:
                yield f"container {container.name} of {grant.uid} has no CPU to run on"


def _overcharged_memory(rules: Rules, ledger: Ledger) -> Iterator[str]:
    if not rules.static_memory:
        return
    for node, memory in ledger.memory.items():
        for kind, size in memory.reserved.items():
            capacity = rules.memory.allocatable[node].get(kind, 0)
            if not 0 <= size <= capacity:
                yield f"node {node} is charged {size} of {capacity} bytes of {kind}"


def _derived_values(ledger: Ledger) -> Iterator[str]:
    union = Mask(0)
    for grant in ledger.grants.values():
        union |= grant.exclusive_cpus
    if union != ledger.exclusive_cpus:
        yield f"the ledger says {ledger.exclusive_cpus} are exclusive, its grants say {union}"


def over_budget(grant: PodGrant) -> bool:
    """Tell whether a container got CPUs outside its pod's budget."""
    budget = grant.cpus
    return budget is not None and any(
        c.cpus is not None and c.cpus - budget for c in grant.containers
    )
