"""Which pods would have to end before CPUs or NUMA nodes are taken out of use, tried by deciding.

The agent ends no pod: a drain is a question. The pods that use what is to be drained are taken out
of the ledger together, and then admitted again one after the other, in the order in which they were
admitted, by the decision function and with the cordon in effect.
"""

from __future__ import annotations

from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.admission import remove
from agent.managers.allocation import Origin
from agent.managers.rules import with_cordon
from agent.managers.trials import decided
from agent.pods.changes import quantity_of
from agent.pods.model import CPU, MEMORY, Container, ContainerKind, Pod, Resources, spec_digest
from sysfs.mask import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.allocation import CpuLimits, PodAllocation
    from agent.managers.decision import Rejection
    from agent.managers.ledger import Ledger
    from agent.managers.policy import Cordon
    from agent.managers.rules import EffectivePolicy
    from agent.pods.quantity import Quantity
    from sysfs.mask import Mask


#: Which limits of a pod may follow from those of its containers (`with_pod_level_limits`).
_DEFAULTED: Final = ((), (CPU,), (MEMORY,), (CPU, MEMORY))


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
        pod = specification_of(rules, ledger.allocations[uid])
        outcome = DrainedPod(uid, found)
        after = tried.ledger
        if pod is not None:
            decision = decided(beside, after, pod)
            after = decision.ledger
            outcome = DrainedPod(uid, found, decision.allocation, decision.rejection)
        tried = Drain((*tried.pods, outcome), beside, after)
        yield tried


def specification_of(rules: EffectivePolicy, allocation: PodAllocation) -> Pod | None:
    """Return the specification that an allocation was decided on, None if it does not follow.

    It is put together from what the allocation has of it, and compared by its digest: requests
    that are lower than limits, and resources that no manager allocates, are not stored. Annotations
    are no part of the digest. Pod-level limits may have been defaulted, and not be stated.
    """
    if allocation.origin is not Origin.DECIDED:
        return None
    whole = _resources(allocation.cpu, allocation.limits)
    of_pod = (_without_limits(whole, *names) for names in _DEFAULTED)
    for resources, status in product((None, *of_pod), (None, allocation.qos)):
        pod = Pod(
            uid=allocation.uid,
            name=allocation.name,
            namespace=allocation.namespace,
            containers=_containers(allocation, init=False),
            init_containers=_containers(allocation, init=True),
            resources=resources,
            status_qos=status,
        )
        pod = replace(pod, overhead=_overhead(rules, allocation, pod))
        if spec_digest(pod) == allocation.spec_digest:
            return pod
    return None


def _without_limits(resources: Resources, *names: str) -> Resources:
    limits = {name: size for name, size in resources.limits.items() if name not in names}
    return replace(resources, limits=MappingProxyType(limits))


def _containers(allocation: PodAllocation, *, init: bool) -> tuple[Container, ...]:
    return tuple(
        Container(
            each.name,
            each.kind,
            _resources(
                each.cpu, each.limits, {name: len(ids) for name, ids in each.devices.items()}
            ),
        )
        for each in allocation.containers
        if (each.kind is not ContainerKind.APP) is init
    )


def _resources(
    cpu: CpuLimits, sizes: Mapping[str, int], devices: Mapping[str, int] = MappingProxyType({})
) -> Resources:
    """Return resources whose requests are the limits, but for that of `cpu`."""
    whole = {name: quantity_of(name, amount) for name, amount in {**sizes, **devices}.items()}
    requests, limits = dict(whole), dict(whole)
    if cpu.request_millis is not None:
        requests[CPU] = quantity_of(CPU, cpu.request_millis)
    if cpu.limit_millis is not None:
        limits[CPU] = quantity_of(CPU, cpu.limit_millis)
    return Resources(MappingProxyType(requests), MappingProxyType(limits))


def _overhead(
    rules: EffectivePolicy, allocation: PodAllocation, pod: Pod
) -> Mapping[str, Quantity]:
    """Return what the pod requests beyond its containers."""
    own = rules.demand(pod).requests
    beyond = {name: size - own.get(name, 0) for name, size in allocation.requests.items()}
    return MappingProxyType(
        {name: quantity_of(name, amount) for name, amount in beyond.items() if amount > 0}
    )
