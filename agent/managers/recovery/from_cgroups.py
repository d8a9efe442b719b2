"""Allocations recovered from the cgroups of running pods, and matched with a specification.

A pod cgroup with processes in it, whose CPUs no other cgroup shows, is evidence that these CPUs
were allocated to its pod; so are memory nodes written into it. The pod gets an allocation of both
without a name: no task is moved or stopped, and no other pod gets them. The first specification of
its uid that asks for as much completes the allocation; removing the pod frees it. CPUs that are
shared, reserved or not online are not evidence of an allocation: such pods run on unchanged and are
admitted again. The amount of memory is known if `memory.max` is set. Cgroups do not show devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.managers.allocations.allocation import PodResources, make_allocation
from agent.managers.allocations.demand import demand_of
from agent.managers.allocations.ledger import (
    ContainerAllocation,
    Isolation,
    MemoryBlock,
    PodAllocation,
)
from agent.managers.errors import cpus_text
from agent.managers.memory.pod_level import divide_memory
from agent.managers.memory.state import charged_blocks
from agent.managers.readmission import NotMatchedError, gets_cpus
from agent.pods.model import MEMORY, ContainerKind, QosClass
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocations.demand import ContainerDemand, PodDemand
    from agent.managers.effective_policy import EffectivePolicy
    from agent.pods.model import Pod

#: The namespace shown for a pod of which only the cgroup is known; other pods may have it too.
RECOVERED_NAMESPACE: Final = "recovered"
_SEPARATORS: Final = "-_.@"
_SUFFIXES: Final = (".scope", ".service")


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


def is_recovered(allocation: PodAllocation) -> bool:
    """Return whether an allocation was recovered from cgroups and not yet matched."""
    return allocation.recovered


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
        name=pod.uid,
        namespace=RECOVERED_NAMESPACE,
        qos=pod.qos,
        spec_digest="",
        containers=containers,
        cpus=pod.own.cpus if whole else None,
        memory=_pinned(rules, pod.own) if pod.own.memory else (),
        recovered=True,
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


# --- matching a recovered allocation with a specification -------------------------------------


def match_recovered(
    rules: EffectivePolicy, recovered: PodAllocation, pod: Pod
) -> PodAllocation | None:
    """Return a recovered allocation completed by a specification that requests the same.

    None when the specification requests nothing exclusive: the cgroups did not show an allocation,
    and the pod has to be admitted like any other. Raises `NotMatchedError` when the specification
    requests anything else.
    """
    demand = demand_of(rules.policy, pod)
    given = rules.static_cpus and gets_cpus(rules.policy, demand)
    wanting = [c for c in demand.containers if c.cpus] if given else []
    of_pod = demand.pod_level and rules.policy.topology.is_pod_scope
    budget = of_pod and rules.static_cpus and demand.cpus > 0
    if not wanting and not budget:
        recovered = _without_cpus(recovered)
        has_memory = any(one.memory for one in recovered.containers)
        if not has_memory or not _asks_for_memory(rules, demand):
            return None
    _require_shown(recovered, demand, budget=budget)
    found = _matched(recovered, wanting, of_budget=budget)
    cpus = _cpus(recovered, demand, wanting, found, budget=budget)
    if of_pod:
        memory, of_budget = _divided(rules, recovered, demand)
    else:
        memory, of_budget = _memory(rules, recovered, demand, found), ()
    resources = PodResources(
        cpus=cpus,
        memory=memory,
        pod_cpus=recovered.cpus if budget else None,
        pod_memory=of_budget,
    )
    return make_allocation(rules.policy, demand, resources)


def _require_shown(recovered: PodAllocation, demand: PodDemand, *, budget: bool) -> None:
    """Raise `NotMatchedError` for devices, which no cgroup shows, and a budget of another size."""
    if any(container.devices for container in demand.containers):
        raise NotMatchedError(("it asks for devices, which cgroups do not show",))
    if budget and len(recovered.cpus or EMPTY) != demand.cpus:
        shown = recovered.cpus or "no exclusive CPUs"
        raise NotMatchedError(
            (f"it asks for a budget of {cpus_text(demand.cpus)}, its cgroup shows {shown}",)
        )


def _cpus(
    recovered: PodAllocation,
    demand: PodDemand,
    wanting: Sequence[ContainerDemand],
    found: Mapping[str, ContainerAllocation],
    *,
    budget: bool,
) -> dict[str, Mask]:
    """Return the CPUs by container; raises `NotMatchedError` when more were recovered."""
    cpus = _with_idle(
        recovered, demand, wanting, {name: shown.cpus or EMPTY for name, shown in found.items()}
    )
    if budget and recovered.cpus is not None:
        cpus |= _pool(recovered.cpus, demand, cpus)
    taken = EMPTY
    for mask in cpus.values():
        taken |= mask
    rest = recovered.exclusive_cpus - taken
    if rest and not budget:
        raise NotMatchedError((f"it does not ask for CPUs {rest}, which its cgroups show",))
    return cpus


def _without_cpus(recovered: PodAllocation) -> PodAllocation:
    containers = (replace(one, cpus=None, isolation=Isolation.HOST) for one in recovered.containers)
    return replace(recovered, cpus=None, containers=tuple(containers))


def _asks_for_memory(rules: EffectivePolicy, demand: PodDemand) -> bool:
    if not rules.static_memory or not demand.guaranteed or demand.unmanaged:
        return False
    return bool(demand.memory)


def _divided(
    rules: EffectivePolicy, recovered: PodAllocation, demand: PodDemand
) -> tuple[dict[str, tuple[MemoryBlock, ...]], tuple[MemoryBlock, ...]]:
    """Return the memory of each container, and the budget, on the nodes that the cgroups show."""
    if not _asks_for_memory(rules, demand):
        return {}, ()
    nodes = _nodes(recovered.containers)
    if not nodes:
        raise NotMatchedError(("its cgroups show no memory nodes for its budget",))
    parts = divide_memory(nodes, demand)
    return {name: part.blocks for name, part in parts.items()}, _blocks(demand.memory, nodes)


def _memory(
    rules: EffectivePolicy,
    recovered: PodAllocation,
    demand: PodDemand,
    found: Mapping[str, ContainerAllocation],
) -> dict[str, tuple[MemoryBlock, ...]]:
    """Return the memory of each container on the nodes that its cgroup, or the pod's, shows."""
    if not _asks_for_memory(rules, demand):
        return {}
    alike = {container.mems for container in recovered.containers}
    blocks: dict[str, tuple[MemoryBlock, ...]] = {}
    for container in demand.containers:
        shown = found.get(container.name) or _namesake(recovered, container.name)
        nodes = shown.mems if shown is not None else next(iter(alike), EMPTY)
        if not container.memory:
            continue
        if not nodes or (shown is None and len(alike) > 1):
            raise NotMatchedError((f"no cgroup shows the memory nodes of {container.name}",))
        blocks[container.name] = _blocks(container.memory, nodes)
    return blocks


def _namesake(recovered: PodAllocation, name: str) -> ContainerAllocation | None:
    return next((one for one in recovered.containers if _called(one.name, name)), None)


def _blocks(amounts: Mapping[str, int], nodes: Mask) -> tuple[MemoryBlock, ...]:
    return tuple(MemoryBlock(kind, size, nodes) for kind, size in sorted(amounts.items()) if size)


def _nodes(containers: Iterable[ContainerAllocation]) -> Mask:
    union = EMPTY
    for container in containers:
        union |= container.mems
    return union


def _matched(
    recovered: PodAllocation, wanting: Sequence[ContainerDemand], *, of_budget: bool
) -> dict[str, ContainerAllocation]:
    """Match each container that asks for CPUs with a cgroup: by name, then by number of CPUs.

    With a budget, one more cgroup may show CPUs: that of a container in the pod shared pool. Raises
    `NotMatchedError` for a cgroup that matches no container, or more than one.
    """
    open_sets = {c.name: c for c in recovered.containers if c.isolation is Isolation.CONTAINER}
    found: dict[str, ContainerAllocation] = {}
    running = [c for c in wanting if not c.is_standard_init]
    for by_name in (True, False):
        for container in running:
            if container.name in found:
                continue
            fitting = (
                name
                for name, shown in open_sets.items()
                if len(shown.cpus or EMPTY) == container.cpus
                and (not by_name or _called(name, container.name))
            )
            name = next(fitting, None)
            if name is not None:
                found[container.name] = open_sets.pop(name)
    sizes = {len(shown.cpus or EMPTY) for shown in found.values()}
    if of_budget and any(len(shown.cpus or EMPTY) in sizes for shown in open_sets.values()):
        raise NotMatchedError(("several of its containers match the CPUs of one cgroup",))
    if open_sets and not of_budget:
        texts = ", ".join(f"{name} ({shown.cpus})" for name, shown in open_sets.items())
        raise NotMatchedError((f"it has no container with the CPUs of {texts}",))
    return found


def _with_idle(
    recovered: PodAllocation,
    demand: PodDemand,
    wanting: Sequence[ContainerDemand],
    found: dict[str, Mask],
) -> dict[str, Mask]:
    """Add containers that do not run: they get CPUs that no other cgroup of their pod shows.

    Standard init containers have ended, and later containers reuse their CPUs.
    """
    free = recovered.exclusive_cpus
    for cpus in found.values():
        free -= cpus
    for container in wanting:
        if container.name in found:
            continue
        source = recovered.exclusive_cpus if container.is_standard_init else free
        if len(source) < container.cpus:
            text = f"container {container.name} asks for {cpus_text(container.cpus)}, available are"
            raise NotMatchedError((f"{text} {source or 'none'}",))
        found[container.name] = Mask.from_ids(list(source)[: container.cpus])
        if not container.is_standard_init:
            free -= found[container.name]
    order = [container.name for container in demand.containers]
    return {name: found[name] for name in sorted(found, key=order.index)}


def _pool(budget: Mask, demand: PodDemand, own: Mapping[str, Mask]) -> dict[str, Mask]:
    """Return the pod shared pool by container: the rest of the budget."""
    sidecars, all_own = EMPTY, EMPTY
    for container in demand.containers:
        cpus = own.get(container.name, EMPTY)
        if container.kind is ContainerKind.SIDECAR:
            sidecars |= cpus
        if not container.is_standard_init:
            all_own |= cpus
    pools = {
        c.name: budget - (sidecars if c.is_standard_init else all_own)
        for c in demand.containers
        if c.name not in own
    }
    if any(not pool for pool in pools.values()):
        raise NotMatchedError(("no CPU of its budget is left for its shared containers",))
    return pools


def _called(directory: str, name: str) -> bool:
    stem = directory
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    return stem == name or any(stem.endswith(f"{mark}{name}") for mark in _SEPARATORS)
