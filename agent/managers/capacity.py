"""How many more pods of one kind fit, where they would be, and how fragmented free CPUs are."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import NAMESPACE_OID, uuid5

from msgspec.structs import replace

from agent.managers.amounts import FreeCpus
from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.trials import decided
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Decision
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod


def copy_of(pod: Pod) -> Pod:
    """Return the same pod with a uid of its own: one more, where the pod itself is admitted."""
    return replace(pod, uid=str(uuid5(NAMESPACE_OID, pod.uid)))


def fill(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Iterator[Decision]:
    """Yield the decisions on one copy of the pod after the other, up to the first rejection.

    Pure. Each copy has a uid of its own; the pod itself may be in the ledger.
    """
    number = 0
    while True:
        number += 1
        decision = decided(rules, ledger, replace(pod, uid=f"{pod.uid}/{number}"))
        yield decision
        if not decision.admitted:
            return
        ledger = decision.ledger


def nodes_of(rules: EffectivePolicy, allocation: PodAllocation) -> Mask:
    """Return the NUMA nodes of the exclusive CPUs and of the pinned memory of a pod."""
    nodes = rules.machine.cpus.nodes_of(allocation.exclusive_cpus)
    for block in allocation.memory:
        nodes |= block.nodes
    for container in allocation.containers:
        nodes |= container.mems if container.memory else EMPTY
    return nodes


def free_cpus(rules: EffectivePolicy, ledger: Ledger) -> FreeCpus:
    """Return how many CPUs may still be allocated exclusively, and how they are spread."""
    cpus = rules.machine.cpus
    free = (rules.open_cpus - exclusive_cpus(ledger)) if rules.static_cpus else EMPTY
    whole = sum(core.cpus.bit_count() for core in cpus.cores if not core.cpus & ~free.bits)
    by_node = [(node.cpus & free.bits).bit_count() for node in cpus.nodes]
    if not free:
        return FreeCpus(0, 0, 0, 0.0)
    most = max((node.cpus & rules.open_cpus.bits).bit_count() for node in cpus.nodes)
    on_one_node = max(by_node)
    return FreeCpus(len(free), whole, on_one_node, 1 - on_one_node / min(len(free), most))
