"""Which pods would have to end before CPUs or NUMA nodes are taken out of use, tried by deciding.

The agent ends no pod: a drain is a question. The pods that use what is to be drained are taken out
of the ledger together, and then admitted again one after the other, in the order in which they were
admitted, by the decision function and with the cordon in effect.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.admission import remove
from agent.managers.rules import with_cordon
from agent.managers.specification import specification_of
from agent.managers.trials import decided
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.allocation import PodAllocation
    from agent.managers.decision import Rejection
    from agent.managers.ledger import Ledger
    from agent.managers.policy import Cordon
    from agent.managers.rules import EffectivePolicy
    from sysfs.mask import Mask


class Used(Struct, frozen=True):
    """What a pod has of what is cordoned or to be drained.

    `nodes` are nodes of its pinned memory, `devices` are ids by resource.
    """

    cpus: Mask = EMPTY
    nodes: Mask = EMPTY
    devices: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def __bool__(self) -> bool:
        """Return whether the pod has anything of it."""
        return bool(self.cpus or self.nodes or self.devices)


class DrainedPod(Struct, frozen=True):
    """One pod that would have to end.

    Where it fits elsewhere, `allocation` is what it would get there; else `rejection` says why
    not. Neither: the specification does not follow from the allocation, so nothing was tried.
    """

    uid: str
    used: Used
    allocation: PodAllocation | None = None
    rejection: Rejection | None = None


class Drain(Struct, frozen=True):
    """The pods that would have to end, in the order in which they were tried, and what is left.

    `rules` have the cordon, `ledger` the pods that stay and those that fit elsewhere.
    """

    pods: tuple[DrainedPod, ...]
    rules: EffectivePolicy
    ledger: Ledger


def used(rules: EffectivePolicy, allocation: PodAllocation, cordon: Cordon) -> Used:
    """Return what a pod has of the CPUs, of the memory and of the devices of a cordon."""
    cpus = cordon.cpus | rules.machine.cpus.cpus_in_nodes(cordon.nodes)
    nodes = EMPTY
    blocks = (block for container in allocation.containers for block in container.memory)
    for block in (*allocation.memory, *blocks):
        nodes |= block.nodes
    closed = {
        (resource, device.id)
        for resource, inventory in rules.policy.devices.items()
        for device in inventory
        if device.nodes and device.nodes <= cordon.nodes
    }
    devices: dict[str, tuple[str, ...]] = {}
    for _, resource, device in allocation.allocated_devices():
        if (resource, device) in closed:
            devices[resource] = (*devices.get(resource, ()), device)
    return Used(allocation.exclusive_cpus & cpus, nodes & cordon.nodes, MappingProxyType(devices))


def drain(rules: EffectivePolicy, ledger: Ledger, cordon: Cordon) -> Iterator[Drain]:
    """Yield the drain of a cordon after each pod that was tried; the last has all of them.

    Pure. `rules` may have a cordon already, which stays in effect.
    """
    affected = {
        uid: found
        for uid, allocation in ledger.allocations.items()
        if (found := used(rules, allocation, cordon))
    }
    beside = with_cordon(rules, rules.policy.cordon | cordon)
    left = ledger
    for uid in affected:
        left = remove(rules, left, uid)
    tried = Drain((), beside, left)
    yield tried
    for uid, found in affected.items():
        pod = specification_of(ledger.allocations[uid])
        outcome = DrainedPod(uid, found)
        after = tried.ledger
        if pod is not None:
            decision = decided(beside, after, pod)
            after = decision.ledger
            outcome = DrainedPod(uid, found, decision.allocation, decision.rejection)
        tried = Drain((*tried.pods, outcome), beside, after)
        yield tried
