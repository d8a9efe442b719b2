"""Admission: the pure functions that turn a pod and a ledger into a decision and a new ledger."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.managers import node_fit
from agent.managers.allocations.allocation import PodResources, make_allocation
from agent.managers.allocations.demand import DemandUnder, demand_of
from agent.managers.allocations.draft import Draft
from agent.managers.cpu.manager import CpuManager
from agent.managers.decision import Decision
from agent.managers.device.manager import DeviceManager
from agent.managers.manager import HintProvider, Rejected
from agent.managers.memory.assignment import release_finished
from agent.managers.memory.manager import MemoryManager, release_memory
from agent.managers.readmission import readmit
from agent.managers.topology.scope import align_and_allocate
from agent.pods.model import ContainerKind
from agent.pods.validation import find_warnings

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.managers.allocations.ledger import Ledger, PodAllocation
    from agent.managers.effective_policy import EffectivePolicy
    from agent.pods.model import Pod

#: The kubelet's order of hint providers, for hints and for allocation.
PROVIDERS: Final[tuple[HintProvider, ...]] = (DeviceManager(), CpuManager(), MemoryManager())


def admit(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Decision:
    """Decide whether a pod fits and what each of its containers gets.

    Pure: the same arguments give the same decision. A pod that is already in the ledger keeps its
    allocation; the first specification that fits completes an imported or recovered allocation
    (`agent.managers.readmission`). A rejected pod changes nothing. Steps: node fit, eligibility,
    hints, merge, allocation.
    """
    existing = ledger.allocations.get(pod.uid)
    if existing is None:
        decision = _decide(rules, ledger, pod)
    else:
        decision = readmit(rules, ledger, existing, pod) or _decide_running(rules, ledger, pod)
    warnings = find_warnings(pod)
    return replace(decision, warnings=warnings) if warnings else decision


def _decide_running(rules: EffectivePolicy, ledger: Ledger, pod: Pod) -> Decision:
    """Decide on a pod that runs already, in place of an allocation of which nothing is kept."""
    decision = _decide(rules, remove(rules, ledger, pod.uid), pod, check_fit=False)
    return decision if decision.admitted else replace(decision, ledger=ledger)


def _decide(
    rules: EffectivePolicy, ledger: Ledger, pod: Pod, *, check_fit: bool = True
) -> Decision:
    """Decide on a pod; `check_fit` False skips node fit, for pods that already run."""
    demand = demand_of(rules.policy, pod)
    asked = DemandUnder(rules.policy, demand)
    unfit = node_fit.rejection(rules, ledger, demand.requests) if check_fit else None
    if unfit is not None:
        return Decision(pod.uid, ledger, cause=unfit, asked=asked)
    draft = Draft.start(rules, ledger, demand)
    try:
        align_and_allocate(draft, PROVIDERS)
    except Rejected as rejected:
        return Decision(
            pod.uid,
            ledger,
            cause=rejected.cause,
            hints=tuple(draft.traces),
            asked=asked,
            counters=MappingProxyType(draft.counters),
        )
    allocation = _allocation(draft)
    return Decision(
        pod.uid,
        draft.ledger.with_allocation(allocation).with_memory(draft.node_memory),
        allocation=allocation,
        hints=tuple(draft.traces),
        asked=asked,
        counters=MappingProxyType(draft.counters),
    )


def remove(rules: EffectivePolicy, ledger: Ledger, uid: str) -> Ledger:
    """Return the ledger without a pod; the resources that only this pod had are free again.

    A CPU or device that a checkpoint or an import allocated twice (`validity` reports such
    violations) stays with the other pod. An unknown uid changes nothing.
    """
    allocation = ledger.allocations.get(uid)
    if allocation is None:
        return ledger
    return ledger.without_allocation(uid).with_memory(
        release_memory(rules, ledger.memory, allocation)
    )


def start_container(rules: EffectivePolicy, ledger: Ledger, uid: str, name: str) -> Ledger:
    """Return the ledger after a container started: the init containers before it have ended.

    Their pinned memory is free again (kubelet v1.36, memorymanager AddContainer); a pod-level
    budget stays whole until the pod ends (KEP-5526). Their CPUs stay with the pod.
    An unknown pod or container changes nothing.
    """
    allocation = ledger.allocations.get(uid)
    if allocation is None or allocation.memory or allocation.container(name) is None:
        return ledger
    finished: list[str] = []
    for container in allocation.containers:
        if container.name == name:
            break
        if container.kind is ContainerKind.INIT and container.memory:
            finished.append(container.name)
    if not finished:
        return ledger
    return _without_memory_of(rules, ledger, allocation, finished)


def _without_memory_of(
    rules: EffectivePolicy, ledger: Ledger, allocation: PodAllocation, finished: Collection[str]
) -> Ledger:
    over = [c for c in allocation.containers if c.name in finished]
    containers = tuple(replace(c, memory=()) if c in over else c for c in allocation.containers)
    rest = replace(allocation, containers=containers)
    memory = release_finished(rules.memory, ledger.memory, [c.memory for c in over])
    return ledger.with_allocation(rest).with_memory(memory)


def _allocation(draft: Draft) -> PodAllocation:
    resources = PodResources(
        cpus=draft.cpus,
        memory=draft.memory,
        devices=draft.devices,
        hints=draft.hints,
        pod_cpus=draft.pod_cpus,
        pod_memory=draft.pod_memory,
    )
    return make_allocation(draft.rules.policy, draft.demand, resources)
