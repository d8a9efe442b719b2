"""What must hold of every ledger, whatever was admitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Final

from agent.managers.allocation import Isolation
from agent.managers.cpu.manager import exclusive_cpus, shared_cpus
from agent.managers.device.manager import allocated_devices
from agent.managers.ledger import Ledger, total_requests
from agent.managers.memory.state import memory_charge
from agent.pods.model import ContainerKind
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.ledgers import ledger_with

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from agent.managers.memory.state import NodeMemory
    from agent.managers.rules import EffectivePolicy


@dataclass(frozen=True, slots=True)
class Before:
    """What was there when the agent was last started: facts, whatever the rules are now.

    `uids` are the pods that had allocations, `memory` the charge by node.
    """

    uids: Collection[str] = ()
    memory: Mapping[int, NodeMemory] = field(default_factory=dict)


NOTHING: Final = Before()


def broken_invariants(
    rules: EffectivePolicy, ledger: Ledger, before: Before = NOTHING
) -> list[str]:
    """Return what does not hold; empty when all is well."""
    return [
        *_overlapping_pods(ledger),
        *_overlapping_containers(ledger),
        *_outside_their_budget(ledger),
        *_outside_the_machine(rules, ledger, before),
        *_unrunnable_containers(rules, ledger),
        *_overcharged_memory(rules, ledger, before),
        *_devices_of_two_pods(rules, ledger, before),
        *_derived_values(ledger),
    ]


def _overlapping_pods(ledger: Ledger) -> Iterator[str]:
    seen = EMPTY
    for allocation in ledger.allocations.values():
        both = seen & allocation.exclusive_cpus
        if both:
            yield f"CPUs {both} of pod {allocation.uid} are of another pod as well"
        seen |= allocation.exclusive_cpus


def _overlapping_containers(ledger: Ledger) -> Iterator[str]:
    """Exclusive containers that run at the same time share no CPU with others of the pod."""
    for allocation in ledger.allocations.values():
        running = [c for c in allocation.containers if c.kind is not ContainerKind.INIT]
        for one, other in combinations(running, 2):
            if one.cpus is None or other.cpus is None:
                continue
            exclusive = Isolation.CONTAINER in (one.isolation, other.isolation)
            if exclusive and one.cpus & other.cpus:
                yield f"containers {one.name} and {other.name} of {allocation.uid} overlap"


def _outside_the_machine(rules: EffectivePolicy, ledger: Ledger, before: Before) -> Iterator[str]:
    for allocation in ledger.allocations.values():
        outside = allocation.exclusive_cpus - rules.assignable_cpus
        if outside and allocation.uid not in before.uids:
            yield f"CPUs {outside} of pod {allocation.uid} are reserved or not online"


def _unrunnable_containers(rules: EffectivePolicy, ledger: Ledger) -> Iterator[str]:
    pool = shared_cpus(rules, ledger)
    for allocation in ledger.allocations.values():
        for container in allocation.containers:
            if not (pool if container.cpus is None else container.cpus):
                yield f"container {container.name} of {allocation.uid} has no CPU to run on"


def _overcharged_memory(rules: EffectivePolicy, ledger: Ledger, before: Before) -> Iterator[str]:
    for node, memory in memory_charge(ledger).items():
        for kind, size in memory.reserved.items():
            charged = before.memory[node].reserved.get(kind, 0) if node in before.memory else 0
            capacity = max(rules.memory.allocatable.get(node, {}).get(kind, 0), charged)
            if not 0 <= size <= capacity:
                yield f"node {node} is charged {size} of {capacity} bytes of {kind}"


def _devices_of_two_pods(rules: EffectivePolicy, ledger: Ledger, before: Before) -> Iterator[str]:
    """Containers of one pod may use a device one after the other, two pods never."""
    seen: set[tuple[str, str]] = set()
    for allocation in ledger.allocations.values():
        own = {
            (resource, device)
            for container in allocation.containers
            for resource, devices in container.devices.items()
            for device in devices
        }
        if own & seen:
            yield f"devices {own & seen} of pod {allocation.uid} are of another pod as well"
        seen |= own
        if allocation.uid not in before.uids and own - _healthy(rules):
            yield f"pod {allocation.uid} got devices {own - _healthy(rules)} that are not healthy"
    if seen != {
        (name, device) for name, devices in allocated_devices(ledger).items() for device in devices
    }:
        said = allocated_devices(ledger)
        yield f"the ledger says {said} are allocated, its allocations say {seen}"


def _healthy(rules: EffectivePolicy) -> set[tuple[str, str]]:
    return {
        (resource, device.id)
        for resource, devices in rules.policy.devices.items()
        for device in devices
        if device.healthy
    }


def _derived_values(ledger: Ledger) -> Iterator[str]:
    union = Mask(0)
    for allocation in ledger.allocations.values():
        union |= allocation.exclusive_cpus
    if union != exclusive_cpus(ledger):
        yield f"the ledger says {exclusive_cpus(ledger)} are exclusive, its allocations say {union}"
    again = ledger_with(*ledger.allocations.values(), memory=memory_charge(ledger)).parts
    if again != ledger.parts:
        yield f"the ledger keeps {ledger.parts}, its allocations say {again}"
    requested = total_requests(ledger.allocations.values())
    if requested != ledger.requests:
        yield f"the ledger says {ledger.requests} are requested, its allocations say {requested}"


def _outside_their_budget(ledger: Ledger) -> Iterator[str]:
    for allocation in ledger.allocations.values():
        for container in allocation.containers:
            if allocation.cpus is not None and container.cpus is not None:
                outside = container.cpus - allocation.cpus
                if outside:
                    yield f"CPUs {outside} of {container.name} are not in {allocation.uid}'s budget"
