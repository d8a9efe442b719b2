"""Allocations recovered from the cgroups of running pods.

A pod cgroup with processes in it, whose CPUs no other cgroup shows, is evidence that these CPUs
were allocated to its pod; so are memory nodes written into it. The pod gets an allocation of both
without a name: no task is moved or stopped, and no other pod gets them. The first specification of
its uid that asks for as much completes it (`agent.managers.recovery.readmission`); removing the pod
frees it. CPUs that are shared, reserved or not online are not evidence of an allocation: such pods
run on unchanged and are admitted again. The amount of memory is known if `memory.max` is set.
Cgroups do not show devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.allocations.allocation import (
    ContainerAllocation,
    Isolation,
    MemoryBlock,
    PodAllocation,
)
from agent.managers.allocations.origin import Origin
from agent.managers.memory.state import charged_blocks
from agent.pods.model import MEMORY, ContainerKind, QosClass
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.managers.effective_policy import EffectivePolicy


class ObservedContainer(Struct, frozen=True):
    """One cgroup as the kernel shows it: its directory's name, CPUs and memory nodes.

    Empty sets are unset. `in_effect` is False when `cpuset.cpus.effective` differs from the CPUs.
    `memory` is the limit in bytes, 0 without a limit: the request of a Guaranteed container.
    """

    name: str
    cpus: Mask
    mems: Mask
    in_effect: bool = True
    memory: int = 0


class ObservedPod(Struct, frozen=True):
    """A pod cgroup that has processes, with its container cgroups."""

    uid: str
    qos: QosClass
    own: ObservedContainer
    containers: tuple[ObservedContainer, ...]


def describe_recovered(allocation: PodAllocation) -> str:
    """Return what was recovered and what is unknown: `CPUs 1,9, memory on nodes 0`."""
    blocks = [block for _, block in charged_blocks(allocation)]
    parts = [f"CPUs {allocation.exclusive_cpus}"] if allocation.exclusive_cpus else []
    if blocks:
        nodes = EMPTY
        for block in blocks:
            nodes |= block.nodes
        parts.append(f"memory on nodes {nodes}")
    if any(not block.size for block in blocks):
        parts.append("how much of it is not known and not counted")
    return ", ".join(parts)


def shown_allocation(
    rules: EffectivePolicy,
    pod: ObservedPod,
    others: Sequence[ObservedContainer],
    pool: Mask = EMPTY,
) -> PodAllocation | None:
    """Return the allocation without a name that a pod's cgroups show, None when they show none.

    `others` are the cgroups of all other pods. `pool` is the node's shared pool as known from a
    checkpoint: a cgroup with exactly these CPUs has no exclusive CPUs.
    """
    if pod.qos is not QosClass.GUARANTEED:
        return None  # other classes have no exclusive resources
    containers = tuple(
        _container(
            rules, seen, pod, exclusive=seen.cpus != pool and _is_exclusive(rules, seen, others)
        )
        for seen in pod.containers
    )
    whole = pod.own.cpus != pool and _is_exclusive(rules, pod.own, others)
    if not whole and not any(one.cpus is not None or one.memory for one in containers):
        return None
    return PodAllocation(
        uid=pod.uid,
        name="",
        namespace="",
        qos=pod.qos,
        spec_digest="",
        containers=containers,
        cpus=pod.own.cpus if whole else None,
        memory=_pinned(rules, pod.own) if pod.own.memory else (),
        origin=Origin.RECOVERED,
    )


def contradictions(
    rules: EffectivePolicy, pod: ObservedPod, others: Sequence[ObservedContainer]
) -> Iterator[str]:
    """Yield the cgroups that look like an allocation and contradict another pod's cgroups."""
    for seen in pod.containers if pod.qos is QosClass.GUARANTEED and rules.static_cpus else ():
        if not seen.cpus or not seen.cpus <= rules.assignable_cpus:
            continue
        overlapping = [o for o in others if seen.cpus & o.cpus]
        if not seen.in_effect:
            yield f"pod {pod.uid}: {seen.name} shows CPUs {seen.cpus}, which are not effective"
        elif overlapping and not any(seen.cpus <= other.cpus for other in overlapping):
            yield (
                f"pod {pod.uid}: {seen.name} shows CPUs {seen.cpus}, some of them as another pod"
            )


def _is_exclusive(
    rules: EffectivePolicy, seen: ObservedContainer, others: Iterable[ObservedContainer]
) -> bool:
    """Return whether a set of CPUs can only be an exclusive allocation.

    The node's shared pool contains the reserved CPUs, or is shown by several pods, or (with
    `strict-cpu-reservation` and a single pod in it) is indistinguishable from an allocation: then
    it counts as exclusive, which keeps other pods away until the pod is admitted or removed.
    """
    if not rules.static_cpus:
        return False
    possible = bool(seen.cpus) and seen.in_effect and seen.cpus <= rules.assignable_cpus
    return possible and not any(seen.cpus & other.cpus for other in others)


def _pinned(rules: EffectivePolicy, seen: ObservedContainer) -> tuple[MemoryBlock, ...]:
    """Return a block on the nodes that the cgroup shows, of size 0 if the cgroup has no limit."""
    nodes = seen.mems & rules.memory.mask
    return (MemoryBlock(MEMORY, seen.memory, nodes),) if rules.static_memory and nodes else ()


def _container(
    rules: EffectivePolicy, seen: ObservedContainer, pod: ObservedPod, *, exclusive: bool
) -> ContainerAllocation:
    shared = any(seen.cpus & other.cpus for other in pod.containers if other is not seen)
    isolation = Isolation.POD if shared else Isolation.CONTAINER
    return ContainerAllocation(
        name=seen.name,
        kind=ContainerKind.APP,
        isolation=isolation if exclusive else Isolation.HOST,
        cpus=seen.cpus if exclusive else None,
        memory=_pinned(rules, seen),
    )
